"""One file: reads that meet its end, room on the disk, zeros, the mapping of the log."""

from __future__ import annotations

import errno
import gc
import mmap
import resource
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from commitbus.commitlog import file_system
from commitbus.commitlog.descriptor_cache import DescriptorCache
from commitbus.commitlog.errors import (
    DiskFullError,
    FlushFailedError,
    OffsetOutOfRangeError,
    OutOfResourcesError,
    ReadFailedError,
    StoreClosedError,
    WriteFailedError,
)
from commitbus.commitlog.mapped_file import HELD_BYTES, FilePolicy, MappedFile, file_name

SIZE = 1 << 20
GROWING = FilePolicy(grow=True)


@pytest.fixture(params=[FilePolicy(), GROWING, None], ids=["log", "queue", "many queues"])
def policy(request: pytest.FixtureRequest) -> FilePolicy:
    value: FilePolicy | None = request.param
    return value or replace(GROWING, descriptors=DescriptorCache(1))


@pytest.fixture
def file(tmp_path: Path, faulty: Any, policy: FilePolicy) -> Iterator[MappedFile]:
    file = MappedFile.create(
        tmp_path / file_name(3 * SIZE), SIZE, file_system=faulty, policy=policy
    )
    yield file
    file.close()
    assert faulty.open_files == 0


def blocks_of(file: MappedFile) -> int:
    return file.path.stat().st_blocks * 512


def test_what_is_written_is_in_the_file(file: MappedFile) -> None:
    """Writes go anywhere, and the size on disk is always full."""
    file.write(0, b"helloworld")
    file.write(100, b"!")
    file.write(0, b"J")
    assert file.read(0, 10) == file.read_cached(0, 10) == b"Jelloworld"
    assert file.base_offset == 3 * SIZE
    assert file.path.stat().st_size == SIZE
    file.flush()
    assert file.path.read_bytes()[:101] == b"Jelloworld" + bytes(90) + b"!"


def test_an_existing_file_is_opened_as_it_is(
    file: MappedFile, faulty: Any, policy: FilePolicy
) -> None:
    """Opening changes no bytes."""
    file.write(0, b"kept")
    again = MappedFile(file.path, SIZE, file_system=faulty, policy=policy)
    assert again.read(0, 5) == b"kept\0"
    again.close()


def test_log_files_are_allocated_at_once_and_queue_files_as_they_grow(
    tmp_path: Path, faulty: Any
) -> None:
    """A hole in the log would kill the process on a full disk; 10,000 full queues the disk."""
    whole = MappedFile.create(
        tmp_path / file_name(0), SIZE, file_system=faulty, policy=FilePolicy()
    )
    assert blocks_of(whole) >= SIZE
    growing = MappedFile.create(tmp_path / file_name(1), SIZE, file_system=faulty, policy=GROWING)
    assert blocks_of(growing) <= 4096
    for number in range(410):
        growing.write(20 * number, b"x" * 20)
    growing.write(SIZE - 1, b"x")
    growing.flush()
    assert blocks_of(growing) <= 4 * 8200
    growing.reserve()
    assert blocks_of(growing) >= SIZE
    whole.close()
    growing.close()


def test_a_deleted_file_is_not_read_any_more(file: MappedFile) -> None:
    """A read that comes later is refused as one of bytes that are not stored."""
    file.write(0, b"precious")
    file.delete()
    assert not file.path.exists()
    for read in (file.read, file.read_cached):
        with pytest.raises(OffsetOutOfRangeError):
            read(0, 1)
    with pytest.raises(OffsetOutOfRangeError):
        file.write(0, b"x")


def test_a_closed_file_is_not_read_any_more(file: MappedFile) -> None:
    """Nor written; flushing it does nothing."""
    file.close()
    with pytest.raises(StoreClosedError):
        file.read(0, 1)
    file.flush()


