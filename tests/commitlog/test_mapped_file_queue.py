"""The files of a directory: names, sizes, gaps, truncation and deletion."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from commitbus.commitlog.errors import (
    DiskFullError,
    FlushFailedError,
    NotAStoreError,
    OutOfResourcesError,
    StoreDamagedError,
)
from commitbus.commitlog.mapped_file import FilePolicy, file_name
from commitbus.commitlog.mapped_file_queue import MappedFileQueue, detect_file_size

SIZE = 4096


@pytest.fixture
def open_queue(tmp_path: Path, faulty: Any) -> Iterator[Callable[..., MappedFileQueue]]:
    opened: list[MappedFileQueue] = []

    def open_(*, writable: bool = True, grow: bool = False) -> MappedFileQueue:
        policy = FilePolicy(writable=writable, grow=grow)
        queue = MappedFileQueue(tmp_path / "queue", SIZE, file_system=faulty, policy=policy)
        queue.load()
        opened.append(queue)
        return queue

    yield open_
    for queue in opened:
        queue.close()


def filled(queue: MappedFileQueue, count: int) -> MappedFileQueue:
    """Fill this many files, each with its number."""
    for number in range(count):
        queue.file_for_append(number * SIZE).write(0, bytes([number + 1]) * SIZE)
    return queue


def names(queue: MappedFileQueue) -> list[int]:
    return sorted(int(path.name) for path in queue.directory.iterdir())


def test_nothing_is_created_before_the_first_write(
    open_queue: Callable[..., MappedFileQueue],
) -> None:
    """An empty queue has offsets, but no file and no directory."""
    queue = open_queue()
    assert (queue.files, queue.min_offset, queue.end_of_files) == ((), 0, 0)
    assert queue.find(0) is None
    assert not queue.directory.exists()


def test_files_follow_each_other_and_are_found_again(
    open_queue: Callable[..., MappedFileQueue],
) -> None:
    """Each offset lies in one file; after loading, in the same."""
    filled(open_queue(), 3)
    queue = open_queue()
    assert names(queue) == [0, SIZE, 2 * SIZE]
    for offset, number in ((0, 1), (SIZE - 1, 1), (SIZE, 2), (3 * SIZE - 1, 3)):
        file = queue.find(offset)
        assert file is not None
        assert file.read(offset - file.base_offset, 1) == bytes([number])
    assert queue.end_of_files == 3 * SIZE
    assert queue.find(-1) is None
    assert queue.find(3 * SIZE) is None


def test_the_first_file_may_begin_anywhere(open_queue: Callable[..., MappedFileQueue]) -> None:
    """A queue that is rebuilt after retention begins where the log still has its messages."""
    queue = open_queue()
    file = queue.file_for_append(5 * SIZE + 100)
    assert file.base_offset == 5 * SIZE
    assert queue.min_offset == 5 * SIZE
    assert open_queue().min_offset == 5 * SIZE


def test_alien_files_are_refused_and_directories_passed_over(
    open_queue: Callable[..., MappedFileQueue],
) -> None:
    """RocketMQ parses every name as a number, so whatever is none does not belong here."""
    queue = filled(open_queue(), 1)
    (queue.directory / "lost+found").mkdir()
    assert len(open_queue().files) == 1
    (queue.directory / "notes.txt").touch()
    with pytest.raises(NotAStoreError, match="notes"):
        open_queue()


def test_a_missing_file_is_damage(open_queue: Callable[..., MappedFileQueue]) -> None:
    """Files are created and deleted in order; a gap means that bytes are lost."""
    queue = filled(open_queue(), 3)
    (queue.directory / file_name(SIZE)).unlink()
    with pytest.raises(StoreDamagedError) as caught:
        open_queue()
    assert caught.value.physical_offset == SIZE


@pytest.mark.parametrize("number", [0, 1])
def test_a_file_of_another_size_is_refused(
    open_queue: Callable[..., MappedFileQueue], number: int
) -> None:
    """It belongs to a store with another configuration, and would be read at wrong offsets."""
    queue = filled(open_queue(), 2)
    with (queue.directory / file_name(number * SIZE)).open("r+b") as file:
        file.truncate(SIZE - 1)
    with pytest.raises(NotAStoreError, match="4095 bytes where 4096"):
        open_queue()


@pytest.mark.parametrize("size", [0, 100])
def test_an_interrupted_creation_is_removed_only_by_a_writer(
    open_queue: Callable[..., MappedFileQueue], size: int
) -> None:
    """The process died between creating the last file and allocating it."""
    queue = filled(open_queue(), 1)
    path = queue.directory / file_name(SIZE)
    path.write_bytes(bytes(size))
    assert len(open_queue(writable=False).files) == 1
    assert path.exists()
    assert len(open_queue().files) == 1
    assert not path.exists()


def test_the_file_size_can_be_detected(
    open_queue: Callable[..., MappedFileQueue], tmp_path: Path, faulty: Any
) -> None:
    """Tools open directories whose configuration they do not have."""
    queue = open_queue()
    assert detect_file_size(queue.directory, faulty) is None
    filled(queue, 2)
    assert detect_file_size(queue.directory, faulty) == SIZE
    (tmp_path / "x").touch()
    with pytest.raises(NotAStoreError):
        detect_file_size(tmp_path, faulty)


def test_truncating_zeroes_and_removes(open_queue: Callable[..., MappedFileQueue]) -> None:
    """Behind the new end nothing is left that could be taken for data."""
    queue = filled(open_queue(), 3)
    queue.truncate(SIZE + 10)
    assert names(queue) == [0, SIZE]
    assert queue.files[1].end_of_data(0) == 10
    queue.truncate(SIZE)
    assert names(queue) == [0, SIZE]
    assert queue.files[1].end_of_data(0) == 0
    assert queue.files[0].end_of_data(0) == SIZE


def test_old_files_are_deleted_whole(open_queue: Callable[..., MappedFileQueue]) -> None:
    """A file goes when all of it is old; the last one stays as the place to go on."""
    queue = filled(open_queue(), 3)
    assert queue.delete_before(2 * SIZE - 1) == 1
    assert queue.min_offset == SIZE
    assert queue.delete_before(100 * SIZE) == 1
    assert names(queue) == [2 * SIZE]
    queue.delete()
    assert not queue.directory.exists()
    assert queue.files == ()


def test_a_file_whose_name_cannot_be_synced_is_not_left_behind(
    open_queue: Callable[..., MappedFileQueue], faulty: Any
) -> None:
    """For want of a descriptor: neither the file nor one of its own is kept."""
    queue = filled(open_queue(), 1)
    before = faulty.open_files
    faulty.failing["sync_directory"] = errno.EMFILE
    with pytest.raises(OutOfResourcesError):
        queue.new_file(SIZE)
    assert names(queue) == [0]
    assert faulty.open_files == before
    faulty.failing.clear()
    queue.add(queue.new_file(SIZE))
    assert names(queue) == [0, SIZE]


def test_a_deletion_that_failed_goes_on_with_the_same_file(
    open_queue: Callable[..., MappedFileQueue], faulty: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that forgot the rest would delete the file behind it next, and leave a gap."""
    queue = filled(open_queue(), 6)
    faulty.failing["sync_directory"] = errno.EIO
    with pytest.raises(OSError, match="EIO"):
        queue.delete_before(3 * SIZE)
    # Not even another file goes before the removal of the first one is durable.
    with pytest.raises(OSError, match="EIO"):
        queue.delete_before(3 * SIZE)
    assert names(queue) == [number * SIZE for number in range(1, 6)]
    faulty.failing.clear()
    with monkeypatch.context() as patch:
        patch.setattr(faulty, "remove", lambda path: refuse())
        with pytest.raises(OSError, match="refused"):
            queue.delete_before(3 * SIZE)
    assert queue.min_offset == SIZE
    file = queue.find(SIZE)
    assert file is not None
    assert file.read(0, 1) == bytes([2])
    assert queue.delete_before(4 * SIZE) == 3
    assert names(queue) == [4 * SIZE, 5 * SIZE]


