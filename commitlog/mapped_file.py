"""One fixed-size file, named by the offset of its first byte.

All reads go through a descriptor: a block that the disk does not give back is then an error of one
read, where access to mapped memory would be a SIGBUS that ends the process. The file that the log
appends to is mapped besides, as a store to memory is five times faster than a system call; see
adr/0001. This module must not know records, consume queue units, or the other files of the
directory.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, final

from commitbus.commitlog.descriptor_cache import DescriptorCache, quarter_of_descriptors
from commitbus.commitlog.errors import (
    DiskFullError,
    FlushFailedError,
    OffsetOutOfRangeError,
    OutOfResourcesError,
    ReadFailedError,
    StoreClosedError,
    WriteFailedError,
)
from commitbus.commitlog.file_system import (
    File,
    FileSystem,
    Mapping,
    data_chunks,
    read_at,
    read_at_once,
    read_up_to,
)
from commitbus.commitlog.threads import SYSTEM_THREADS, Threads

FILE_NAME_DIGITS: Final = 20
OPEN_FILES_MAX_DEFAULT: Final = 256
_BLANK_BYTES: Final = 1 << 16
HELD_BYTES: Final = 1 << 16
"""Bytes made dirty in memory where the log goes on: enough for most appends between two flushes,
little for a flush to write."""


def file_name(base_offset: int) -> str:
    """Return the name of the file that begins at `base_offset`, as RocketMQ names it."""
    return f"{base_offset:0{FILE_NAME_DIGITS}d}"


@final
@dataclass(frozen=True, slots=True)
class FilePolicy:
    """How the files of a directory are held."""

    writable: bool = True
    grow: bool = False
    """Take disk blocks as bytes are written, so that 10,000 almost empty queues cost megabytes.
    The apparent size is always full: RocketMQ refuses any other."""
    descriptors: DescriptorCache = field(
        default_factory=lambda: DescriptorCache(quarter_of_descriptors(OPEN_FILES_MAX_DEFAULT))
    )
    """Bounds how many of the files are open."""
    threads: Threads = SYSTEM_THREADS
    """For locks."""


@final
class MappedFile:
    """A file of a fixed size.

    One thread at a time may write; any number may read. A read that is under way while the file is
    closed or deleted ends well: the descriptor lives as long as a read uses it.
    """

    __slots__ = (
        "_allocated",
        "_closed",
        "_deleted",
        "_file",
        "_file_system",
        "_mapping",
        "_policy",
        "base_offset",
        "must_stay_open",
        "path",
        "recently_used",
        "size_bytes",
    )

    def __init__(
        self, path: Path, size_bytes: int, *, file_system: FileSystem, policy: FilePolicy
    ) -> None:
        """Name an existing file of exactly `size_bytes`; it is opened when it is first needed."""
        self.path = path
        self.base_offset = int(path.name)
        self.size_bytes = size_bytes
        self._file_system, self._policy = file_system, policy
        self._allocated = 0
        self._deleted = self._closed = False
        self.recently_used = self.must_stay_open = False
        """For the cache of descriptors."""
        self._mapping: Mapping | None = None
        self._file: File | None = None

    @classmethod
    def create(
        cls, path: Path, size_bytes: int, *, file_system: FileSystem, policy: FilePolicy
    ) -> MappedFile:
        """Create a file of zeros, its blocks allocated (unless the policy lets it grow).

        Raises:
            DiskFullError: There is no room. Nothing is left behind.
            OutOfResourcesError: The process may open no more files. Likewise.
        """
        created = cls(path, size_bytes, file_system=file_system, policy=policy)
        file = created._open(create=True)
        try:
            if policy.grow:
                file.truncate(size_bytes)
            else:
                file.allocate(0, size_bytes)
        except OSError as error:
            # Close it now: the error's traceback would keep it open.
            file.close()
            created.delete()
            raise_refusal(error, path, size_bytes)
            raise
        created._allocated = 0 if policy.grow else size_bytes
        return created

    # Reading

    def read(self, position: int, length: int) -> bytes:
        """Return `length` bytes from `position` on. May wait for a disk.

        Raises:
            ReadFailedError: The disk does not give them back.
            OffsetOutOfRangeError: The file was deleted since it was found.
            StoreClosedError: The file was closed.
            OutOfResourcesError: The process may open no more files.
        """
        assert 0 <= position <= position + length <= self.size_bytes, "a read lies in its file"
        return read_at(self._descriptor(), length, position)

    def read_up_to(self, position: int, length: int) -> tuple[bytes, ReadFailedError | None]:
        """Return as `read` what lies before the first page that cannot be read, and its error.

        Raises otherwise as `read`.
        """
        assert 0 <= position <= position + length <= self.size_bytes, "a read lies in its file"
        return read_up_to(self._descriptor(), length, position)

    def read_cached(self, position: int, length: int) -> bytes | None:
        """Return as `read` if no disk has to be waited for, else None. Raises as `read`."""
        assert 0 <= position <= position + length <= self.size_bytes, "a read lies in its file"
        return read_at_once(self._descriptor(), length, position)

    def data_chunks(self, position: int) -> Iterator[tuple[int, bytes]]:
        """Yield (position, bytes) of the chunks from `position` on that are not all zero.

        Raises:
            ReadFailedError: The disk does not give one back.
        """
        yield from data_chunks(self._descriptor(), position, self.size_bytes)

    def end_of_data(self, position: int) -> int:
        """Return the position behind the last non-zero byte at or after `position`.

        `position` itself when only zeros follow. Regions never written are skipped, not read.
        """
        last = position
        for start, chunk in self.data_chunks(position):
            last = start + len(chunk.rstrip(b"\0"))
        return last

    # Writing

    def write(self, position: int, data: bytes | memoryview) -> None:
        """Write `data` through the descriptor. Survives the process at once.

        Raises:
            DiskFullError: There is no room; part of the data may be written.
            WriteFailedError: The disk refuses it otherwise. Likewise.
            OutOfResourcesError: The process may open no more files.
        """
        assert position + len(data) <= self.size_bytes, "a write lies in its file"
        try:
            self._descriptor().pwrite(data, position)
        except OSError as error:
            raise_refusal(error, self.path, len(data))
            raise WriteFailedError(self.path, position, error) from error

    def reserve(self) -> None:
        """Make sure that a store to mapped memory hits allocated blocks, not a hole.

        A store into a hole of a full disk kills the process (SIGBUS); this raises instead.

        Raises:
            DiskFullError: There is no room; what was there stays as it is.
        """
        if self._allocated == self.size_bytes:
            return
        try:
            self._descriptor().allocate(0, self.size_bytes)
        except OSError as error:
            raise_refusal(error, self.path, self.size_bytes)
            raise
        self._allocated = self.size_bytes

    def zero_from(self, position: int) -> bool:
        """Set all bytes from `position` on to zero; return whether there was anything else.

        Holes stay holes: 10,000 queues that lose a unit each must not take 64 KiB each for it.

        Raises:
            ReadFailedError: What is there cannot be read.
            WriteFailedError: It cannot be overwritten.
        """
        changed = False
        for start, chunk in self.data_chunks(position):
            self.write(start, bytes(len(chunk.rstrip(b"\0"))))
            changed = True
        return changed

    def blank_from(self, position: int) -> None:
        """Set all bytes from `position` on to zero without reading any. WriteFailedError."""
        file = self._descriptor()
        while (begin := file.next_data(position)) < self.size_bytes:
            position = min(file.next_hole(begin), self.size_bytes)
            for start in range(begin, position, _BLANK_BYTES):
                self.write(start, bytes(min(_BLANK_BYTES, position - start)))

    # The log's mapping

    def map(self) -> memoryview:
        """Map the file for appending, its blocks reserved; `unmap` ends it. The bytes, writable.

        Raises:
            DiskFullError: There is no room for its blocks.
            OutOfResourcesError: The process may map no more.
        """
        assert self._mapping is None, "one thread appends to a file"
        self.reserve()
        self.must_stay_open = True
        try:
            self._mapping = self._descriptor().map(self.size_bytes)
        except OSError as error:
            raise_refusal(error, self.path, self.size_bytes)
            raise
        return self._mapping.buffer

    @property
    def buffer(self) -> memoryview:
        """The mapped bytes, between `map` and `unmap`."""
        assert self._mapping is not None, "it is mapped for appending"
        return self._mapping.buffer

    def unmap(self) -> None:
        """End the mapping. Stored bytes stay, durable after `flush`."""
        mapping, self._mapping = self._mapping, None
        if mapping is not None:
            mapping.close()

    def hold(self, position: int, end: int, limit: int) -> int:
        """Bring mapped bytes into memory for stores to come, and keep the first of them there.

        `HELD_BYTES` are made dirty: until they are written back they cannot be evicted, so a store
        to them never waits for a disk.

        Args:
            position: Where the next store begins.
            end: Up to here at least the bytes are needed.
            limit: Up to here they are of use.

        Returns:
            Up to where they are in memory.

        Raises:
            ReadFailedError: The disk does not give them back: a store would be a SIGBUS.
        """
        mapping = self._mapping
        assert mapping is not None, "it is mapped for appending"
        held_end = min(position + HELD_BYTES, limit)
        if not mapping.populate(position, held_end - position):
            self.read(position, held_end - position)
        if mapping.is_resident(position, limit - position):
            return limit
        if end > held_end:
            self.read(held_end, end - held_end)
        return max(end, held_end)

    def warm(self, position: int, length: int) -> None:
        """Store zeros with the GIL released, so that later stores meet no page fault.

        Measured on 512 MiB: a store through a memoryview slice stopped other threads for 55 ms,
        this for the 5 ms of the interpreter's switch interval. The caller owns these bytes.

        Raises:
            OSError: A page cannot be had (EFAULT here, where a plain store would be a SIGBUS).
        """
        zeros = os.open("/dev/zero", os.O_RDONLY | os.O_CLOEXEC)
        try:
            with self.buffer[position : position + length] as view:
                os.readv(zeros, [view])
        finally:
            os.close(zeros)

    # The end

    def flush(self) -> None:
        """Return when all bytes are on stable storage.

        A file that was closed or deleted meanwhile has nothing that anyone waits for.

        Raises:
            FlushFailedError: It failed; the pages may be lost, so never try again.
            OutOfResourcesError: The process may open no more files: nothing was tried.
        """
        try:
            self._descriptor().sync_data()
        except (OffsetOutOfRangeError, StoreClosedError):
            return
        except OSError as error:
            if self._closed or self._deleted:
                return
            raise FlushFailedError(self.path, error) from error

    def release_descriptor(self) -> None:
        """Give up the descriptor, but not the file: its next use opens it again."""
        self._file = None

    def close(self) -> None:
        """Give the file up. Does not flush."""
        self.unmap()
        with self._policy.descriptors.lock:
            self._closed = True
            self._file = None
            self._policy.descriptors.forget(self)

    def delete(self) -> None:
        """Remove the file."""
        with self._policy.descriptors.lock:
            # First, and under the lock, so that no reader opens a removed file.
            self._deleted = True
            self._file = None
        try:
            # It may have been removed already: that must not keep other files.
            with suppress(FileNotFoundError):
                self._file_system.remove(self.path)
        except BaseException:
            self._deleted = False
            raise
        self.close()

    def _descriptor(self) -> File:
        file = self._file
        if file is None:
            return self._open()
        self.recently_used = True
        return file

    def _open(self, *, create: bool = False) -> File:
        policy = self._policy
        with policy.descriptors.lock:
            if self._deleted:
                end = self.base_offset + self.size_bytes
                raise OffsetOutOfRangeError("offset", self.base_offset, end, end)
            if self._closed:
                raise StoreClosedError
            if self._file is not None:
                return self._file
            try:
                file = self._file_system.open(self.path, writable=policy.writable, create=create)
            except OSError as error:
                raise_refusal(error, self.path, self.size_bytes)
                raise
            policy.descriptors.add(self)
            self._file = file
        return file


def raise_refusal(error: OSError, path: Path, needed_bytes: int) -> None:
    """Raise `DiskFullError` or `OutOfResourcesError` if that is what `error` means."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        raise DiskFullError(path, needed_bytes) from error
    if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
        raise OutOfResourcesError(path, error) from error
