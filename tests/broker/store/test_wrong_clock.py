"""Retention and recovery with a clock that was wrong, and without files that somebody removed."""

from __future__ import annotations

import errno
import itertools
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import pytest

from commitbus.broker.store import start
from commitbus.broker.store.check import check_store
from commitbus.broker.store.config import StoreConfig
from commitbus.broker.store.message_store import MessageStore
from commitbus.commitlog.file_system import RealFileSystem
from commitbus.commitlog.retention import HOUR_MS
from commitbus.consumequeue.consume_queue import ConsumeQueue
from commitbus.flush.checkpoint import read_checkpoint
from commitbus.flush.flushed_offsets import read_flushed_offsets
from commitbus.flush.sealed import SealedSegments
from commitbus.flush.watermark_file import read_durable_watermark
from commitbus.indexfile.index_file import IndexFile
from tests.broker.store.filling import EXPIRY, FILE, Disk, Make, bases, fill, sealed, settle
from tests.running_copies import copy_running

FILES = RealFileSystem()


@final
class WrongClock:
    """True time, and a wall clock that may say something else."""

    def __init__(self) -> None:
        self.true_ms, self.error_ms = 1_700_000_000_000, 0

    def now_ms(self) -> int:
        return self.true_ms + self.error_ms

    def monotonic_s(self) -> float:
        return self.true_ms / 1000


OpenStore = Callable[..., MessageStore]


@pytest.fixture
def clock() -> WrongClock:
    return WrongClock()


@pytest.fixture
def open_store(store_dir: Path, config: StoreConfig, clock: WrongClock) -> Iterator[OpenStore]:
    """Open the store with a clock that may be wrong; at the end it is checked."""
    opened = list[MessageStore]()

    def open_(**changes: Any) -> MessageStore:
        store = MessageStore.open(
            store_dir,
            replace(config, retention=EXPIRY, **changes),
            clock=clock,
            file_system=Disk(),
        )
        opened.append(store)
        return store

    yield open_
    for store in opened:
        store.close()
    assert check_store(store_dir, config=config).problems == []


def test_a_clock_a_year_ahead_deletes_nothing_and_keeps_nothing_for_ever(
    open_store: OpenStore, make_message: Make, clock: WrongClock, store_dir: Path
) -> None:
    """One message is stored with the wrong time, and all behind it have that time too."""
    store = open_store()
    fill(store, make_message, 2)
    clock.true_ms += HOUR_MS
    store.keep_house()
    clock.error_ms = 365 * 24 * HOUR_MS
    store.put(make_message())
    store.keep_house()
    assert store.min_physical_offset == 0
    clock.error_ms = 0
    fill(store, make_message, 8)
    store.keep_house()
    assert store.min_physical_offset == 0
    clock.true_ms += 48 * HOUR_MS
    store.keep_house()
    assert store.min_physical_offset == 2 * FILE
    clock.true_ms += HOUR_MS
    store.keep_house()
    assert len(bases(store_dir)) <= 2


def test_a_file_is_ended_in_time_though_the_clock_was_ahead(
    open_store: OpenStore, make_message: Make, clock: WrongClock
) -> None:
    """`sealAfter` does not wait for a year."""
    store = open_store(seal_after_s=7200)
    clock.error_ms = 365 * 24 * HOUR_MS
    store.put(make_message())
    clock.error_ms = 0
    store.keep_house()
    assert store.end_offset < FILE
    clock.true_ms += 2 * HOUR_MS
    store.keep_house()
    assert store.end_offset == FILE


def test_recovery_is_as_short_with_poisoned_timestamps(
    open_store: OpenStore, make_message: Make, clock: WrongClock, tmp_path: Path
) -> None:
    """It begins at what our own note says to be flushed, where timestamps tell nothing apart."""
    store = open_store()
    clock.error_ms = 365 * 24 * HOUR_MS
    store.put(make_message())
    clock.error_ms = 0
    fill(store, make_message, 10)
    store._checkpoints.save()
    copy = tmp_path / "killed"
    copy_running(store.directory, copy)
    before = {path.name: path.read_bytes() for path in (copy / "index").iterdir()}
    killed = MessageStore.open(copy, clock=clock)
    start = int(killed.recovery_summary.split("checked from ")[1].split(" to ")[0])
    assert start >= 9 * FILE
    assert killed.dispatched.wait(killed.end_offset, 20)
    ends = [killed.max_offset(*key) for key in killed.queues()]
    assert ends == [store.max_offset(*key) for key in store.queues()]
    killed.close()
    assert check_store(copy).problems == []
    # Full index files that were flushed are not made again.
    kept = [name for name, data in before.items() if (copy / "index" / name).read_bytes() == data]
    assert len(kept) >= len(before) - 1