def test_a_read_under_way_ends_well_though_the_file_is_deleted(
    file: MappedFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The descriptor lives until the read has ended, and its number is nobody else's meanwhile."""
    file.write(0, b"precious")
    descriptor = file._descriptor()
    file.delete()
    gc.collect()
    assert descriptor.pread(8, 0) == b"precious"


def test_what_the_disk_does_not_give_back_is_an_error_of_the_read(
    file: MappedFile, faulty: Any
) -> None:
    """It names the file and the position; other reads and writes go on."""
    file.write(0, b"precious")
    faulty.failing["pread"] = errno.EIO
    for read in (file.read, file.read_cached, lambda at, _: file.end_of_data(at)):
        with pytest.raises(ReadFailedError) as caught:
            read(3, 2)
        assert (caught.value.path, caught.value.position) == (file.path, 3)
    faulty.failing.clear()
    assert file.read(3, 2) == b"ci"


def test_what_the_disk_does_not_take_is_an_error_of_the_write(
    file: MappedFile, faulty: Any
) -> None:
    """A partly written page must be read first, and may not come back."""
    faulty.failing["pwrite"] = errno.EIO
    with pytest.raises(WriteFailedError) as caught:
        file.write(7, b"x")
    assert (caught.value.path, caught.value.position) == (file.path, 7)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_process_without_descriptors_refuses_work_and_loses_nothing(
    tmp_path: Path, faulty: Any, number: int
) -> None:
    """To open a file for a sync and not be able to is no failed sync (it was taken for one)."""
    policy = FilePolicy(grow=True, descriptors=DescriptorCache(1))
    first, second = (
        MappedFile.create(tmp_path / file_name(at), SIZE, file_system=faulty, policy=policy)
        for at in (0, SIZE)
    )
    first.write(0, b"first")
    second.write(0, b"second")
    faulty.failing["open"] = number
    operations = (first.flush, lambda: first.read(0, 1), lambda: first.write(0, b"x"))
    for operation in operations:
        with pytest.raises(OutOfResourcesError) as caught:
            operation()
        assert caught.value.path == first.path
    faulty.failing.clear()
    faulty.synced.clear()
    first.flush()
    assert faulty.synced == [first.path.name]
    first.close()
    second.close()


def test_the_end_of_the_data_is_found_and_zeroed(file: MappedFile) -> None:
    """Recovery asks for the last non-zero byte, and wants only zeros behind the end."""
    assert file.end_of_data(0) == 0
    file.write(10, b"a")
    file.write(SIZE - 3, b"b")
    assert file.end_of_data(0) == file.end_of_data(11) == SIZE - 2
    assert [start for start, _ in file.data_chunks(0)][-1] <= SIZE - 3
    file.zero_from(11)
    assert file.end_of_data(0) == 11
    assert file.end_of_data(11) == 11
    assert not any(file.read(11, SIZE - 11))


def test_looking_for_the_end_reads_nothing_that_was_never_written(
    tmp_path: Path, faulty: Any
) -> None:
    """Two small pieces in a large file: the holes around them are passed over."""
    path = tmp_path / file_name(0)
    with path.open("wb") as plain:
        plain.write(b"a")
        plain.seek(SIZE)
        plain.write(b"b")
        plain.truncate(4 * SIZE)
    file = MappedFile(path, 4 * SIZE, file_system=faulty, policy=GROWING)
    assert list(file.data_chunks(1))[-1][0] == SIZE
    assert file.end_of_data(0) == SIZE + 1
    # Whole blocks, of which the largest on any file system that is used have 64 KiB.
    assert faulty.bytes_read <= 4 * (64 << 10)
    file.close()


def test_zeroing_takes_no_room_on_the_disk(tmp_path: Path, faulty: Any) -> None:
    """A cut takes one unit from each of 10,000 queues: that must not allocate their files."""
    file = MappedFile.create(tmp_path / file_name(0), SIZE, file_system=faulty, policy=GROWING)
    file.write(100, b"x" * 20)
    file.close()
    file = MappedFile(file.path, SIZE, file_system=faulty, policy=GROWING)
    assert file.zero_from(100)
    assert not file.zero_from(100)
    file.flush()
    assert blocks_of(file) <= 4096
    file.close()


def test_warming_stores_zeros(file: MappedFile) -> None:
    """It is a write like any other, so it may only touch what the caller owns."""
    file.map()[:100] = b"x" * 100
    file.warm(40, 20)
    assert file.read(0, 100) == b"x" * 40 + bytes(20) + b"x" * 40


def test_the_mapping_and_the_descriptor_show_the_same_bytes(file: MappedFile) -> None:
    """Readers see what the log appends; the bytes stay when the mapping ends."""
    buffer = file.map()
    buffer[10:13] = b"new"
    assert file.read(10, 3) == b"new"
    file.write(10, b"old")
    assert bytes(buffer[10:13]) == b"old"
    buffer[10:13] = b"new"
    file.unmap()
    assert file.read(10, 3) == b"new"
    assert blocks_of(file) >= SIZE


def test_a_file_that_is_mapped_keeps_its_descriptor(tmp_path: Path, faulty: Any) -> None:
    """A failed write-back must be reported to the log even if somebody else has heard of it."""
    policy = FilePolicy(descriptors=DescriptorCache(1))
    files = [
        MappedFile.create(tmp_path / file_name(at), SIZE, file_system=faulty, policy=policy)
        for at in range(0, 3 * SIZE, SIZE)
    ]
    files[0].map()
    for file in files:
        file.write(0, b"x")
    assert faulty.open_files == 2
    faulty.failing["open"] = errno.EMFILE
    files[0].flush()
    for file in files:
        file.close()


def test_stores_to_held_bytes_meet_no_page_fault(tmp_path: Path) -> None:
    """After a flush pages are clean and may be evicted; holding makes them dirty again."""
    file = MappedFile.create(
        tmp_path / file_name(0),
        SIZE,
        file_system=file_system.RealFileSystem(),
        policy=FilePolicy(),
    )
    buffer = file.map()
    file.warm(0, SIZE)
    file.flush()
    if file.hold(0, 10, SIZE) < HELD_BYTES:
        pytest.skip("this kernel cannot populate a mapping")
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    for position in range(0, HELD_BYTES, mmap.PAGESIZE):
        buffer[position] = 1
    assert resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before < 4
    del buffer
    file.close()


@pytest.mark.parametrize("function", ["populate_memory", "is_resident"])
def test_what_is_not_in_memory_is_read_before_the_log_stores_to_it(
    file: MappedFile, faulty: Any, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    """A page that the disk does not give back is then an error; a store to it would be a SIGBUS."""
    file.map()
    monkeypatch.setattr(file_system, function, lambda *_: False)
    end = 100 + 2 * HELD_BYTES
    assert file.hold(100, end, SIZE) >= end
    assert faulty.bytes_read >= HELD_BYTES
    faulty.failing["pread"] = errno.EIO
    with pytest.raises(ReadFailedError) as caught:
        file.hold(100, end, SIZE)
    assert caught.value.path == file.path


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_leaves_no_file_behind(tmp_path: Path, faulty: Any, number: int) -> None:
    """A partial file would be refused at the next start, by RocketMQ too."""
    faulty.failing["allocate"] = number
    path = tmp_path / file_name(0)
    with pytest.raises(DiskFullError) as caught:
        MappedFile.create(path, SIZE, file_system=faulty, policy=FilePolicy())
    assert (caught.value.path, caught.value.needed_bytes) == (path, SIZE)
    assert not path.exists()
    assert faulty.open_files == 0


def test_other_errors_of_creation_pass_through(tmp_path: Path, faulty: Any) -> None:
    """Errors other than a full disk keep their type, and leave no file behind."""
    faulty.failing["allocate"] = errno.EROFS
    with pytest.raises(OSError, match="EROFS"):
        MappedFile.create(tmp_path / file_name(0), SIZE, file_system=faulty, policy=FilePolicy())
    assert list(tmp_path.iterdir()) == []
    assert faulty.open_files == 0


def test_growing_on_a_full_disk_is_an_error_and_can_be_repeated(
    tmp_path: Path, faulty: Any
) -> None:
    """A queue that cannot grow stays as it is, and grows once there is room."""
    file = MappedFile.create(tmp_path / file_name(0), SIZE, file_system=faulty, policy=GROWING)
    file.write(0, b"x" * 4096)
    faulty.failing["pwrite"] = errno.ENOSPC
    with pytest.raises(DiskFullError):
        file.write(4096, b"y")
    faulty.failing.clear()
    file.write(4096, b"y")
    assert file.read(4095, 2) == b"xy"
    file.close()


def test_a_failed_sync_names_the_file(file: MappedFile, faulty: Any) -> None:
    """The operator must learn which disk it is."""
    faulty.failing["sync_data"] = errno.EIO
    with pytest.raises(FlushFailedError) as caught:
        file.flush()
    assert caught.value.path == file.path
    assert caught.value.cause.errno == errno.EIO


def test_flushing_a_deleted_file_is_no_failure(file: MappedFile, faulty: Any) -> None:
    """Retention may delete a file while a flush of its queue is under way."""
    file.delete()
    faulty.failing["sync_data"] = errno.EIO
    file.flush()
