"""What a store promises to those who put and fetch."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from commitbus.broker.store import store_reader
from commitbus.broker.store.check import check_store
from commitbus.broker.store.config import StoreConfig
from commitbus.broker.store.message_store import Arrival, MessageStore
from commitbus.commitlog.errors import (
    MessageRefusedError,
    NotAStoreError,
    StoreClosedError,
    StoreLockedError,
)
from commitbus.commitlog.file_system import RealFileSystem
from commitbus.commitlog.record_format import decode_record, tags_code
from commitbus.commitlog.types import OutgoingMessage, QueueOffset
from commitbus.flush.policy import FlushMode
from commitbus.flush.watermark_file import read_durable_watermark
from tests.broker.store.filling import PATIENCE_S, settle

FOREVER_MS = 1 << 62

OpenStore = Callable[..., MessageStore]
MakeMessage = Callable[..., OutgoingMessage]


@pytest.mark.parametrize("mode", FlushMode)
def test_what_is_put_is_fetched_in_order(
    mode: FlushMode, open_store: OpenStore, make_message: MakeMessage
) -> None:
    """Over several log and queue files, each queue on its own."""
    store = open_store(mode)
    results = [
        store.put(make_message("TopicA", i % 3, b"%d" % i * 100, TAGS="x", UNIQ_KEY=f"u{i}"))
        for i in range(600)
    ]
    settle(store, results[-1])
    for queue_id in range(3):
        assert store.max_offset("TopicA", queue_id) == 200
        offset = QueueOffset(0)
        for _ in range(20):
            found = store.fetch("TopicA", queue_id, offset, 10)
            assert [unit.queue_offset for unit in found.units] == list(range(offset, offset + 10))
            for unit in found.units:
                i = 3 * unit.queue_offset + queue_id
                assert (unit.physical_offset, unit.size_bytes) == results[i][:2]
                assert store.read(unit.physical_offset).body == b"%d" % i * 100
                view = memoryview(store.read_bytes(unit.physical_offset, unit.size_bytes))
                assert decode_record(view, unit.physical_offset).queue_offset == unit.queue_offset
            offset = found.next_offset
    assert store.queues() == [("TopicA", 0), ("TopicA", 1), ("TopicA", 2)]
    assert store.dispatch_behind_bytes == store.flush_behind_bytes == 0
    assert store.storage_bytes >= results[-1].end_offset


def test_a_batch_lies_together(open_store: OpenStore, make_message: MakeMessage) -> None:
    """All messages follow each other, in the queues too."""
    store = open_store()
    store.put(make_message())
    results = store.put_batch([make_message(body=b"%d" % i) for i in range(5)])
    assert store.put_batch([]) == []
    settle(store, results[-1])
    for one, following in pairwise(results):
        assert one.end_offset == following.physical_offset
    assert [result.queue_offset for result in results] == [1, 2, 3, 4, 5]
    with pytest.raises(MessageRefusedError):
        store.put_batch([make_message(), make_message(body=bytes(1 << 16))])
    assert store.max_offset("TopicA", 0) == store.queue_end("TopicA", 0) == 6


def test_fetching_outside_of_a_queue_finds_nothing(
    open_store: OpenStore, make_message: MakeMessage
) -> None:
    """Neither at nor beyond the end, nor in a queue that is not there."""
    store = open_store()
    settle(store, store.put(make_message()))
    assert store.fetch("TopicA", 0, QueueOffset(1), 10) == ([], 1)
    assert store.fetch("TopicA", 0, QueueOffset(99), 10) == ([], 99)
    assert store.fetch("TopicA", 0, QueueOffset(-5), 10).next_offset == 1
    assert store.fetch("TopicA", 0, QueueOffset(0), 0) == ([], 0)
    assert store.fetch("TopicA", 7, QueueOffset(0), 10) == ([], 0)
    assert store.min_offset("Nothing", 0) == store.max_offset("Nothing", 0) == 0
    assert store.offset_by_timestamp("Nothing", 0, 0) == 0


def test_a_tag_filter_returns_matches_and_examines_a_bounded_number(
    open_store: OpenStore, make_message: MakeMessage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A filter that nothing passes moves on in bounded steps and ends at the queue's end."""
    monkeypatch.setattr(store_reader, "SCAN_UNITS_MAX", 32)
    store = open_store()
    tags = ["seldom" if i % 100 == 99 else "often" for i in range(400)]
    settle(store, [store.put(make_message(TAGS=tag)) for tag in tags][-1])
    seldom = frozenset({tags_code("seldom"), tags_code("never")})
    first = store.fetch("TopicA", 0, QueueOffset(0), 1, seldom)
    assert first == ([], 32)
    found, offset, fetches = [], QueueOffset(0), 0
    while offset < 400:
        units, offset = store.fetch("TopicA", 0, offset, 2, seldom)
        found += [unit.queue_offset for unit in units]
        fetches += 1
    assert found == [99, 199, 299, 399]
    assert fetches == 13
    # The fetch ends with the last message that was wanted, not with what was looked at.
    assert store.fetch("TopicA", 0, QueueOffset(90), 1, seldom).next_offset == 100