def test_a_killed_rebuild_is_not_believed_with_poisoned_timestamps(
    open_store: OpenStore,
    make_message: Make,
    clock: WrongClock,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The times of all messages are the same: it is the offsets that have to be taken back."""
    store = open_store()
    clock.error_ms = 365 * 24 * HOUR_MS
    for number in range(400):
        store.put(make_message("TopicA", number % 2, bytes(500)))
        clock.error_ms = 0
    settle(store)
    store._checkpoints.save()
    copy = tmp_path / "killed"
    copy_running(store.directory, copy)
    shutil.rmtree(copy / "consumequeue")
    put_many, calls = ConsumeQueue.put_many, itertools.count(1)

    def die_in_the_middle(self: ConsumeQueue, *arguments: Any) -> None:
        # A batch is put queue by queue: of the second one, the second queue lacks its units.
        if next(calls) == 4:
            raise KeyboardInterrupt
        put_many(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(ConsumeQueue, "put_many", die_in_the_middle)
        patch.setattr(start, "_DISPATCH_RECORDS", 100)
        with pytest.raises(KeyboardInterrupt):
            MessageStore.open(copy, clock=clock)
    checkpoint, watermark = read_checkpoint(copy, FILES), read_durable_watermark(copy, FILES)
    assert checkpoint is not None
    assert read_flushed_offsets(copy, checkpoint, watermark, FILES) is None
    reopened = MessageStore.open(copy, clock=clock)
    for key in store.queues():
        assert reopened.max_offset(*key) == store.max_offset(*key)
        assert reopened.min_offset(*key) == 0
    reopened.close()
    assert check_store(copy).problems == []


# Removed files


def test_a_manifest_that_is_removed_is_made_again_at_once(
    open_store: OpenStore, make_message: Make, store_dir: Path
) -> None:
    """Not only at the next start."""
    store = open_store()
    fill(store, make_message, 2)
    store.keep_house()
    for path in (store_dir / "commitbus" / "sealed").iterdir():
        path.unlink()
    store.keep_house()
    assert sealed(store_dir) == [0, FILE]


@pytest.mark.parametrize(
    "lost",
    [
        *("commitbus/sealed", "commitbus/ages.json", "commitbus/watermark", "commitbus/flushed"),
        *("commitbus/deleted_topics.json", "commitbus/cut", "checkpoint"),
        *("commitlog/*0", "consumequeue/TopicA/0/*0", "index/*"),
    ],
)
def test_nothing_of_ours_that_is_removed_stops_retention(
    open_store: OpenStore,
    make_message: Make,
    clock: WrongClock,
    monkeypatch: pytest.MonkeyPatch,
    lost: str,
) -> None:
    """Nor a deletion of a topic, nor a checkpoint, nor a close."""
    store = open_store()
    fill(store, make_message, 3)
    store.keep_house()
    store.delete_topic("TopicB")
    store._housekeeping.stop()
    for path in sorted(store.directory.glob(lost))[:1]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    clock.true_ms += 48 * HOUR_MS + 1
    store.put(make_message())
    settle(store)
    # It may happen between the look for lost manifests and the deletion.
    monkeypatch.setattr(SealedSegments, "forget_lost", lambda _: None, raising=False)
    store.keep_house()
    assert store.min_physical_offset == 3 * FILE
    store.delete_topic("TopicA")
    store._checkpoints.save()
    assert store.failure is None
    store.close()
    assert open_store().min_physical_offset == 3 * FILE


# An index without room


def test_an_index_without_room_holds_no_file_back(
    open_store: OpenStore,
    make_message: Make,
    clock: WrongClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """When there is room again it goes on where the log begins then."""
    store = open_store()

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "index")

    with monkeypatch.context() as patch:
        patch.setattr(IndexFile, "create", refuse)
        fill(store, make_message, 3)
        store.keep_house()
        assert store.indexed_to == 0
        clock.true_ms += 49 * HOUR_MS
        kept = store.put(make_message(UNIQ_KEY="kept"))
        settle(store)
        store.keep_house()
        assert store.min_physical_offset == 3 * FILE
    clock.true_ms += 2_000
    store.put(make_message())
    settle(store)
    give_up_s = time.monotonic() + 20
    while store.indexed_to < store.end_offset:
        assert time.monotonic() < give_up_s
        time.sleep(0.01)
    found = store.query_by_unique_key("TopicA", "kept")
    assert [record.physical_offset for record in found] == [kept.physical_offset]
