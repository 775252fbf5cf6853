"""The file system as a parameter, so that a simulation can crash it between any two operations.

Every byte that the store keeps goes through these protocols. Contracts common to all methods:
they raise `OSError` as the operating system does, with the file's name, and are safe to call from
any thread unless two threads use the same `File`.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol, final

from commitbus.commitlog.errors import ReadFailedError
from commitbus.commitlog.file_lock import RealLock, flock
from commitbus.commitlog.resident_pages import (
    address_of,
    is_resident,
    populate_memory,
)


class Mapping(Protocol):
    """Bytes of a file in memory. A store to them survives the process, not a power cut."""

    @property
    def buffer(self) -> memoryview:
        """The mapped bytes, writable if the file was opened for writing."""

    def advise_random(self) -> None:
        """Tell the kernel not to read ahead: a first write then costs one page, not megabytes."""

    def is_resident(self, position: int, length: int) -> bool:
        """Return whether bytes are in memory now; False where that is unknown."""

    def populate(self, position: int, length: int) -> bool:
        """Bring bytes into memory, dirty, so that they stay there until they are written back.

        Return False if the disk does not give them back, or if the kernel cannot do this. A read
        of them shows which.
        """

    def close(self) -> None:
        """Unmap. Views of the bytes must not be used any more."""


class File(Protocol):
    """An open file."""

    @property
    def path(self) -> Path:
        """Where it was opened."""

    def size(self) -> int:
        """Return the length in bytes."""

    def pread(self, length: int, position: int) -> bytes:
        """Return up to `length` bytes, fewer only at the end of the file."""

    def pread_cached(self, length: int, position: int) -> bytes | None:
        """Return as `pread` if that waits for no disk, else None.

        None as well where the file system cannot tell.
        """

    def pwrite(self, data: bytes | memoryview, position: int) -> None:
        """Write all of `data`. Not durable before `sync_data`."""

    def truncate(self, size: int) -> None:
        """Cut, or extend sparsely, to `size` bytes."""

    def allocate(self, position: int, length: int) -> None:
        """Reserve real blocks, extending the file if needed, so that no later store can fail.

        A mapped store to a hole on a full disk is SIGBUS; after this it is not.
        """

    def next_data(self, position: int) -> int:
        """Return the first position at or after `position` that may hold a non-zero byte.

        The file's size when everything behind is zero. Blocks that were allocated but never
        written count as zeros, so that recovery need not read a gigabyte of them.
        """

    def next_hole(self, position: int) -> int:
        """Return where the data at `position` ends: at what was never written, or the file's end.

        A file system that cannot tell takes all up to the file's end for data.
        """

    def map(self, length: int) -> Mapping:
        """Map the first `length` bytes, shared."""

    def sync_data(self) -> None:
        """Return when the bytes are on stable storage, mapped stores included.

        Releases the GIL, unlike `mmap.flush`, which was measured to hold it for 60-110 ms.
        """

    def close(self) -> None:
        """Close. Mappings stay valid. A file object without references is closed as well."""


_WOULD_WAIT: Final = (errno.EAGAIN, errno.EOPNOTSUPP, errno.EINVAL)
"""Errors of a read with RWF_NOWAIT: a page is only on the disk, or the flag is unsupported."""
PAGE_BYTES: Final = 4096
"""A failed read is narrowed down to one page: the kernel reads files in pages of this size."""
_CLOSED: Final = -1
_CHUNK_BYTES: Final = 1 << 16
_ZEROS: Final = bytes(_CHUNK_BYTES)


def read_at(file: File, length: int, position: int) -> bytes:
    """Return up to `length` bytes, fewer only at the end of the file. May wait for a disk.

    Raises:
        ReadFailedError: The disk does not give them back.
    """
    try:
        return file.pread(length, position)
    except OSError as error:
        raise ReadFailedError(file.path, position, error) from error


def read_up_to(file: File, length: int, position: int) -> tuple[bytes, ReadFailedError | None]:
    """Return as `read_at` what lies before the first page that cannot be read, and its error."""
    try:
        return read_at(file, length, position), None
    except ReadFailedError as error:
        cause = error.cause
    # [low, high) holds a page that cannot be read, everything before `low` can.
    parts, low, high = list[bytes](), position, position + length
    while (boundary := (low // PAGE_BYTES + 1) * PAGE_BYTES) < high:
        middle = max(boundary, (low + high) // 2 // PAGE_BYTES * PAGE_BYTES)
        try:
            parts.append(read_at(file, middle - low, low))
            low = middle
        except ReadFailedError as error:
            cause, high = error.cause, middle
    return b"".join(parts), ReadFailedError(file.path, low, cause)


def read_at_once(file: File, length: int, position: int) -> bytes | None:
    """Return as `read_at` if no disk has to be waited for, else None. ReadFailedError."""
    try:
        return file.pread_cached(length, position)
    except OSError as error:
        raise ReadFailedError(file.path, position, error) from error


TEMPORARY_SUFFIX: Final = ".tmp"
"""Suffix of a file that `replace_file` had not finished when the disk was full or it was killed."""


def replace_file(path: Path, data: bytes, file_system: FileSystem) -> None:
    """Make `data` all that a file holds, in one step, and durable on return.

    Raises:
        OSError: It could not be written; what was there before still is.
    """
    directory, temporary = path.parent, path.with_name(path.name + TEMPORARY_SUFFIX)
    if not file_system.exists(directory):
        file_system.make_directories(directory)
        file_system.sync_directory(directory.parent)
    file = file_system.open(temporary, create=True)
    try:
        file.truncate(0)
        file.pwrite(data, 0)
        file.sync_data()
    finally:
        file.close()
    file_system.rename(temporary, path)
    file_system.sync_directory(directory)


def data_chunks(file: File, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield (position, bytes) of the chunks of [start, end) that are not all zero.

    What was never written is passed over, not read.

    Raises:
        ReadFailedError: The disk does not give a chunk back.
    """
    extents, position = [], start
    while (begin := file.next_data(position)) < end:
        position = min(file.next_hole(begin), end)
        extents.append((begin, position))
    # All are found before any is read, and no read reaches into a hole: what the kernel reads ahead
    # there counts as data from then on, and so the rest of the file would be read.
    for begin, extent_end in extents:
        for position in range(begin, extent_end, _CHUNK_BYTES):
            chunk = read_at(file, min(_CHUNK_BYTES, extent_end - position), position)
            if chunk != _ZEROS[: len(chunk)]:
                yield position, chunk


