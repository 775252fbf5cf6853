"""A deleted topic stays deleted, whatever happens to the files; one made anew goes on behind it."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from commitbus.broker.store.check import check_store
from commitbus.broker.store.config import StoreConfig
from commitbus.broker.store.message_store import MessageStore, StoreReader
from commitbus.commitlog.errors import (
    FlushFailedError,
    NotAStoreError,
    StoreError,
    StoreReadOnlyError,
)
from commitbus.commitlog.file_system import RealFileSystem
from commitbus.commitlog.types import AppendResult, OutgoingMessage, PhysicalOffset, QueueOffset
from commitbus.consumequeue.consume_queue import ConsumeQueue
from commitbus.consumequeue.deleted_topics import DELETED_TOPICS_PATH
from commitbus.flush.watermark_file import WATERMARK_PATH

PATIENCE_S = 20

OpenStore = Callable[..., MessageStore]
MakeMessage = Callable[..., OutgoingMessage]
CopyOf = Callable[[Path], Path]


def put(store: MessageStore, message: OutgoingMessage, count: int = 1) -> AppendResult:
    """Put a message so many times, and wait until all can be fetched."""
    results = [store.put(message) for _ in range(count)]
    assert store.durable_watermark.wait(results[-1].end_offset, PATIENCE_S)
    assert store.dispatched.wait(results[-1].end_offset, PATIENCE_S)
    return results[-1]


def bodies(store: StoreReader, topic: str = "Gone") -> dict[int, bytes]:
    """What can be fetched from the first queue of a topic."""
    units = store.fetch(topic, 0, QueueOffset(0), 1 << 20).units
    return {unit.queue_offset: store.read(unit.physical_offset).body for unit in units}


def queue_files(directory: Path) -> dict[str, bytes]:
    """Every file of the queues."""
    queues = directory / "consumequeue"
    return {
        path.relative_to(queues).as_posix(): path.read_bytes()
        for path in queues.rglob("*")
        if path.is_file()
    }


def close_and_check(store: MessageStore) -> None:
    """Close a store, in which all must be as it should."""
    store.close()
    assert check_store(store.directory).problems == []


@pytest.mark.parametrize("made_anew", [False, True])
def test_a_rebuild_brings_nothing_back(
    made_anew: bool,  # noqa: FBT001 - pytest passes it by name
    open_store: OpenStore,
    make_message: MakeMessage,
    store_dir: Path,
) -> None:
    """The queues are a function of the log and of the note, byte for byte."""
    store = open_store()
    put(store, make_message("Gone", body=b"old"), 150)
    store.delete_topic("Gone")
    put(store, make_message("Kept"), 3)
    if made_anew:
        put(store, make_message("Gone", body=b"new"), 2)
    expected = {150: b"new", 151: b"new"} if made_anew else {}
    assert bodies(store) == expected
    close_and_check(store)
    files = queue_files(store_dir)
    for removed in ("consumequeue", "consumequeue/Kept"):
        shutil.rmtree(store_dir / removed)
        store = open_store()
        assert bodies(store) == expected
        assert bodies(store, "Kept").keys() == {0, 1, 2}
        assert store.min_offset("Gone", 0) == 150
        close_and_check(store)
        assert queue_files(store_dir) == files
    with MessageStore.open_read_only(store_dir) as reader:
        assert bodies(reader) == expected
        assert reader.max_offset("Gone", 0) == 150 + len(expected)


def test_a_kill_brings_nothing_back(
    open_store: OpenStore, make_message: MakeMessage, store_dir: Path, copy_of: CopyOf
) -> None:
    """Nothing vouches for units of the last seconds, so a start derives them from the log again."""
    store = open_store()
    put(store, make_message("Gone"), 3)
    store.delete_topic("Gone")
    killed = MessageStore.open(copy_of(store_dir))
    assert killed.queues() == []
    assert put(killed, make_message("Gone", body=b"new")).queue_offset == 3
    assert bodies(killed) == {3: b"new"}
    again = MessageStore.open(copy_of(killed.directory))
    assert bodies(again) == {3: b"new"}
    assert again.queue_end("Gone", 0) == 4
    close_and_check(killed)
    close_and_check(again)


def test_a_kill_between_the_note_and_the_removal(
    open_store: OpenStore, make_message: MakeMessage, store_dir: Path, copy_of: CopyOf
) -> None:
    """What was not removed any more is removed at the next start; a reader sees it no more."""
    store = open_store()
    put(store, make_message("Gone"), 150)
    before = copy_of(store_dir)
    store.delete_topic("Gone")
    shutil.copy(store_dir / DELETED_TOPICS_PATH, before / DELETED_TOPICS_PATH)
    with MessageStore.open_read_only(before) as reader:
        assert reader.queues() == []
    assert (before / "consumequeue" / "Gone").exists()
    killed = MessageStore.open(before)
    assert killed.queues() == []
    assert not (before / "consumequeue" / "Gone" / "0").exists()
    assert put(killed, make_message("Gone")).queue_offset == 150
    close_and_check(killed)


def test_a_power_cut_that_takes_the_end_of_the_log(
    open_store: OpenStore, make_message: MakeMessage, store_dir: Path, copy_of: CopyOf
) -> None:
    """The topic was deleted behind that end: what is put there now is new, and must be shown."""
    store = open_store()
    durable = put(store, make_message("Gone"), 5).end_offset
    watermark = (store_dir / WATERMARK_PATH).read_bytes()
    put(store, make_message("Gone"), 5)
    store.delete_topic("Gone")
    copy = copy_of(store_dir)
    (copy / WATERMARK_PATH).write_bytes(watermark)
    with (copy / "commitlog" / ("0" * 20)).open("r+b") as file:
        file.seek(durable)
        file.write(bytes((1 << 16) - durable))
    cut = MessageStore.open(copy)
    assert cut.end_offset == durable
    assert cut.queues() == []
    for i in range(3):
        assert put(cut, make_message("Gone", body=b"%d" % i)).queue_offset == 10 + i
    assert bodies(cut) == {10: b"0", 11: b"1", 12: b"2"}
    again = MessageStore.open(copy_of(copy))
    assert bodies(again) == bodies(cut)
    close_and_check(cut)
    close_and_check(again)


def test_deleting_while_messages_arrive(
    open_store: OpenStore, make_message: MakeMessage, store_dir: Path
) -> None:
    """Every message is before or after the deletion, in memory as on the disk."""
    store = open_store()
    done = threading.Event()

    def send() -> None:
        while not done.is_set():
            store.put(make_message("Gone"))

    sender = threading.Thread(target=send)
    sender.start()
    for _ in range(20):
        store.delete_topic("Gone")
    done.set()
    sender.join()
    end = put(store, make_message("Gone", body=b"last")).queue_offset
    held = bodies(store)
    assert list(held) == list(range(end + 1 - len(held), end + 1))
    close_and_check(store)
    shutil.rmtree(store_dir / "consumequeue")
    store = open_store()
    assert bodies(store) == held


def test_queues_that_rocketmq_removed_stay_removed(
    open_store: OpenStore, make_message: MakeMessage, store_dir: Path, config: StoreConfig
) -> None:
    """It makes no note, so what is missing at the first start counts as deleted; later it is lost.

    The first start of a directory without any queue is another matter: those are derived anew.
    """
    store = open_store()
    for topic in ("Gone", "Kept"):
        put(store, make_message(topic), 3)
    store.close()
    (store_dir / DELETED_TOPICS_PATH).unlink()
    shutil.rmtree(store_dir / "consumequeue" / "Gone")
    for _ in range(2):
        store = open_store()
        assert store.queues() == [("Kept", 0)]
        close_and_check(store)
    store = open_store()
    assert put(store, make_message("Gone")).queue_offset == 3
    store.close()
    (store_dir / DELETED_TOPICS_PATH).unlink()
    shutil.rmtree(store_dir / "consumequeue")
    with MessageStore.open(store_dir, config) as store:
        assert list(bodies(store)) == [0, 1, 2, 3]


def test_a_damaged_note_is_named(
    open_store: OpenStore, make_message: MakeMessage, store_dir: Path
) -> None:
    """Opening without it could show what was deleted, so that is the operator's to decide."""
    store = open_store()
    put(store, make_message("Gone"), 3)
    store.delete_topic("Gone")
    store.close()
    path = store_dir / DELETED_TOPICS_PATH
    sound = path.read_bytes()
    damages = (b"", b"{}", b"[]", b"\xff", sound[:-3], sound.replace(b"3", b"4", 1))
    for damage in (*damages, sound.replace(b'"Gone"', b'"Gane"')):
        path.write_bytes(damage)
        with pytest.raises(NotAStoreError, match=r"deleted_topics\.json.* is damaged"):
            MessageStore.open(store_dir)
        assert "deleted_topics" in check_store(store_dir).problems[0].file
    path.write_bytes(sound)
    open_store()


