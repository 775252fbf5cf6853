"""One mapped file: views that outlive it, room on the disk, zeros."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from commitbus.commitlog.errors import (
    DiskFullError,
    FlushFailedError,
    OffsetOutOfRangeError,
    StoreClosedError,
)
from commitbus.commitlog.mapped_file import FilePolicy, MappedFile, file_name
from commitbus.commitlog.mapping_cache import MappingCache

SIZE = 1 << 20
GROWING = FilePolicy(keep_open=False, random_access=True, grow=True)


@pytest.fixture(params=[FilePolicy(), GROWING, None], ids=["log", "queue", "many queues"])
def policy(request: pytest.FixtureRequest) -> FilePolicy:
    value: FilePolicy | None = request.param
    return value or replace(GROWING, mappings=MappingCache(1))


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
    """Appends go behind each other, writes anywhere, and the size on disk is always full."""
    assert file.append(b"hello") == 0
    assert file.append(b"world") == 5
    file.write_at(100, b"!")
    file.write_at(0, b"J")
    assert file.wrote_position == 101
    assert file.base_offset == 3 * SIZE
    assert file.path.stat().st_size == SIZE
    file.flush()
    assert file.path.read_bytes()[:101] == b"Jelloworld" + bytes(90) + b"!"


def test_an_existing_file_is_opened_as_it_is(
    file: MappedFile, faulty: Any, policy: FilePolicy
) -> None:
    """Opening neither changes bytes nor guesses where they end."""
    file.append(b"kept")
    again = MappedFile(file.path, SIZE, file_system=faulty, policy=policy)
    assert (bytes(again.buffer[:5]), again.wrote_position) == (b"kept\0", 0)
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
    for _ in range(410):
        growing.append(bytes(20))
    assert 8200 <= blocks_of(growing) <= 4 * 8200
    growing.write_at(SIZE - 1, b"x")
    assert blocks_of(growing) >= SIZE
    whole.close()
    growing.close()


def test_a_pinned_view_survives_deletion(file: MappedFile) -> None:
    """The bytes stay readable until the last holder lets go; new holders are refused."""
    file.append(b"precious")
    with file.pin(0, 8) as first, file.pin(3, 2) as second:
        file.delete()
        assert not file.path.exists()
        assert bytes(first) == b"precious"
        assert bytes(second) == b"ci"
        with pytest.raises(OffsetOutOfRangeError), file.pin(0, 1):
            pass
    with pytest.raises(ValueError, match="released"):
        bytes(first)
    with pytest.raises(StoreClosedError):
        file.append(b"x")


def test_a_slice_that_outlives_its_pin_does_no_harm(file: MappedFile) -> None:
    """Unmapping waits for it: reading it is safe, not a crash of the process."""
    file.append(b"precious")
    with file.pin(0, 8) as view:
        kept = view[:4]
        file.close()
    assert bytes(kept) == b"prec"


def test_the_end_of_the_data_is_found_and_zeroed(file: MappedFile) -> None:
    """Recovery asks for the last non-zero byte, and wants only zeros behind the end."""
    assert file.end_of_data(0) == 0
    file.write_at(10, b"a")
    file.write_at(SIZE - 3, b"b")
    assert file.end_of_data(0) == file.end_of_data(11) == SIZE - 2
    assert [start for start, _ in file.data_chunks(0)][-1] <= SIZE - 3
    file.zero_from(11)
    assert file.end_of_data(0) == 11
    assert file.end_of_data(11) == 11
    assert file.wrote_position == 11
    assert not any(bytes(file.buffer[11:]))


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
    file.write_at(100, b"x" * 20)
    file.close()
    file = MappedFile(file.path, SIZE, file_system=faulty, policy=GROWING)
    assert file.zero_from(100)
    assert not file.zero_from(100)
    file.flush()
    assert blocks_of(file) <= 4096
    file.close()


def test_warming_stores_zeros(file: MappedFile) -> None:
    """It is a write like any other, so it may only touch what the caller owns."""
    file.write_at(0, b"x" * 100)
    file.warm(40, 20)
    assert bytes(file.buffer[:100]) == b"x" * 40 + bytes(20) + b"x" * 40


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


@pytest.mark.parametrize("operation", ["allocate", "map"])
def test_other_errors_of_creation_pass_through(tmp_path: Path, faulty: Any, operation: str) -> None:
    """What is no full disk keeps its own name, and also leaves nothing behind."""
    faulty.failing[operation] = errno.EMFILE
    with pytest.raises(OSError, match="EMFILE"):
        MappedFile.create(tmp_path / file_name(0), SIZE, file_system=faulty, policy=FilePolicy())
    assert list(tmp_path.iterdir()) == []
    assert faulty.open_files == 0


def test_growing_on_a_full_disk_is_an_error_and_can_be_repeated(
    tmp_path: Path, faulty: Any
) -> None:
    """A queue that cannot grow stays as it is, and grows once there is room."""
    file = MappedFile.create(tmp_path / file_name(0), SIZE, file_system=faulty, policy=GROWING)
    file.append(b"x" * 4096)
    faulty.failing["allocate"] = errno.ENOSPC
    with pytest.raises(DiskFullError):
        file.append(b"y")
    assert file.wrote_position == 4096
    faulty.failing.clear()
    assert file.append(b"y") == 4096
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