class Lock(Protocol):
    """A lock held on a file."""

    def release(self) -> None:
        """Give it up."""


class FileSystem(Protocol):
    """The file operations that a store uses."""

    def open(self, path: Path, *, writable: bool = True, create: bool = False) -> File:
        """Open a file. With `create`, make it (and only it) when it is missing."""

    def lock(self, path: Path) -> Lock | None:
        """Take the exclusive lock on `path`, creating the file; None when it is held.

        Somebody else in this process counts too. Opening, reading and closing the file meanwhile,
        here or in another process, does not drop the lock.
        """

    def exists(self, path: Path) -> bool:
        """Return whether a file or directory is there."""

    def list_names(self, directory: Path) -> list[str]:
        """Return the sorted names in a directory; none when it does not exist."""

    def is_directory(self, path: Path) -> bool:
        """Return whether `path` is a directory."""

    def names_mark(self, directory: Path) -> int:
        """Return a number that changes when a name in a directory is added or removed.

        FileNotFoundError: it is not there.
        """

    def directories(self, directory: Path) -> dict[str, int]:
        """Return the directories in one, by name, with their `names_mark`; none without it."""

    def make_directories(self, path: Path) -> None:
        """Create a directory and its parents where missing."""

    def rename(self, source: Path, target: Path) -> None:
        """Move atomically, replacing `target`. Durable after `sync_directory` of the parent."""

    def remove(self, path: Path) -> None:
        """Remove a file, or an empty directory."""

    def sync_directory(self, path: Path) -> None:
        """Make the names in a directory durable."""

    def disk_usage(self, path: Path) -> tuple[int, int]:
        """Return (total, free) bytes of the file system that holds `path`."""


@final
class _RealMapping:
    __slots__ = ("_address", "_map", "_view")

    def __init__(self, fd: int, length: int, *, writable: bool) -> None:
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        self._map = mmap.mmap(fd, length, access=access)
        self._view = memoryview(self._map)
        self._address = address_of(self._view)

    @property
    def buffer(self) -> memoryview:
        return self._view

    def advise_random(self) -> None:
        self._map.madvise(mmap.MADV_RANDOM)

    def is_resident(self, position: int, length: int) -> bool:
        return is_resident(self._address + position, length)

    def populate(self, position: int, length: int) -> bool:
        return populate_memory(self._address + position, length)

    def close(self) -> None:
        # A slice that is still used keeps the pages alive; they go when it does.
        with suppress(BufferError):
            self._view.release()
            self._map.close()