def test_an_id_of_a_deleted_message_still_finds_it(
    open_store: OpenStore, make_message: MakeMessage
) -> None:
    """The log forgets nothing before its file goes."""
    store = open_store()
    result = put(store, make_message("Gone", body=b"still there"))
    store.delete_topic("Gone")
    assert store.read(PhysicalOffset(result.physical_offset)).body == b"still there"


def test_a_queue_in_the_making_begins_where_the_topic_ended(
    open_store: OpenStore, make_message: MakeMessage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While its first file is made, nobody is told 0."""
    store = open_store()
    put(store, make_message("Gone"), 7)
    store.delete_topic("Gone")
    original = ConsumeQueue._begin_at
    seen: list[tuple[int, int]] = []

    def begin_at(self: ConsumeQueue, queue_offset: int) -> None:
        seen.append((store.min_offset("Gone", 0), store.max_offset("Gone", 0)))
        original(self, queue_offset)

    monkeypatch.setattr(ConsumeQueue, "_begin_at", begin_at)
    put(store, make_message("Gone"))
    assert seen == [(7, 7)]
    assert (store.min_offset("Gone", 0), store.max_offset("Gone", 0)) == (7, 8)
    close_and_check(store)


def test_a_start_after_a_kill_makes_the_note_durable_that_it_finds(
    open_store: OpenStore,
    make_message: MakeMessage,
    copy_of: CopyOf,
    store_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The process may have died between renaming the note and syncing its name."""
    store = open_store()
    put(store, make_message("Gone"))
    store.delete_topic("Gone")
    killed = copy_of(store_dir)
    synced: list[Path] = []
    original = RealFileSystem.sync_directory

    def sync_directory(self: RealFileSystem, path: Path) -> None:
        synced.append(path)
        original(self, path)

    with monkeypatch.context() as patch:
        patch.setattr(RealFileSystem, "sync_directory", sync_directory)
        other = MessageStore.open(killed)
    assert (killed / DELETED_TOPICS_PATH).parent in synced
    other.close()


def test_a_deletion_whose_note_may_not_be_durable_ends_the_store(
    open_store: OpenStore, make_message: MakeMessage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the topic is deleted, the next start tells: what came later could vanish with it."""
    store = open_store()
    put(store, make_message("Gone"))
    failures: list[StoreError] = []
    store.add_failure_listener(failures.append)

    def fail(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        with pytest.raises(FlushFailedError):
            store.delete_topic("Gone")
    assert [type(failure) for failure in failures] == [FlushFailedError]
    with pytest.raises(StoreReadOnlyError):
        store.put(make_message("Gone"))


def test_a_reader_beside_a_deletion_finds_nothing_rather_than_no_place(
    open_store: OpenStore, make_message: MakeMessage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the queue in hand when that loses its files."""
    store = open_store()
    end = put(store, make_message("Gone"), 3).queue_offset + 1
    read = ConsumeQueue.read

    def delete_and_read(self: ConsumeQueue, start: QueueOffset, max_count: int) -> bytes:
        monkeypatch.undo()
        store.delete_topic("Gone")
        return read(self, start, max_count)

    monkeypatch.setattr(ConsumeQueue, "read", delete_and_read)
    assert store.fetch("Gone", 0, QueueOffset(1), 32) == ([], 1)
    put(store, make_message("Gone"), 3)
    monkeypatch.setattr(ConsumeQueue, "read", delete_and_read)
    found = store.queue_slice("Gone", 0, QueueOffset(end + 1), 1 << 20)
    assert found is not None
    assert (found.record_count, found.next_offset) == (0, end + 1)
