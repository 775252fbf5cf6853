"""Topics are deleted although files of their queues cannot be read or removed."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from commitbus.commitlog.errors import OutOfResourcesError
from commitbus.commitlog.file_system import RealFileSystem
from commitbus.commitlog.types import PhysicalOffset, QueueOffset
from commitbus.consumequeue.deleted_topics import DeletedTopics
from tests.consumequeue.test_consume_queue_store import message, open_store, the_queue
from tests.failing_files import FailingFileSystem

QUEUES = 3
COUNT = 25
"""Messages of each queue: three files."""
LOG_MESSAGES = QUEUES * COUNT + 1
ENDS = {0: QueueOffset(COUNT + 1), 1: QueueOffset(COUNT), 2: QueueOffset(COUNT)}


def log_end() -> tuple[PhysicalOffset, dict[int, QueueOffset]]:
    """Return the log's end and the queues'. The first one has a message that no queue has yet."""
    return PhysicalOffset(LOG_MESSAGES * 100), ENDS


def filled_store(directory: Path, file_system: Any) -> Any:
    """A store with a topic of some queues, all of it on the disk."""
    store = open_store(directory, file_system)
    store.put([message(n, n // QUEUES, queue_id=n % QUEUES) for n in range(QUEUES * COUNT)])
    store.flush()
    return store


def test_a_topic_is_deleted_though_its_queues_cannot_be_read(tmp_path: Path) -> None:
    """Reput passes over a message from before the deletion; the one behind it must find its place.

    It did not fit into a queue that was still there, and the store failed for good.
    """
    file_system = FailingFileSystem()
    store = filled_store(tmp_path / "cq", file_system)
    file_system.fails = {"pread": errno.EIO}
    store.delete_topic("T", log_end)
    assert store.queues() == []
    late = message(LOG_MESSAGES - 1, COUNT)
    store.put([late, message(LOG_MESSAGES, COUNT + 1)])
    queue = the_queue(store)
    assert (queue.min_offset, queue.max_offset) == (COUNT + 1, COUNT + 2)
    store.close()


@pytest.mark.parametrize("operation", ["remove", "sync_directory"])
def test_what_cannot_be_removed_of_a_deleted_topic_is_seen_by_nobody_and_removed_later(
    tmp_path: Path, operation: str
) -> None:
    """By the first message of a new queue of that name: a start would find a gap between files."""
    file_system = FailingFileSystem()
    store = filled_store(tmp_path / "cq", file_system)
    write = DeletedTopics.write

    def write_then_fail(self: DeletedTopics, *arguments: Any) -> Any:
        deletion = write(self, *arguments)
        file_system.fails = {operation: errno.EMFILE}
        return deletion

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeletedTopics, "write", write_then_fail)
        with pytest.raises((OSError, OutOfResourcesError), match="Too many open files"):
            store.delete_topic("T", log_end)
    assert store.queues() == []
    assert store.noted_end("T", 0) == COUNT + 1
    file_system.fails = {}
    # Its first message is in the file after the next.
    store.put([message(LOG_MESSAGES + 90, COUNT + 20)])
    assert [path.name for path in (tmp_path / "cq" / "T" / "0").iterdir()] == [f"{800:020}"]
    store.flush()
    store.close()
    reopened = open_store(tmp_path / "cq")
    assert the_queue(reopened).max_offset == COUNT + 21
    reopened.close()


def test_a_second_deletion_removes_what_the_first_could_not(tmp_path: Path) -> None:
    """One file that cannot be removed keeps no other."""
    file_system = FailingFileSystem()
    store = filled_store(tmp_path / "cq", file_system)
    remove = RealFileSystem.remove
    stuck = tmp_path / "cq" / "T" / "1" / f"{400:020}"

    def remove_but_one(self: RealFileSystem, path: Path) -> None:
        if path == stuck:
            raise OSError(errno.EIO, "stuck")
        remove(self, path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RealFileSystem, "remove", remove_but_one)
        with pytest.raises(OSError, match="stuck"):
            store.delete_topic("T", log_end)
    assert [path.name for path in (tmp_path / "cq" / "T").iterdir()] == ["1"]
    store.delete_topic("T", log_end)
    assert list((tmp_path / "cq").iterdir()) == []
    store.close()


def test_messages_that_came_behind_a_deletion_stay_though_nothing_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log has told where the queue goes on: nobody has to look for it among the units."""
    file_system = FailingFileSystem()
    store = filled_store(tmp_path / "cq", file_system)
    write = DeletedTopics.write
    later = [message(LOG_MESSAGES - 1, COUNT), message(LOG_MESSAGES, COUNT + 1)]

    def write_then_fail(self: DeletedTopics, *arguments: Any) -> Any:
        deletion = write(self, *arguments)
        store.put([*later, message(LOG_MESSAGES + 1, 0, queue_id=7)])
        file_system.fails = {"pread": errno.EIO}
        return deletion

    monkeypatch.setattr(DeletedTopics, "write", write_then_fail)
    store.delete_topic("T", log_end)
    bounds = {key: store.bounds(*key) for key in store.queues()}
    assert bounds == {("T", 0): (COUNT + 1, COUNT + 2), ("T", 7): (0, 1)}
    file_system.fails = {}
    assert the_queue(store).unit(QueueOffset(COUNT + 1)).physical_offset == later[1].physical_offset
    assert [path.name for path in (tmp_path / "cq" / "T" / "0").iterdir()] == [f"{400:020}"]
    store.close()
