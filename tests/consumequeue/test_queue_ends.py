"""The note of where queues end that have no message any more."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from commitbus.commitlog.errors import DiskFullError, NotAStoreError
from commitbus.commitlog.file_system import RealFileSystem
from commitbus.commitlog.types import DispatchRequest, PhysicalOffset, QueueOffset
from commitbus.consumequeue.consume_queue_store import ConsumeQueueStore
from commitbus.consumequeue.queue_ends import QUEUE_ENDS_PATH, QueueEnds
from tests.failing_files import FailingFileSystem

FILES = RealFileSystem()
ENDS = {("T", 0): QueueOffset(5), ("T", 10): QueueOffset(1), ("ü", 2): QueueOffset(1 << 40)}


def queues(store: Path) -> ConsumeQueueStore:
    """Open the queues of a store."""
    opened = ConsumeQueueStore(store / "consumequeue", 200, file_system=FILES)
    opened.load()
    return opened


def message(number: int, topic: str, queue_offset: int) -> DispatchRequest:
    """Return a message of 100 bytes."""
    return DispatchRequest(
        PhysicalOffset(100 * number), 100, topic, 0, QueueOffset(queue_offset), 0, 0, 0, "", "", ""
    )


def test_what_is_noted_is_read_again(tmp_path: Path) -> None:
    """An unchanged note is not written."""
    note = QueueEnds(tmp_path, FILES)
    assert note.ends == {}
    note.save({})
    assert not (tmp_path / QUEUE_ENDS_PATH).exists()
    note.save(ENDS)
    before = (tmp_path / QUEUE_ENDS_PATH).stat()
    again = QueueEnds(tmp_path, FILES)
    assert again.ends == note.ends == ENDS
    again.save(ENDS)
    assert (tmp_path / QUEUE_ENDS_PATH).stat().st_mtime_ns == before.st_mtime_ns


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b"\xff", b'{"crc32": 1, "queue_ends": {}}'])
def test_a_damaged_note_is_named(tmp_path: Path, data: bytes) -> None:
    """It is not taken for an empty one."""
    path = tmp_path / QUEUE_ENDS_PATH
    path.parent.mkdir()
    path.write_bytes(data)
    with pytest.raises(NotAStoreError, match="it is damaged"):
        QueueEnds(tmp_path, FILES)


def test_a_note_that_finds_no_room_stays_as_it_was(tmp_path: Path) -> None:
    """The error names the file."""
    files: Any = FailingFileSystem()
    note = QueueEnds(tmp_path, files)
    note.save(ENDS)
    files.fails["pwrite"] = errno.ENOSPC
    with pytest.raises(DiskFullError) as caught:
        note.save({})
    assert caught.value.path == tmp_path / QUEUE_ENDS_PATH
    assert note.ends == QueueEnds(tmp_path, FILES).ends == ENDS


def test_queues_without_a_message_are_noted(tmp_path: Path) -> None:
    """The note of a missing queue stays; that of a deleted topic goes."""
    store = queues(tmp_path)
    store.put([message(n, "AB"[n % 2], n // 2) for n in range(8)])
    store.note_ends(PhysicalOffset(700))
    assert QueueEnds(tmp_path, FILES).ends == {("A", 0): 4}
    store.note_ends(PhysicalOffset(800))
    store.close()
    assert QueueEnds(tmp_path, FILES).ends == {("A", 0): 4, ("B", 0): 4}
    for path in sorted((tmp_path / "consumequeue").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    store = queues(tmp_path)
    assert store.queue_ends() == {("A", 0): 4, ("B", 0): 4}
    store.put([message(8, "B", 4)])
    store.note_ends(PhysicalOffset(800))
    assert QueueEnds(tmp_path, FILES).ends == {("A", 0): 4}
    assert store.queue_ends() == {("A", 0): 4, ("B", 0): 5}
    store.delete_topic("A", lambda: (PhysicalOffset(900), {0: QueueOffset(4)}))
    assert QueueEnds(tmp_path, FILES).ends == {}
    assert store.queue_ends() == {("A", 0): 4, ("B", 0): 5}
    store.put([message(9, "A", 4), message(10, "C", 1)])
    assert [store.begins_late(topic, 0) for topic in "AC"] == [False, True]
    store.close()


def test_a_queue_that_rocketmq_began_anew_ends_where_its_units_do(tmp_path: Path) -> None:
    """It knows nothing of the note."""
    QueueEnds(tmp_path, FILES).save(ENDS)
    store = queues(tmp_path)
    store.put([message(1, "T", 0)])
    assert store.queue_ends()["T", 0] == 1
    store.close()


def test_a_queue_that_could_not_begin_keeps_its_note(tmp_path: Path) -> None:
    """It has no unit that tells its end."""
    QueueEnds(tmp_path, FILES).save({("T", 0): QueueOffset(5)})
    files: Any = FailingFileSystem()
    store = ConsumeQueueStore(tmp_path / "consumequeue", 200, file_system=files)
    store.load()
    files.fails["make_directories"] = errno.ENOSPC
    with pytest.raises(DiskFullError):
        store.put([message(0, "T", 5)])
    files.fails.clear()
    store.note_ends(PhysicalOffset(0))
    assert QueueEnds(tmp_path, FILES).ends == {("T", 0): 5}
    store.close()


def test_a_cut_queue_without_a_visible_message_keeps_its_end(tmp_path: Path) -> None:
    """Nothing but its hidden units tells it, where retention found no room for a note."""
    store = queues(tmp_path)
    store.put([message(n, "T", n) for n in range(8)])
    store.delete_before(PhysicalOffset(500))
    store.truncate(PhysicalOffset(500))
    assert store.queue_ends() == {("T", 0): 5}
    store.put([message(n, "T", n) for n in range(5, 9)])
    store.close()
    store = queues(tmp_path)
    queue = store.queue("T", 0)
    assert queue is not None
    assert [unit.physical_offset for unit in queue.units(QueueOffset(5), 9)] == [500, 600, 700, 800]
    store.delete_before(PhysicalOffset(900))
    store.truncate(PhysicalOffset(900))
    assert store.queue_ends() == {("T", 0): 9}
    store.close()
