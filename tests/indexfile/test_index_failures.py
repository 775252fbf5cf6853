"""The index on a disk that is full, fails or holds nonsense."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path
from typing import Any

import pytest

from commitbus.commitlog.errors import (
    DiskFullError,
    FlushFailedError,
    NotAStoreError,
)
from commitbus.commitlog.types import PhysicalOffset
from commitbus.indexfile.index_format import HEADER_BYTES, SLOT
from tests.failing_files import FailingFileSystem
from tests.indexfile.small_indexes import (
    END_OF_TIME,
    ENTRIES,
    FILE_BYTES,
    contents,
    messages,
    open_service,
    rebuilt,
)


@pytest.mark.parametrize("operation", ["allocate", "make_directories", "open"])
def test_a_full_disk_is_told_and_putting_goes_on_when_there_is_room(
    tmp_path: Path, operation: str
) -> None:
    """In the middle of a message's keys too: nothing is lost and nothing doubled."""
    file_system = FailingFileSystem()
    service = open_service(tmp_path / "index", file_system)
    service.put(messages(10))
    if operation == "open":
        refusing = _refuse_to_create(file_system.open)
        file_system.open = refusing  # type: ignore[method-assign] # of this one object
    else:
        file_system.fails = {operation: errno.ENOSPC}
    for _ in range(2):
        with pytest.raises(DiskFullError):
            service.put(messages(90, start=10))
    assert len(list((tmp_path / "index").iterdir())) == 1
    file_system.fails = {}
    file_system.__dict__.pop("open", None)
    service.put(messages(90, start=10))
    assert contents(service) == rebuilt(tmp_path / "other", messages(100))
    service.close()


def _refuse_to_create(real: Any) -> Any:
    def refuse(path: Path, **options: Any) -> Any:
        if options.get("create"):
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
        return real(path, **options)

    return refuse


def test_a_failed_flush_is_told(tmp_path: Path) -> None:
    """Whoever promised durability must hear of it."""
    file_system = FailingFileSystem()
    service = open_service(tmp_path / "index", file_system)
    service.put(messages(3))
    file_system.fails = {"sync_data": errno.EIO}
    with pytest.raises(FlushFailedError):
        service.flush()
    file_system.fails = {}
    service.close()


@pytest.mark.parametrize("operation", ["sync_data", "sync_directory"])
def test_what_was_cut_stays_cut(tmp_path: Path, operation: str) -> None:
    """The next flush makes it durable: other messages may lie where the removed ones lay."""
    file_system = FailingFileSystem()
    service = open_service(tmp_path / "index", file_system)
    service.put(messages(100))
    service.flush()
    service.truncate(PhysicalOffset(500))
    file_system.fails = {operation: errno.EIO}
    with pytest.raises(FlushFailedError):
        service.flush()
    file_system.fails = {}
    service.close()


def test_a_new_file_has_a_durable_name_before_it_has_entries(tmp_path: Path) -> None:
    """A power cut that kept the next file and lost this one would leave a gap."""
    file_system = FailingFileSystem()
    service = open_service(tmp_path / "index", file_system)
    file_system.fails = {"sync_directory": errno.EIO}
    with pytest.raises(FlushFailedError):
        service.put(messages(3))
    file_system.fails = {}
    service.close()


@pytest.mark.parametrize("size", [FILE_BYTES - 1, FILE_BYTES + 20, 50])
def test_a_file_of_another_size_is_refused(tmp_path: Path, size: int) -> None:
    """The numbers of slots and entries are not in the file, so a wrong size is all that tells."""
    (tmp_path / "20991231235959999").write_bytes(b"\1" * size)
    with pytest.raises(NotAStoreError, match="10 slots"):
        open_service(tmp_path)


@pytest.mark.parametrize("index_count", [-1, ENTRIES + 1, 2**31 - 1])
def test_a_header_that_counts_more_than_fits_is_refused(tmp_path: Path, index_count: int) -> None:
    """Before anything follows it out of the file."""
    data = bytearray(b"\1" * FILE_BYTES)
    data[36:40] = index_count.to_bytes(4, "big", signed=True)
    (tmp_path / "20991231235959999").write_bytes(data)
    with pytest.raises(NotAStoreError, match=f"counts {index_count}"):
        open_service(tmp_path)


@pytest.mark.parametrize("seed", range(25))
def test_a_damaged_file_never_makes_a_query_hang_or_fail(tmp_path: Path, seed: int) -> None:
    """Random bytes, rings in chains, indexes far outside: a walk ends."""
    random_ = random.Random(seed)  # noqa: S311 - damage, not secrets
    service = open_service(tmp_path)
    service.put(messages(16))
    (path,) = service.paths()
    service.close()
    data = bytearray(path.read_bytes())
    if seed % 2:
        data[HEADER_BYTES:] = random_.randbytes(len(data) - HEADER_BYTES)
    else:
        for position in range(HEADER_BYTES, len(data) - 4, 4):
            if random_.random() < 0.4:
                SLOT.pack_into(data, position, random_.randint(-3, ENTRIES + 3))
    path.write_bytes(data)
    service = open_service(tmp_path)
    for number in range(16):
        found = service.query("T", f"U{number}", 0, END_OF_TIME, 1000)
        assert len(found) < ENTRIES
    service.discard_after(0)
    service.put([m for m in messages(16) if m.physical_offset >= service.dispatched_to])
    assert 1500 in service.query("T", "U15", 0, END_OF_TIME, 1000)
    service.close()
