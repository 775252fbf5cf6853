"""Files that are replaced as a whole."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from commitbus.commitlog.errors import ReadFailedError
from commitbus.commitlog.file_system import (
    RealFileSystem,
    read_at,
    read_at_once,
    replace_file,
)
from tests.failing_files import FailingFileSystem

CHANGES: Final = {"make_directories", "pwrite", "sync_data", "rename", "sync_directory"}


def test_a_file_is_durable_before_it_has_its_name_and_the_name_is_durable(tmp_path: Path) -> None:
    """Those of its directory, too, if that is new."""
    files: Any = FailingFileSystem()
    path = tmp_path / "directory" / "file"
    replace_file(path, b"first", files)
    written = ["pwrite", "sync_data", "rename", "sync_directory"]
    changes = [call for call in files.calls if call in CHANGES]
    assert changes == ["make_directories", "sync_directory", *written]
    files.calls.clear()
    replace_file(path, b"2nd", files)
    assert [call for call in files.calls if call in CHANGES] == written
    assert {found.name: found.read_bytes() for found in path.parent.iterdir()} == {"file": b"2nd"}


@pytest.mark.parametrize("operation", ["pwrite", "sync_data", "rename"])
def test_a_file_that_cannot_be_replaced_stays_as_it_was(tmp_path: Path, operation: str) -> None:
    """And what is left beside it is no hindrance."""
    files: Any = FailingFileSystem()
    path = tmp_path / "file"
    replace_file(path, b"first", files)
    files.fails[operation] = errno.ENOSPC
    with pytest.raises(OSError, match="No space left"):
        replace_file(path, b"another one", files)
    assert path.read_bytes() == b"first"
    files.fails.clear()
    replace_file(path, b"2nd", files)
    assert path.read_bytes() == b"2nd"


def test_a_cached_read_gives_the_bytes_or_nothing(tmp_path: Path) -> None:
    """None for what is on the disk only; short at the end of the file; never a wait."""
    path = tmp_path / "file"
    path.write_bytes(b"x" * 10_000)
    file = RealFileSystem().open(path)
    try:
        file.sync_data()
        assert file.pread_cached(4, 9_998) == b"xx"
        assert file.pread_cached(4, 10_000) == b""
        assert file.pread(10_000, 0) == b"x" * 10_000
        assert file.pread_cached(10_000, 0) in (b"x" * 10_000, None)
    finally:
        file.close()


def test_a_read_that_the_disk_refuses_names_the_file_and_the_place(tmp_path: Path) -> None:
    """With the position of the read, and the reason of the operating system."""
    files: Any = FailingFileSystem()
    (tmp_path / "file").write_bytes(b"x")
    file = files.open(tmp_path / "file", writable=False)
    files.fails["pread"] = files.fails["pread_cached"] = errno.EIO
    for read in (read_at, read_at_once):
        with pytest.raises(ReadFailedError, match="at position 7 failed: Input/output") as raised:
            read(file, 1, 7)
        assert (raised.value.path, raised.value.position) == (tmp_path / "file", 7)


def test_an_error_of_the_operating_system_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was done; "No space left on device" alone helps nobody."""

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "file"
    file = RealFileSystem().open(path, create=True)
    for name in ("pread", "preadv", "pwrite", "ftruncate", "posix_fallocate", "fdatasync"):
        monkeypatch.setattr(os, name, fail)
    work: Callable[[], object]
    for work in (
        lambda: file.pread(1, 0),
        lambda: file.pread_cached(1, 0),
        lambda: file.pwrite(b"x", 0),
        lambda: file.truncate(1),
        lambda: file.allocate(0, 1),
        file.sync_data,
    ):
        with pytest.raises(OSError, match="No space left on device") as caught:
            work()
        assert caught.value.filename == str(path)
        assert str(path) in str(caught.value)
    file.close()


def test_a_read_is_short_at_the_end_of_the_file_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel also returns less before a page that it cannot read, and says so only then."""
    path, pread = tmp_path / "file", os.pread
    path.write_bytes(bytes(range(100)))
    file = RealFileSystem().open(path)
    monkeypatch.setattr(os, "pread", lambda fd, length, at: pread(fd, min(length, 7), at))
    assert file.pread(50, 10) == bytes(range(10, 60))
    assert file.pread(50, 90) == bytes(range(90, 100))

    def pread_before_a_bad_page(fd: int, length: int, at: int) -> bytes:
        if at >= 40:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return pread(fd, min(length, 40 - at), at)

    monkeypatch.setattr(os, "pread", pread_before_a_bad_page)
    assert file.pread(30, 10) == bytes(range(10, 40))
    with pytest.raises(ReadFailedError):
        read_at(file, 31, 10)
    file.close()
