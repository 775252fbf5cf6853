"""Reads an index file by `pread`: an unreadable block is an error of one read."""

from __future__ import annotations

import bisect
import errno
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self, final

import numpy as np
import numpy.typing as npt

from commitbus.commitlog.errors import NotAStoreError, ReadFailedError
from commitbus.commitlog.file_system import File, FileSystem, read_at
from commitbus.commitlog.mapped_file import raise_refusal
from commitbus.commitlog.types import PhysicalOffset
from commitbus.indexfile.index_format import (
    ENTRY,
    ENTRY_BYTES,
    ENTRY_DTYPE,
    HEADER,
    HEADER_BYTES,
    SLOT,
    SLOT_BYTES,
    SLOT_DTYPE,
    IndexHeader,
    entry_position,
    index_file_bytes,
)

_READ_BYTES: Final = 1 << 20
"""Read with one call: an error names a place about as exact as this."""


@final
class IndexEntry(NamedTuple):
    """20 bytes of the index: a key's hash and the message that has it."""

    key_hash: int
    physical_offset: PhysicalOffset
    seconds: int
    """Since the file's begin timestamp, rounded down."""
    previous: int
    """Index of the entry before this one in the same slot; 0 ends the chain."""


_new_entry: Final[Callable[[tuple[int, ...]], IndexEntry]] = partial(tuple.__new__, IndexEntry)
"""Costs a fifth of calling the class, whose `__new__` is written in Python."""


