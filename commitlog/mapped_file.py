"""One fixed-size file in memory, named by the offset of its first byte.

What this file must not know: records, consume queue units, the other files of the directory.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, final

from commitbus.commitlog.errors import (
    DiskFullError,
    FlushFailedError,
    OffsetOutOfRangeError,
    StoreClosedError,
)
from commitbus.commitlog.file_system import File, FileSystem, Mapping, data_chunks
from commitbus.commitlog.mapping_cache import MappingCache

FILE_NAME_DIGITS: Final = 20
FIRST_ALLOCATION_BYTES: Final = 4096


def file_name(base_offset: int) -> str:
    """Return the name of the file that begins at `base_offset`, as RocketMQ names it."""
    return f"{base_offset:0{FILE_NAME_DIGITS}d}"


@final
@dataclass(frozen=True, slots=True)
class FilePolicy:
    """How the files of a directory are held."""

    writable: bool = True
    keep_open: bool = True
    """Keep a descriptor for syncing. Without one a file is reopened for each sync: right for
    10,000 queues (a mapping already holds a descriptor of its own), wrong for the log, where a
    failed write-back must be reported to us even if another process has seen it."""
    random_access: bool = False
    """No read-ahead: a first write into a 6 MB queue file then costs 10 us, not 3 ms. Wrong for
    the log, whose appends become three times slower."""
    grow: bool = False
    """Allocate disk blocks piece by piece, doubling from 4 KiB, so that 10,000 almost empty
    queues cost megabytes. The apparent size is always full: RocketMQ refuses any other."""
    mappings: MappingCache | None = None
    """Map a file when it is first used, and let this unmap it when others are used more. Without
    one it is mapped from its opening to its end."""


@final
class Pin(AbstractContextManager[memoryview]):
    """Bytes of a mapped file, valid inside the `with` block only, slices of them too."""

    __slots__ = ("_file", "_length", "_position", "_view")

    def __init__(self, file: MappedFile, position: int, length: int) -> None:
        self._file, self._position, self._length = file, position, length

    def __enter__(self) -> memoryview:
        """Pin the file. Raises as `MappedFile.acquire` if it was closed or deleted meanwhile."""
        self._view = self._file.acquire()[self._position : self._position + self._length]
        return self._view

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Release the view, so that a late use fails instead of reading unmapped memory."""
        self._view.release()
        self._file.release()