def test_listeners_hear_of_durable_bytes_and_of_arrivals(
    open_store: OpenStore, make_message: MakeMessage
) -> None:
    """Once per batch, each touched queue once, with its new end."""
    store = open_store(FlushMode.SYNC_FLUSH)
    durable: list[int] = []
    arrivals: list[Arrival] = []
    threads: set[str] = set()
    store.durable_watermark.listen(durable.append)

    def arrived(batch: Sequence[Arrival]) -> None:
        assert len({arrival[:2] for arrival in batch}) == len(batch)
        # Nothing is shown before it is durable.
        assert store.confirm_offset <= store.durable_watermark.offset
        arrivals.extend(batch)
        threads.add(threading.current_thread().name)

    store.add_arrival_listener(arrived)
    results = [store.put(make_message(queue_id=i % 2)) for i in range(100)]
    settle(store, results[-1])
    store.close()
    assert durable == sorted(set(durable))
    assert durable[-1] == results[-1].end_offset
    for queue_id in range(2):
        ends = [arrival.max_offset for arrival in arrivals if arrival.queue_id == queue_id]
        assert ends == sorted(set(ends))
        assert ends[-1] == 50
    assert threads == {"commitbus-reput"}


def test_the_watermark_is_there_for_other_processes(
    open_store: OpenStore, make_message: MakeMessage, store_dir: Path
) -> None:
    """As soon as a waiter is told that its message is durable."""
    store = open_store(FlushMode.SYNC_FLUSH)
    result = store.put(make_message())
    assert store.durable_watermark.wait(result.end_offset, PATIENCE_S)
    watermark = read_durable_watermark(store_dir, RealFileSystem())
    assert watermark == store.durable_watermark.offset == result.end_offset


def test_a_closed_store_is_found_again_as_it_was(
    open_store: OpenStore, make_message: MakeMessage
) -> None:
    """Offsets go on where they ended; nothing had to be repaired."""
    store = open_store()
    end = [store.put(make_message(queue_id=i % 2, KEYS=f"k{i}")) for i in range(300)][-1].end_offset
    store.close()
    store = open_store()
    assert "after a clean stop" in store.recovery_summary
    assert "0 dispatched to queues" in store.recovery_summary
    assert store.end_offset == store.durable_watermark.offset == end
    assert store.max_offset("TopicA", 1) == 150
    result = store.put(make_message(queue_id=1, KEYS="k300"))
    assert (result.physical_offset, result.queue_offset) == (end, 150)
    settle(store, result)
    for i in (0, 299, 300):
        assert len(store.query_by_key("TopicA", f"k{i}", 0, FOREVER_MS, 9)) == 1


def test_a_store_keeps_the_sizes_it_was_made_with(
    open_store: OpenStore, make_message: MakeMessage, store_dir: Path
) -> None:
    """Opened with the defaults of 1 GiB, a store of 64 KiB files goes on with these."""
    store = open_store()
    for i in range(500):
        store.put(make_message(body=bytes(300), KEYS=f"k{i}"))
    store.close()
    with MessageStore.open(store_dir) as other:
        assert other.max_offset("TopicA", 0) == 500
        for i in range(500):
            other.put(make_message(body=bytes(300), KEYS=f"k{i}"))
    for folder, size in (("commitlog", 1 << 16), ("consumequeue/TopicA/0", 2000), ("index", 8440)):
        sizes = {path.stat().st_size for path in (store_dir / folder).iterdir()}
        assert sizes == {size}
    open_store()


def test_an_index_of_any_ratio_is_opened_without_being_told(
    make_message: MakeMessage, store_dir: Path, config: StoreConfig
) -> None:
    """By a reader, a writer and a check."""
    odd = replace(config, index_slots=7, index_entries=50)
    for sizes in (odd, StoreConfig()):
        with MessageStore.open(store_dir, sizes) as store:
            settle(store, [store.put(make_message(KEYS=f"k{i}")) for i in range(100)][-1])
    with MessageStore.open_read_only(store_dir) as reader:
        assert len(reader.query_by_key("TopicA", "k3", 0, FOREVER_MS, 9)) == 2
    assert {path.stat().st_size for path in (store_dir / "index").iterdir()} == {40 + 28 + 1000}
    assert check_store(store_dir).problems == []