@final
class IndexReader:
    """An index file as it is at one moment: entries that are appended later are not seen.

    The descriptor is opened with the first read, and again after `close`. For one thread at a time.
    All methods that read raise:

        ReadFailedError: The disk does not give the bytes back.
        OutOfResourcesError: The process may open no more files.
        OSError: The file cannot be opened for another reason, as that it was removed.

    Attributes:
        path: Where the file lies.
        header: The counts and bounds.
        slot_count: Slots of the hash table.
        entry_count: Entries the file has room for, counting the unused entry 0.
    """

    def __init__(
        self,
        path: Path,
        slot_count: int,
        entry_count: int,
        header: IndexHeader,
        *,
        file_system: FileSystem,
        file: File | None = None,
        tail: bytes = b"",
    ) -> None:
        """Read what `header` counts; its last entries are `tail` if they are not in the file yet.

        `file` is used where it is given, and not closed.
        """
        self.path, self.header = path, header
        self.slot_count, self.entry_count = slot_count, entry_count
        self._file_system, self._shared = file_system, file
        self._own: File | None = None
        self._tail = tail
        self._tail_start = header.index_count - len(tail) // ENTRY_BYTES
        self._entries_position = entry_position(slot_count, 0)

    @classmethod
    def open(
        cls, path: Path, slot_count: int, entry_count: int, *, file_system: FileSystem
    ) -> IndexReader:
        """Return a reader of the entries that a file's header counts now.

        Raises:
            NotAStoreError: The file's size is not that of `slot_count` and `entry_count`, or its
                header counts more entries than there is room for.
            ReadFailedError: The disk does not give the header back.
            OSError: The file cannot be opened.
        """
        file = file_system.open(path, writable=False)
        try:
            header = _read_header(file, slot_count, entry_count)
        finally:
            file.close()
        return cls(path, slot_count, entry_count, header, file_system=file_system)

    def __enter__(self) -> Self:
        """Return the reader."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the descriptor."""
        self.close()

    def close(self) -> None:
        """Close the descriptor."""
        if self._own is not None:
            self._own.close()
            self._own = None

    @property
    def is_empty(self) -> bool:
        """Whether the file has no entry."""
        return self.header.index_count <= 1

    def position_of(self, index: int) -> int:
        """Return where an entry lies in the file."""
        return self._entries_position + index * ENTRY_BYTES

    def slot(self, number: int) -> int:
        """Return the index of the entry that a slot in the file leads to."""
        value: int = SLOT.unpack(self._read(SLOT_BYTES, HEADER_BYTES + SLOT_BYTES * number))[0]
        return value

    def slots(self) -> npt.NDArray[np.int32]:
        """Return the slots in the file, shape (slot_count,)."""
        return np.frombuffer(self._read(SLOT_BYTES * self.slot_count, HEADER_BYTES), SLOT_DTYPE)

    def entry(self, index: int) -> IndexEntry:
        """Return the entry at an index in [0, entry_count)."""
        at = (index - self._tail_start) * ENTRY_BYTES
        if 0 <= at < len(self._tail):
            return _new_entry(ENTRY.unpack_from(self._tail, at))
        position = self._entries_position + index * ENTRY_BYTES
        return _new_entry(ENTRY.unpack(self._read(ENTRY_BYTES, position)))

    def entries(self, start: int, end: int) -> npt.NDArray[np.void]:
        """Return entries [start, end) as `ENTRY_DTYPE`, shape (end - start,)."""
        in_file = min(max(self._tail_start, start), end)
        data = self._read((in_file - start) * ENTRY_BYTES, self.position_of(start))
        if in_file < end:
            first = in_file - self._tail_start
            data += self._tail[first * ENTRY_BYTES : (end - self._tail_start) * ENTRY_BYTES]
        return np.frombuffer(data, ENTRY_DTYPE)

    def first_index_at(self, physical_offset: int, end: int | None = None) -> int:
        """Return the first index below `end` of a message at or beyond an offset, else `end`.

        `end` is the index count when it is not given.
        """
        return self._bisect(lambda index: self.entry(index).physical_offset >= physical_offset, end)

    def first_index_after(self, timestamp_ms: int) -> int:
        """Return the first index of a message that was certainly stored after a time, else the end.

        Certainly, because entries have whole seconds.
        """
        return self._bisect(lambda index: self.stored_ms(index, self.entry(index)) > timestamp_ms)

    def stored_ms(self, index: int, entry: IndexEntry) -> int:
        """Return the earliest time at which the message of an entry may have been stored."""
        # The first entry's seconds count from where the previous file ended.
        return self.header.begin_timestamp + (entry.seconds * 1000 if index > 1 else 0)

    def _bisect(self, is_behind: Callable[[int], bool], end: int | None = None) -> int:
        indexes = range(self.header.index_count if end is None else end)
        low = min(1, len(indexes))
        # The condition holds from that index on.
        return bisect.bisect_left(indexes, 1, lo=low, key=lambda index: int(is_behind(index)))

    def _read(self, length: int, position: int) -> bytes:
        file = self._shared or self._own or self._open()
        if length <= _READ_BYTES:
            data = read_at(file, length, position)
        else:
            end = position + length
            data = b"".join(
                read_at(file, min(_READ_BYTES, end - at), at)
                for at in range(position, end, _READ_BYTES)
            )
        if len(data) < length:
            cause = OSError(errno.EIO, "the file is shorter than it was")
            raise ReadFailedError(self.path, position + len(data), cause)
        return data

    def _open(self) -> File:
        try:
            self._own = self._file_system.open(self.path, writable=False)
        except OSError as error:
            raise_refusal(error, self.path, 0)
            raise
        return self._own


def _read_header(file: File, slot_count: int, entry_count: int) -> IndexHeader:
    size, expected = file.size(), index_file_bytes(slot_count, entry_count)
    if size != expected:
        raise NotAStoreError(
            file.path,
            f"it has {size} bytes, but an index file of {slot_count} slots and {entry_count} "
            f"entries has {expected}; set index_slots and index_entries (maxHashSlotNum and "
            "maxIndexNum in RocketMQ) to what it was made with",
        )
    header = IndexHeader(*HEADER.unpack(read_at(file, HEADER_BYTES, 0)))
    if not 0 <= header.index_count <= entry_count:
        raise NotAStoreError(
            file.path, f"its header counts {header.index_count} entries of {entry_count}"
        )
    return header._replace(index_count=max(header.index_count, 1))