@final
class MappedFile:
    """A file of a fixed size, mapped from its creation or opening to `close` or `delete`.

    One thread at a time may write; any number may read, each holding a `pin`. The mapping ends
    when the file was closed or deleted *and* the last pin is gone. Where the policy has a cache of
    mappings, it may end and come back in between; whoever has a view does not notice.
    """

    __slots__ = (
        "_allocated",
        "_buffer",
        "_closed",
        "_deleted",
        "_file",
        "_file_system",
        "_lock",
        "_mapping",
        "_pins",
        "_policy",
        "base_offset",
        "path",
        "recently_used",
        "size_bytes",
        "wrote_position",
    )

    def __init__(
        self, path: Path, size_bytes: int, *, file_system: FileSystem, policy: FilePolicy
    ) -> None:
        """Open an existing file of exactly `size_bytes`. See `create` for new ones."""
        self.path = path
        self.base_offset = int(path.name)
        self.size_bytes = size_bytes
        self.wrote_position = 0
        """End of what was written. The owner sets it after opening: only it can read the bytes."""
        self._file_system, self._policy = file_system, policy
        self._allocated = 0
        self._pins = 0
        self._deleted = self._closed = False
        self.recently_used = False
        """For the cache of mappings."""
        self._lock = threading.Lock()
        self._mapping: Mapping | None = None
        self._buffer: memoryview | None = None
        self._file: File | None = None
        if policy.mappings is None:
            self._map()
        else:
            assert not policy.keep_open, "a descriptor for each file is what a cache avoids"

    @classmethod
    def create(
        cls, path: Path, size_bytes: int, *, file_system: FileSystem, policy: FilePolicy
    ) -> MappedFile:
        """Create a file of zeros, its blocks allocated (unless the policy lets it grow).

        Raises:
            DiskFullError: There is no room. Nothing is left behind.
        """
        file = file_system.open(path, create=True)
        try:
            try:
                if policy.grow:
                    file.truncate(size_bytes)
                else:
                    file.allocate(0, size_bytes)
            finally:
                file.close()
            created = cls(path, size_bytes, file_system=file_system, policy=policy)
        except OSError as error:
            file_system.remove(path)
            raise_if_disk_full(error, path, size_bytes)
            raise
        created._allocated = 0 if policy.grow else size_bytes
        return created

    @property
    def buffer(self) -> memoryview:
        """All bytes of the file. Borrowed: hold a `pin` while using it on a reading thread.

        Raises:
            StoreClosedError: The file was closed or deleted.
        """
        buffer = self._buffer
        if buffer is None:
            return self._map_again()
        self.recently_used = True
        return buffer

    def unmap(self) -> None:
        """Let the mapping go, but not the file: its next use maps it again. See `MappingCache`."""
        # Dropped, not closed: who reads or writes through a view of it right now may finish.
        self._buffer = self._mapping = None

    def reserve(self, end_position: int) -> None:
        """Make sure that stores below `end_position` hit allocated blocks, not a hole.

        A store into a hole of a full disk kills the process (SIGBUS); this raises instead.

        Raises:
            DiskFullError: There is no room; what was there stays as it is.
        """
        assert end_position <= self.size_bytes, "a write must fit into its file"
        if end_position <= self._allocated:
            return
        wanted = self.size_bytes
        if self._policy.grow:
            wanted = max(end_position, 2 * self._allocated, FIRST_ALLOCATION_BYTES)
        wanted = min(wanted, self.size_bytes)
        file = self._open_file()
        try:
            file.allocate(self._allocated, wanted - self._allocated)
        except OSError as error:
            raise_if_disk_full(error, self.path, wanted - self._allocated)
            raise
        finally:
            self._close_again(file)
        self._allocated = wanted

    def write_at(self, position: int, data: bytes | memoryview) -> None:
        """Write `data`, moving `wrote_position` forward where it reaches beyond. DiskFullError."""
        end = position + len(data)
        if end > self._allocated:
            self.reserve(end)
        self.buffer[position:end] = data
        self.wrote_position = max(self.wrote_position, end)

    def append(self, data: bytes | memoryview) -> int:
        """Write `data` behind what was written and return its position. DiskFullError."""
        position = self.wrote_position
        self.write_at(position, data)
        return position

    def pin(self, position: int, length: int) -> Pin:
        """Return a context that yields the bytes without a copy and keeps the file mapped."""
        assert 0 <= position <= position + length <= self.size_bytes, "a pin must lie in its file"
        return Pin(self, position, length)

    def acquire(self) -> memoryview:
        """Count one more holder and return the whole buffer: what a `Pin` does on entry.

        Raises:
            StoreClosedError: The file was closed.
            OffsetOutOfRangeError: The file was deleted since it was found.
        """
        with self._lock:
            if self._deleted:
                end = self.base_offset + self.size_bytes
                raise OffsetOutOfRangeError("offset", self.base_offset, end, end)
            buffer = self.buffer
            self._pins += 1
        return buffer

    def release(self) -> None:
        """Count one holder less; the last one of a closed file unmaps it."""
        with self._lock:
            self._pins -= 1
            mapping = self._take_unused_mapping()
        _unmap(mapping)

    def data_chunks(self, position: int) -> Iterator[tuple[int, bytes]]:
        """Yield (position, bytes) of the chunks from `position` on that are not all zero."""
        file = self._open_file()
        try:
            # Not through the mapping: of a queue file that reads page by page from a disk.
            yield from data_chunks(file, position, self.size_bytes)
        finally:
            self._close_again(file)

    def end_of_data(self, position: int) -> int:
        """Return the position behind the last non-zero byte at or after `position`.

        `position` itself when only zeros follow. Regions never written are skipped, not read.
        """
        last = position
        for start, chunk in self.data_chunks(position):
            last = start + len(chunk.rstrip(b"\0"))
        return last

    def zero_from(self, position: int) -> bool:
        """Set all bytes from `position` on to zero and `wrote_position` to at most it.

        Only where there is something else is stored to, so that a hole stays a hole: 10,000 queues
        that lose a unit each must not take 64 KiB each for it. Returns whether there was anything.
        """
        buffer, changed = self.buffer, False
        for start, chunk in self.data_chunks(position):
            length = len(chunk.rstrip(b"\0"))
            self.reserve(start + length)
            buffer[start : start + length] = bytes(length)
            changed = True
        self.wrote_position = min(self.wrote_position, position)
        return changed

    def warm(self, position: int, length: int) -> None:
        """Store zeros with the GIL released, so that later stores meet no page fault.

        Measured on 512 MiB: a store through a memoryview slice stopped other threads for 55 ms,
        this for the 5 ms of the interpreter's switch interval. The caller owns these bytes.
        """
        zeros = os.open("/dev/zero", os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.readv(zeros, [self.buffer[position : position + length]])
        finally:
            os.close(zeros)

    def flush(self) -> None:
        """Return when all bytes are on stable storage.

        A file that was closed or deleted meanwhile has nothing that anyone waits for.

        Raises:
            FlushFailedError: It failed; the pages may be lost, so never try again.
        """
        if self._closed or self._deleted:
            return
        try:
            file = self._open_file()
            try:
                file.sync_data()
            finally:
                self._close_again(file)
        except OSError as error:
            if self._closed or self._deleted:
                return
            raise FlushFailedError(self.path, error) from error

    def close(self) -> None:
        """Give the file up. It stays mapped until the last pin is gone."""
        cache = self._policy.mappings
        with self._lock, cache.lock if cache else nullcontext():
            self._closed = True
            self._buffer = None
            file, self._file = self._file, None
            mapping = self._take_unused_mapping()
            if cache is not None:
                cache.forget(self)
        if file is not None:
            file.close()
        _unmap(mapping)

    def delete(self) -> None:
        """Remove the file. Its bytes stay readable until the last pin is gone."""
        with self._lock:
            # First, and under the lock: nobody then maps a file that is not there any more.
            self._deleted = True
        self._file_system.remove(self.path)
        self.close()

    def _map(self) -> memoryview:
        policy = self._policy
        file = self._file_system.open(self.path, writable=policy.writable)
        try:
            mapping = file.map(self.size_bytes)
        except BaseException:
            file.close()
            raise
        if policy.random_access:
            mapping.advise_random()
        if policy.keep_open:
            self._file = file
        else:
            file.close()
        self._mapping, self._buffer = mapping, mapping.buffer
        return self._buffer

    def _map_again(self) -> memoryview:
        """Map the file unless that is done by now. StoreClosedError."""
        cache = self._policy.mappings
        if cache is None:
            raise StoreClosedError
        with cache.lock:
            if self._closed:
                raise StoreClosedError
            if self._buffer is not None:
                return self._buffer
            buffer = self._map()
            cache.add(self)
        return buffer

    def _open_file(self) -> File:
        return self._file or self._file_system.open(self.path, writable=self._policy.writable)

    def _close_again(self, file: File) -> None:
        if file is not self._file:
            file.close()

    def _take_unused_mapping(self) -> Mapping | None:
        """Under the lock: hand out the mapping once nobody can need it any more."""
        if self._pins or not self._closed:
            return None
        mapping, self._mapping = self._mapping, None
        return mapping


def _unmap(mapping: Mapping | None) -> None:
    if mapping is not None:
        # A slice that outlives its pin keeps the pages alive; they go when it does.
        with suppress(BufferError):
            mapping.close()


def raise_if_disk_full(error: OSError, path: Path, needed_bytes: int) -> None:
    """Raise `DiskFullError` if that is what `error` means."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        raise DiskFullError(path, needed_bytes) from error
