"""Queues in a process that may open no more files for a while: the work is put off, not lost."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from commitbus.commitlog.errors import OutOfResourcesError, ReadFailedError
from commitbus.commitlog.file_system import RealFileSystem
from commitbus.commitlog.mapped_file import FilePolicy
from commitbus.commitlog.types import PhysicalOffset, QueueOffset
from commitbus.consumequeue.consume_queue import ConsumeQueue
from commitbus.consumequeue.consume_queue_store import ConsumeQueueStore
from commitbus.consumequeue.queue_states import QueueState
from tests.consumequeue.test_consume_queue_store import message, open_store, the_queue
from tests.failing_files import FailingFileSystem
from tests.unreadable_files import UnreadableFileSystem


def test_too_few_descriptors_are_no_failed_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next flush syncs every name that this one did not come to."""
    store = open_store(tmp_path / "cq")
    store.put([message(0, 0)])
    failing: set[Path] = {tmp_path / "cq" / "T" / "0"}
    synced: set[Path] = set()

    def sync_directory(_: RealFileSystem, path: Path) -> None:
        if path in failing:
            raise OSError(errno.EMFILE, "Too many open files")
        synced.add(path)

    monkeypatch.setattr(RealFileSystem, "sync_directory", sync_directory)
    for path in (tmp_path / "cq" / "T" / "0", tmp_path / "cq"):
        failing = {path}
        with pytest.raises(OutOfResourcesError):
            store.flush()
    failing = set()
    store.flush()
    assert synced == {tmp_path / "cq" / "T" / "0", tmp_path / "cq" / "T", tmp_path / "cq", tmp_path}
    store.close()


def test_a_queue_that_cannot_be_read_keeps_no_other_from_being_trimmed(tmp_path: Path) -> None:
    """It is named when the others are done."""
    files = UnreadableFileSystem()
    store = ConsumeQueueStore(tmp_path / "cq", 200, file_system=files)
    store.load()
    store.put([message(n, n // 2, topic="AB"[n % 2]) for n in range(20)])
    bad = tmp_path / "cq" / "A" / "0" / ("0" * 20)
    files.spoil(bad, 0)
    with pytest.raises(ReadFailedError) as caught:
        store.delete_before(PhysicalOffset(1000))
    assert caught.value.path == bad
    others = store.queue("B", 0)
    assert others is not None
    assert others.min_offset == 5
    store.close()


def test_queues_that_a_flush_did_not_come_to_are_left_for_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flush takes a few queues at a time; descriptors may run out before it comes to the last."""
    store = open_store(tmp_path / "cq")
    count = 200
    store.put([message(n, 0, queue_id=n) for n in range(count)])
    flushed: set[int] = set()
    flush, fails = ConsumeQueue.flush, True

    def flush_some(queue: ConsumeQueue, state: QueueState | None = None) -> None:
        if fails and queue.queue_id == 10:
            raise OutOfResourcesError(tmp_path, OSError(errno.EMFILE, "Too many open files"))
        flush(queue, state)
        flushed.add(queue.queue_id)

    monkeypatch.setattr(ConsumeQueue, "flush", flush_some)
    with pytest.raises(OutOfResourcesError):
        store.flush()
    fails = False
    store.flush()
    assert flushed == set(range(count))
    flushed.clear()
    store.put([message(count + n, 1, queue_id=n) for n in range(count)])
    store.flush()
    assert flushed == set(range(count))
    store.close()


@pytest.mark.parametrize(
    ("number", "error"), [(errno.EMFILE, OutOfResourcesError), (errno.EIO, ReadFailedError)]
)
def test_a_queue_whose_files_cannot_be_opened_yet_is_read_later(
    tmp_path: Path, number: int, error: type[Exception]
) -> None:
    """A start has left its files alone: the first reader meets what the start would have met."""
    file_system = FailingFileSystem()
    store = open_store(tmp_path / "cq", file_system)
    store.put([message(n, n) for n in range(3)])
    state = the_queue(store).state()
    store.close()
    queue = ConsumeQueue(
        "T", 0, tmp_path / "cq" / "T" / "0", 200,
        file_system=file_system,
        policy=FilePolicy(grow=True),
    )  # fmt: skip
    queue.rest(state, is_doubtful=False)
    file_system.fails = {"list_names": number}
    with pytest.raises(error):
        queue.units(QueueOffset(0), 3)
    file_system.fails = {}
    assert len(queue.units(QueueOffset(0), 3)) == 3
    queue.close()


@pytest.mark.parametrize("log_begins_at", [600, 1200])
def test_files_that_are_gone_since_the_checkpoint_are_not_looked_for(
    tmp_path: Path, log_begins_at: int
) -> None:
    """A crash came between the removal of a file and the next checkpoint."""
    store = open_store(tmp_path / "cq")
    store.put([message(n, n) for n in range(15)])
    store.delete_before(PhysicalOffset(600))
    state = the_queue(store).state()
    assert state.min_offset == 6
    store.close()
    directory = tmp_path / "cq" / "T" / "0"
    (directory / f"{0:020}").unlink()
    queue = ConsumeQueue(
        "T", 0, directory, 200, file_system=RealFileSystem(), policy=FilePolicy(grow=True)
    )
    queue.rest(state, is_doubtful=False)
    queue.delete_before(PhysicalOffset(log_begins_at + 1))
    assert queue.min_offset == max(10, log_begins_at // 100 + 1)
    offsets = [unit.physical_offset for unit in queue.units(queue.min_offset, 10)]
    assert offsets == [100 * number for number in range(queue.min_offset, 15)]
    queue.close()