@final
class _RealFile:
    __slots__ = ("_fd", "_path", "_writable")

    def __init__(self, fd: int, path: Path, *, writable: bool) -> None:
        self._fd, self._path, self._writable = fd, path, writable

    @property
    def path(self) -> Path:
        return self._path

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def pread(self, length: int, position: int) -> bytes:
        try:
            data = os.pread(self._fd, length, position)
            # Few bytes are the file's end, or the last before a page that cannot be read, which
            # only the next read says, or the 2 GiB that the kernel reads at once.
            while len(data) < length and (
                more := os.pread(self._fd, length - len(data), position + len(data))
            ):
                data += more
        except OSError as error:
            raise self._named(error) from None
        return data

    def pread_cached(self, length: int, position: int) -> bytes | None:
        data = bytearray(length)
        try:
            count = os.preadv(self._fd, (data,), position, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno in _WOULD_WAIT:
                return None
            raise self._named(error) from None
        if count < length:
            # The rest is not in memory, or behind the end of the file.
            return bytes(data[:count]) if position + count >= self.size() else None
        return bytes(data)

    def pwrite(self, data: bytes | memoryview, position: int) -> None:
        try:
            # Nearly always one write is enough, and entries of some bytes come by the thousands.
            while (written := os.pwrite(self._fd, data, position)) < len(data):
                data, position = memoryview(data)[written:], position + written
        except OSError as error:
            raise self._named(error) from None

    def truncate(self, size: int) -> None:
        try:
            os.ftruncate(self._fd, size)
        except OSError as error:
            raise self._named(error) from None

    def allocate(self, position: int, length: int) -> None:
        try:
            os.posix_fallocate(self._fd, position, length)
        except OSError as error:
            raise self._named(error) from None

    def next_data(self, position: int) -> int:
        try:
            return os.lseek(self._fd, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return self.size()

    def next_hole(self, position: int) -> int:
        return os.lseek(self._fd, position, os.SEEK_HOLE)

    def map(self, length: int) -> Mapping:
        return _RealMapping(self._fd, length, writable=self._writable)

    def sync_data(self) -> None:
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            raise self._named(error) from None

    def _named(self, error: OSError) -> OSError:
        """Return the error with the file's name, which the kernel's answer lacks."""
        error.filename = str(self._path)
        return error

    def close(self) -> None:
        fd, self._fd = self._fd, _CLOSED
        if fd != _CLOSED:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


@final
class RealFileSystem:
    """The file system of this machine (POSIX)."""

    __slots__ = ()

    def open(self, path: Path, *, writable: bool = True, create: bool = False) -> File:
        """Open a file."""
        flags = (os.O_RDWR if writable else os.O_RDONLY) | (os.O_CREAT if create else 0)
        return _RealFile(os.open(path, flags | os.O_CLOEXEC, 0o644), path, writable=writable)

    def lock(self, path: Path) -> Lock | None:
        """Take the lock; `flock` would not exclude RocketMQ. See `RealLock`."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, flock(fcntl.F_WRLCK))
        except (BlockingIOError, PermissionError):
            os.close(fd)
            return None
        except BaseException:
            os.close(fd)
            raise
        return RealLock(fd)

    def exists(self, path: Path) -> bool:
        """Return whether a file or directory is there."""
        return path.exists()

    def list_names(self, directory: Path) -> list[str]:
        """Return the sorted names in a directory; none when it does not exist."""
        try:
            return sorted(os.listdir(directory))
        except FileNotFoundError:
            return []

    def is_directory(self, path: Path) -> bool:
        """Return whether `path` is a directory."""
        return path.is_dir()

    def names_mark(self, directory: Path) -> int:
        """Return the time of the last change."""
        return directory.stat().st_mtime_ns

    def directories(self, directory: Path) -> dict[str, int]:
        """Return the directories in one, by name, with their `names_mark`; none without it."""
        try:
            with os.scandir(directory) as entries:
                return {entry.name: entry.stat().st_mtime_ns for entry in entries if entry.is_dir()}
        except (FileNotFoundError, NotADirectoryError):
            return {}

    def make_directories(self, path: Path) -> None:
        """Create a directory and its parents where missing."""
        path.mkdir(parents=True, exist_ok=True)

    def rename(self, source: Path, target: Path) -> None:
        """Move atomically."""
        source.replace(target)

    def remove(self, path: Path) -> None:
        """Remove a file, or an empty directory."""
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink()

    def sync_directory(self, path: Path) -> None:
        """Make the names in a directory durable."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def disk_usage(self, path: Path) -> tuple[int, int]:
        """Return (total, free) bytes of the file system that holds `path`, as `df` counts them.

        What is reserved for the superuser is neither.
        """
        stat = os.statvfs(path)
        total = stat.f_blocks - stat.f_bfree + stat.f_bavail
        return total * stat.f_frsize, stat.f_bavail * stat.f_frsize