def test_a_store_has_one_writer(open_store: OpenStore, store_dir: Path) -> None:
    """Also within one process, where a POSIX lock alone would not exclude; by any path to it."""
    store = open_store()
    assert (store_dir / "lock").read_bytes() == b"lock"
    assert (store_dir / "abort").read_bytes() == str(os.getpid()).encode()
    link = store_dir.parent / "link"
    link.symlink_to(store_dir)
    for path in (store_dir, link):
        with pytest.raises(StoreLockedError):
            MessageStore.open(path)
    store.close()
    assert not (store_dir / "abort").exists()
    open_store()


@pytest.mark.parametrize("mode", FlushMode)
def test_a_listener_that_raises_harms_nobody_else(
    mode: FlushMode,
    open_store: OpenStore,
    make_message: MakeMessage,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is logged; flushing and dispatching go on, the other listeners hear."""
    store = open_store(mode)
    arrivals: list[Arrival] = []

    def broken(_: object) -> None:
        raise RuntimeError("the event loop has ended")

    store.durable_watermark.listen(broken)
    store.add_arrival_listener(broken)
    store.add_arrival_listener(arrivals.extend)
    for _ in range(2):
        settle(store, store.put(make_message()))
    store.close()
    assert [arrival.max_offset for arrival in arrivals] == [1, 2]
    assert caplog.text.count("the event loop has ended") >= 4
    assert store.failure is None


def test_closing_twice_and_putting_afterwards(
    open_store: OpenStore, make_message: MakeMessage
) -> None:
    """The first is allowed, the second refused."""
    store = open_store()
    store.close()
    store.close()
    for put in (store.put, lambda message: store.put_batch([message])):
        with pytest.raises(StoreClosedError):
            put(make_message())


def test_nothing_is_appended_behind_the_last_flush(
    open_store: OpenStore, make_message: MakeMessage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A put that was on its way when the store was closed: the checkpoint would wait for it."""
    store = open_store()
    settle(store, store.put(make_message()))
    stop_reput = store._reput.stop

    def stop() -> None:
        with pytest.raises(StoreClosedError):  # the flush thread has ended
            store._log.append(make_message())
        stop_reput()

    monkeypatch.setattr(store._reput, "stop", stop)
    store.close()


def test_a_deleted_topic_has_no_queues(open_store: OpenStore, make_message: MakeMessage) -> None:
    """Its numbering goes on, so that no queue offset ever means two messages."""
    store = open_store()
    for topic in ("Gone", "Kept") * 3:
        settle(store, store.put(make_message(topic)))
    store.delete_topic("Gone")
    assert store.queues() == [("Kept", 0)]
    assert store.fetch("Gone", 0, QueueOffset(0), 9) == ([], 0)
    result = store.put(make_message("Gone"))
    settle(store, result)
    assert result.queue_offset == store.min_offset("Gone", 0) == 3


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (["notes.txt"], "holds 'notes.txt'"),
        (["commitlog"], "commitlog is a file"),
        (["commitlog/", "index"], "index is a file"),
        (["commitlog/", "abort/"], "abort is a directory"),
        (["commitlog/", "lock/"], "lock is a directory"),
        (["commitlog/", "checkpoint/"], "checkpoint is a directory"),
        (["commitlog/", "commitlog/readme"], "not named by 20 digits"),
    ],
)
def test_a_directory_that_is_no_store_is_refused_and_left_alone(
    names: list[str], reason: str, tmp_path: Path
) -> None:
    """With the name of what does not belong there."""
    for name in names:
        path = tmp_path / name
        path.mkdir() if name.endswith("/") else path.touch()
    for _ in range(2):
        with pytest.raises(NotAStoreError, match=reason):
            MessageStore.open(tmp_path)
        if reason != "holds 'notes.txt'":
            with pytest.raises(NotAStoreError):
                MessageStore.open_read_only(tmp_path)


def test_a_file_or_nothing_is_no_store(tmp_path: Path) -> None:
    """A missing directory is made for a writer only."""
    (tmp_path / "file").touch()
    with pytest.raises(NotAStoreError, match="it is a file"):
        MessageStore.open(tmp_path / "file")
    for name, reason in (("file", "file"), ("missing", "no such directory"), ("", "commitlog")):
        with pytest.raises(NotAStoreError, match=reason):
            MessageStore.open_read_only(tmp_path / name)
    assert not (tmp_path / "missing").exists()
