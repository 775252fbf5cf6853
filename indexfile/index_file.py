"""One index file: entries appended one by one or in batches, chains walked.

Not thread-safe: `IndexService` owns the lock.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, final

import numpy as np
import numpy.typing as npt

from commitbus.commitlog.errors import FlushFailedError, NotAStoreError
from commitbus.commitlog.file_system import File, FileSystem, data_chunks
from commitbus.commitlog.kernels import kernels
from commitbus.commitlog.types import PhysicalOffset
from commitbus.indexfile.index_format import (
    ENTRY,
    ENTRY_BYTES,
    ENTRY_DTYPE,
    HEADER,
    HEADER_BYTES,
    SECONDS_MAX,
    SLOT,
    SLOT_BYTES,
    SLOT_DTYPE,
    IndexHeader,
    index_file_bytes,
)


@final
class IndexEntry(NamedTuple):
    """20 bytes of the index: a key's hash and the message that has it."""

    key_hash: int
    physical_offset: PhysicalOffset
    seconds: int
    """Since the file's begin timestamp, rounded down."""
    previous: int
    """Index of the entry before this one in the same slot; 0 ends the chain."""


@final
class IndexFile:
    """An index file, mapped.

    Attributes:
        path: Where it lies.
        header: The counts and bounds, as in the file's first 40 bytes. Replaced, never changed.
        slot_count: Slots of the hash table.
        entry_count: Entries the file has room for, counting the unused entry 0.

    Raises:
        NotAStoreError: The file's size is not that of `slot_count` and `entry_count`, or its
            header counts more entries than there is room for.
        OSError: The file cannot be opened or mapped.
    """

    def __init__(
        self,
        path: Path,
        slot_count: int,
        entry_count: int,
        *,
        file_system: FileSystem,
        writable: bool = True,
    ) -> None:
        self.path, self.slot_count, self.entry_count = path, slot_count, entry_count
        self._file_system = file_system
        self._file: File = file_system.open(path, writable=writable)
        self._entries_position = HEADER_BYTES + SLOT_BYTES * slot_count
        try:
            header = self._read_header()
            self._mapping = self._file.map(index_file_bytes(slot_count, entry_count))
        except BaseException:
            self._file.close()
            raise
        # Keys hash all over the file: reading ahead around each would read it whole.
        self._mapping.advise_random()
        self._view = self._mapping.buffer
        self.header = header._replace(index_count=max(header.index_count, 1))
        self._dirty = False

    @classmethod
    def create(
        cls,
        path: Path,
        slot_count: int,
        entry_count: int,
        *,
        file_system: FileSystem,
        previous: IndexHeader | None,
    ) -> IndexFile:
        """Make a new file, all its blocks allocated, beginning where `previous` ends.

        Raises:
            OSError: There is no room for it, or another reason; nothing is left behind.
        """
        size = index_file_bytes(slot_count, entry_count)
        new_file = file_system.open(path, create=True)
        try:
            if previous is not None:
                end_timestamp, end_offset = previous.end_timestamp, previous.end_physical_offset
                header = IndexHeader(end_timestamp, end_timestamp, end_offset, end_offset)
                # First of all: from a file that a kill left without it, RocketMQ concludes that
                # nothing is indexed yet, and indexes everything that it recovers once more.
                new_file.pwrite(HEADER.pack(*header), 0)
            # A mapped store to a hole of a sparse file is SIGBUS when the disk is full.
            new_file.allocate(0, size)
            # Before it counts an entry: a header that counts some in a file without its size would
            # look like one that was made with other numbers.
            new_file.sync_data()
        except OSError:
            file_system.remove(path)
            raise
        finally:
            new_file.close()
        index_file = cls(path, slot_count, entry_count, file_system=file_system)
        index_file._dirty = True
        return index_file

    @property
    def is_full(self) -> bool:
        """Whether it takes no more entries."""
        return self.header.index_count >= self.entry_count

    @property
    def is_empty(self) -> bool:
        """Whether it has no entry."""
        return self.header.index_count <= 1

    def entry(self, index: int) -> IndexEntry:
        """Return the entry at an index in [0, entry_count)."""
        position = self._entries_position + index * ENTRY_BYTES
        return IndexEntry(*ENTRY.unpack_from(self._view, position))

    def entries(self, start: int, end: int) -> npt.NDArray[np.void]:
        """Return entries [start, end) as `ENTRY_DTYPE` in mapped memory; drop it before `close`."""
        position = self._entries_position + start * ENTRY_BYTES
        return np.frombuffer(self._view, dtype=ENTRY_DTYPE, count=end - start, offset=position)

    def slots(self) -> npt.NDArray[np.int32]:
        """Return the slots, shape (slot_count,), in mapped memory; drop it before `close`."""
        return np.frombuffer(
            self._view, dtype=SLOT_DTYPE, count=self.slot_count, offset=HEADER_BYTES
        )

    def append(
        self,
        key_hashes: npt.NDArray[np.int32],
        physical_offsets: npt.NDArray[np.int64],
        store_timestamps: npt.NDArray[np.int64],
    ) -> int:
        """Add as many of these entries, all of shape (n,), as there is room for.

        Returns:
            How many were added, from the first one on.
        """
        header = self.header
        start = header.index_count
        count = min(len(key_hashes), self.entry_count - start)
        if count <= 0:
            return 0
        key_hashes, physical_offsets = key_hashes[:count], physical_offsets[:count]
        store_timestamps = store_timestamps[:count]
        begins = header.begin_timestamp, header.begin_timestamp
        if start == 1:
            # The first is measured from where the previous file ended, the rest from the first.
            first = int(store_timestamps[0])
            begins = header.begin_timestamp if header.begin_timestamp > 0 else first, first
        # Valid once the header counts them: what a process killed in between leaves, slots at or
        # above the count, nothing follows.
        new_slots = kernels(0).append_index_entries(
            self._view,
            slot_count=self.slot_count,
            start=start,
            key_hashes=key_hashes,
            physical_offsets=physical_offsets,
            store_timestamps=store_timestamps,
            begins=begins,
        )
        self.replace_header(
            IndexHeader(
                int(store_timestamps[0]) if start == 1 else header.begin_timestamp,
                int(store_timestamps[-1]),
                int(physical_offsets[0]) if start == 1 else header.begin_physical_offset,
                int(physical_offsets[-1]),
                header.slot_count + new_slots,
                start + count,
            )
        )
        return count

    def append_one(self, key_hash: int, physical_offset: int, store_timestamp: int) -> None:
        """Add one entry; there must be room. For a few entries: 3 us, where `append` takes 80."""
        header = self.header
        index = header.index_count
        assert index < self.entry_count, "a full file takes no more"
        slot_position = HEADER_BYTES + SLOT_BYTES * (key_hash % self.slot_count)
        (head,) = SLOT.unpack_from(self._view, slot_position)
        if not 0 < head < index:
            head = 0
        is_first = index == 1
        begin = header.begin_timestamp
        seconds = (store_timestamp - begin) // 1000 if begin > 0 else 0
        ENTRY.pack_into(
            self._view,
            self._entries_position + index * ENTRY_BYTES,
            key_hash,
            physical_offset,
            min(max(seconds, 0), SECONDS_MAX),
            head,
        )
        SLOT.pack_into(self._view, slot_position, index)
        self.replace_header(
            IndexHeader(
                store_timestamp if is_first else begin,
                store_timestamp,
                physical_offset if is_first else header.begin_physical_offset,
                physical_offset,
                header.slot_count + (head == 0),
                index + 1,
            )
        )

    def candidates(self, key_hash: int, begin_ms: int, end_ms: int) -> Iterator[PhysicalOffset]:
        """Yield the messages whose key has this hash, newest first.

        Entries keep whole seconds, so a message up to a second outside [begin_ms, end_ms] may be
        among them. Ends on a damaged chain: a sound one leads to ever lower indexes.
        """
        header = self.header
        if header.begin_timestamp > end_ms or header.end_timestamp < begin_ms:
            return
        slot_position = HEADER_BYTES + SLOT_BYTES * (key_hash % self.slot_count)
        (index,) = SLOT.unpack_from(self._view, slot_position)
        above = header.index_count
        while 0 < index < above:
            entry_hash, physical_offset, seconds, previous = ENTRY.unpack_from(
                self._view, self._entries_position + index * ENTRY_BYTES
            )
            # The first entry's seconds count from where the previous file ended.
            earliest_ms = header.begin_timestamp + (seconds * 1000 if index > 1 else 0)
            if earliest_ms + 999 < begin_ms:
                return
            if entry_hash == key_hash and earliest_ms <= end_ms and physical_offset >= 0:
                yield PhysicalOffset(physical_offset)
            above, index = index, previous

    def first_index_at(self, physical_offset: int, end: int | None = None) -> int:
        """Return the first index below `end` of a message at or beyond an offset, else `end`.

        `end` is the index count when it is not given.
        """

        def offset_at(index: int) -> int:
            return self.entry(index).physical_offset

        indexes = range(self.header.index_count if end is None else end)
        return bisect.bisect_left(indexes, physical_offset, lo=1, key=offset_at)

    def replace_header(self, header: IndexHeader) -> None:
        """Write a header: what makes entries valid, so the last step of every change."""
        HEADER.pack_into(self._view, 0, *header)
        self.header = header
        self._dirty = True

    def zero_entries_from(self, index: int) -> None:
        """Set the entries from `index` on to zero, storing only where they are not."""
        size = index_file_bytes(self.slot_count, self.entry_count)
        position = self._entries_position + index * ENTRY_BYTES
        # Read, not mapped: a clean page must not become a dirty one.
        for start, chunk in data_chunks(self._file, position, size):
            self._view[start : start + len(chunk)] = bytes(len(chunk))

    def flush(self) -> None:
        """Make everything appended durable.

        Raises:
            FlushFailedError: The operating system could not.
        """
        if not self._dirty:
            return
        self._dirty = False
        try:
            self._file.sync_data()
        except OSError as error:
            raise FlushFailedError(self.path, error) from error

    def close(self) -> None:
        """Unmap and close. Does not flush."""
        self._view = memoryview(b"")
        self._mapping.close()
        self._file.close()

    def _read_header(self) -> IndexHeader:
        size = self._file.size()
        expected = index_file_bytes(self.slot_count, self.entry_count)
        if size != expected:
            raise NotAStoreError(
                self.path,
                f"it has {size} bytes, but an index file of {self.slot_count} slots and "
                f"{self.entry_count} entries has {expected}; set index_slots and index_entries "
                "(maxHashSlotNum and maxIndexNum in RocketMQ) to what it was made with",
            )
        header = IndexHeader(*HEADER.unpack(self._file.pread(HEADER_BYTES, 0)))
        if not 0 <= header.index_count <= self.entry_count:
            raise NotAStoreError(
                self.path, f"its header counts {header.index_count} entries of {self.entry_count}"
            )
        return header
