"""The note of deleted topics: durable, bounded, fitted to the log."""

from __future__ import annotations

import errno
import json
import os
import zlib
from pathlib import Path
from typing import Any

import pytest

from commitbus.commitlog.errors import DiskFullError
from commitbus.commitlog.file_system import RealFileSystem
from commitbus.commitlog.types import PhysicalOffset, QueueOffset
from commitbus.consumequeue.consume_queue_store import ConsumeQueueStore
from commitbus.consumequeue.deleted_topics import DELETED_TOPICS_PATH, DeletedTopics
from tests.consumequeue.test_consume_queue_store import message

FILES = RealFileSystem()


def read(store: Path) -> DeletedTopics:
    """What the next start finds."""
    return DeletedTopics(store, FILES)


def note(deleted: DeletedTopics, topic: str, before: int, *ends: int) -> None:
    """Note a deletion; the ends are those of queues 0, 1, ..."""
    deleted.note(topic, PhysicalOffset(before), dict(enumerate(map(QueueOffset, ends))))


def test_a_note_survives(tmp_path: Path) -> None:
    """Any name; the later deletion of a topic replaces the one before."""
    deleted = read(tmp_path)
    assert deleted.is_new
    note(deleted, "T", 100, 3, 7)
    note(deleted, "Thé\ud800/..", 200, 1)
    note(deleted, "T", 300, 3, 8)
    assert not deleted.is_new
    for found in (deleted, read(tmp_path)):
        assert not found.is_new
        assert found.topics() == ["T", "Thé\ud800/.."]
        assert (found.before("T"), found.before("Thé\ud800/.."), found.before("U")) == (300, 200, 0)
        assert found.queue_ends() == {("T", 0): 3, ("T", 1): 8, ("Thé\ud800/..", 0): 1}
        assert [found.queue_end("T", i) for i in range(3)] == [3, 8, 0]
        assert found.queue_end("U", 0) == 0


def test_a_note_lasts_as_long_as_there_is_something_to_note(tmp_path: Path) -> None:
    """Neither for a topic without messages, nor once the log has nothing from before."""
    deleted = read(tmp_path)
    note(deleted, "Empty", 50)
    assert deleted.is_new
    note(deleted, "Old", 100, 1)
    note(deleted, "New", 200, 2)
    deleted.settle(PhysicalOffset(100), PhysicalOffset(150))
    assert read(tmp_path).topics() == ["Old", "New"]
    deleted.save()
    for found in (deleted, read(tmp_path)):
        assert found.topics() == ["New"]
        assert found.before("New") == 150


def test_a_full_disk_leaves_the_note_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In memory too: the topic is not deleted."""
    deleted = read(tmp_path)
    note(deleted, "T", 100, 3)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.pwrite", full)
        with pytest.raises(DiskFullError) as caught:
            note(deleted, "U", 200, 1)
    assert caught.value.path == tmp_path / DELETED_TOPICS_PATH
    for found in (deleted, read(tmp_path)):
        assert found.topics() == ["T"]
    note(deleted, "U", 200, 1)
    assert read(tmp_path).topics() == ["T", "U"]


def test_a_file_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    """It is one document. The next deletion writes it anew."""
    topics = {
        "T": {"before": 300, "queue_ends": {"0": 3, "1": 8}},
        "Thé": {"before": 200, "queue_ends": {"0": 1}},
    }
    checked = json.dumps(topics, sort_keys=True, separators=(",", ":")).encode()
    path = tmp_path / DELETED_TOPICS_PATH
    path.parent.mkdir()
    path.write_text(json.dumps({"crc32": zlib.crc32(checked), "topics": topics}, indent=1))
    deleted = read(tmp_path)
    assert deleted.topics() == ["T", "Thé"]
    assert deleted.queue_ends() == {("T", 0): 3, ("T", 1): 8, ("Thé", 0): 1}
    note(deleted, "U", 400, 5)
    assert read(tmp_path).topics() == ["T", "Thé", "U"]


def test_a_deletion_costs_the_same_however_many_are_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It writes a line of its own, and syncs once."""
    written: list[int] = []
    pwrite = os.pwrite

    def counting(fd: int, data: bytes, position: int) -> int:
        written.append(len(data))
        return pwrite(fd, data, position)

    deleted = read(tmp_path)
    note(deleted, "first", 1, 1)
    with monkeypatch.context() as patch:
        patch.setattr("os.fdatasync", lambda _: None)
        for n in range(2_000):
            note(deleted, f"topic {n}", 2 + n, 1)
    monkeypatch.setattr("os.pwrite", counting)
    note(deleted, "last", 3_000, 1)
    assert len(written) == 1
    assert written[0] < 200


def test_topics_that_are_deleted_again_and_again_do_not_make_the_file_grow(tmp_path: Path) -> None:
    """It is written anew when most of its lines do not count any more."""
    deleted = read(tmp_path)
    for n in range(1_000):
        note(deleted, f"topic {n % 3}", 1 + n, 1)
    assert (tmp_path / DELETED_TOPICS_PATH).stat().st_size < 20_000
    assert read(tmp_path).before("topic 0") == 1_000


def test_forgetting_topics_syncs_the_directory_of_queues_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for each: there may be 50,000."""
    directory = tmp_path / "consumequeue"
    store = ConsumeQueueStore(directory, 200, file_system=FILES)
    store.load()
    topics = [f"T{n}" for n in range(20)]
    for topic in topics:
        store.put([message(0, 0, topic=topic)])
        note(store.deleted, topic, 1000, 1)
    synced: list[Path] = []
    monkeypatch.setattr(RealFileSystem, "sync_directory", lambda _, path: synced.append(path))
    store.settle_deleted(PhysicalOffset(2000), PhysicalOffset(3000))
    assert store.queues() == []
    assert synced.count(directory) == 1
    assert store.deleted.topics() == []
    store.close()