def refuse() -> None:
    raise OSError(errno.EROFS, "refused")


def test_deleting_leaves_alien_files_and_their_directory(
    open_queue: Callable[..., MappedFileQueue],
) -> None:
    """Only our own files are ours to delete."""
    queue = filled(open_queue(), 1)
    (queue.directory / "kept").mkdir()
    queue.delete()
    assert [path.name for path in queue.directory.iterdir()] == ["kept"]


def test_a_flush_syncs_what_it_was_asked_for(
    open_queue: Callable[..., MappedFileQueue], faulty: Any
) -> None:
    """The files that overlap the range."""
    queue = filled(open_queue(), 3)
    faulty.synced.clear()
    queue.flush(SIZE, SIZE + 1)
    assert faulty.synced == [file_name(SIZE)]
    queue.flush(0, SIZE)
    assert faulty.synced[1:] == [file_name(0)]
    queue.flush(SIZE - 1, 3 * SIZE)
    assert len(faulty.synced) == 5


def test_a_new_file_is_durable_before_the_next_one_can_be_made(
    open_queue: Callable[..., MappedFileQueue], faulty: Any
) -> None:
    """A power cut that kept a file and lost the one before it would leave a gap."""
    filled(open_queue(), 2)
    assert faulty.synced == [file_name(0), "queue", file_name(SIZE), "queue"]


def test_files_that_grow_are_durable_once_another_follows(
    open_queue: Callable[..., MappedFileQueue], faulty: Any
) -> None:
    """Ten thousand queues of one file each cost no sync, and none loses an older file alone."""
    queue = open_queue(grow=True)
    filled(queue, 1)
    assert faulty.synced == []
    queue.file_for_append(SIZE)
    assert faulty.synced == [file_name(0), "queue"]
    queue.flush(0, 1)
    assert faulty.synced[2:] == ["queue", file_name(0)]


@pytest.mark.parametrize("operation", ["sync_data", "sync_directory"])
def test_a_file_that_cannot_be_made_durable_is_not_added(
    operation: str, open_queue: Callable[..., MappedFileQueue], faulty: Any
) -> None:
    """It is removed again: what it would hold might be gone after a power cut."""
    queue = filled(open_queue(), 1)
    faulty.failing[operation] = errno.EIO
    with pytest.raises(FlushFailedError):
        queue.file_for_append(SIZE)
    assert names(queue) == [0]
    faulty.failing.clear()
    assert queue.file_for_append(SIZE).base_offset == SIZE


def test_a_failed_directory_sync_is_a_failed_flush(
    open_queue: Callable[..., MappedFileQueue], faulty: Any
) -> None:
    """A file whose name may be gone after a power cut holds nothing durable."""
    queue = filled(open_queue(grow=True), 1)
    faulty.failing["sync_directory"] = errno.EIO
    with pytest.raises(FlushFailedError) as caught:
        queue.flush(0, 1)
    assert caught.value.path == queue.directory


@pytest.mark.parametrize("policy", [{"grow": False}, {"grow": True}], ids=str)
def test_names_that_a_dead_process_did_not_sync_are_synced(
    policy: dict[str, bool], open_queue: Callable[..., MappedFileQueue], faulty: Any
) -> None:
    """It may have been killed between making a file and making it durable."""
    filled(open_queue(**policy), 2).close()
    queue = open_queue(**policy)
    faulty.synced.clear()
    queue.flush(0, 1)
    assert faulty.synced == ["queue", file_name(0)]


@pytest.mark.parametrize(
    ("drop", "kept"),
    [
        (lambda queue: queue.truncate(SIZE // 2), 0),
        (lambda queue: queue.delete_before(3 * SIZE), 3 * SIZE),
    ],
    ids=["the last", "the first"],
)
def test_files_are_dropped_one_by_one(
    open_queue: Callable[..., MappedFileQueue],
    faulty: Any,
    drop: Callable[[MappedFileQueue], object],
    kept: int,
) -> None:
    """A power cut in between leaves no gap: each removal is durable before the next."""
    queue = filled(open_queue(), 4)
    faulty.synced.clear()
    drop(queue)
    assert names(queue) == [kept]
    assert faulty.synced == ["queue"] * 3


def test_every_last_file_whose_size_a_power_cut_took_is_removed(
    open_queue: Callable[..., MappedFileQueue], tmp_path: Path
) -> None:
    """Not only the very last: there may be two that nothing was written to."""
    queue = filled(open_queue(), 1)
    queue.close()
    for base_offset in (SIZE, 2 * SIZE):
        (queue.directory / file_name(base_offset)).touch()
    again = open_queue()
    again.load()
    assert names(again) == [0]


def test_no_file_is_added_when_the_disk_is_full(
    open_queue: Callable[..., MappedFileQueue], faulty: Any
) -> None:
    """The queue is as before, and goes on when there is room."""
    queue = filled(open_queue(), 1)
    faulty.failing["allocate"] = errno.ENOSPC
    with pytest.raises(DiskFullError):
        queue.file_for_append(SIZE)
    assert names(queue) == [0]
    faulty.failing.clear()
    assert queue.file_for_append(SIZE).base_offset == SIZE
