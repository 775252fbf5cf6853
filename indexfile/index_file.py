"""One index file: entries appended one by one or in batches, and written to the file.

Nothing is mapped. Entries lie next to each other in the file, so a put writes them with one call,
and then the header that counts them. Slots lie all over it: those of the file that is appended to
are in memory, and `write` writes the pages that changed. A killed process leaves whole entries, but
slots may lead to older entries, or to ones that the header does not count. After an unclean stop
they are derived again (`cut`); a process that only reads derives them in memory (`ready_to_read`).

Not thread-safe: `IndexService` owns the lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, NoReturn, final

import numpy as np
import numpy.typing as npt

from commitbus.commitlog.errors import (
    FlushFailedError,
    OutOfResourcesError,
    ReadFailedError,
    StoreError,
)
from commitbus.commitlog.file_system import File, FileSystem, data_chunks, read_at
from commitbus.commitlog.kernels import kernels
from commitbus.commitlog.mapped_file import raise_refusal
from commitbus.indexfile.index_format import (
    ENTRY,
    ENTRY_BYTES,
    HEADER,
    SECONDS_MAX,
    IndexHeader,
    entry_position,
    index_file_bytes,
)
from commitbus.indexfile.index_reader import IndexReader
from commitbus.indexfile.index_repair import slot_heads
from commitbus.indexfile.index_slots import Slots

_COPY_BYTES: Final = 1 << 20


@final
class NewEntry(NamedTuple):
    """A key of a message that is to be indexed."""

    key_hash: int
    physical_offset: int
    store_timestamp: int


@final
class IndexFile:
    """An index file of a service.

    Attributes:
        path: Where it lies.
        header: The counts and bounds, those of entries in memory included. Replaced, never changed.
        slot_count: Slots of the hash table.
        entry_count: Entries the file has room for, counting the unused entry 0.
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
        """Read the header of a file that is there.

        Raises:
            NotAStoreError: The file's size is not that of `slot_count` and `entry_count`, or its
                header counts more entries than there is room for.
            ReadFailedError: The disk does not give the header back.
            OSError: The file cannot be opened.
        """
        self.path, self.slot_count, self.entry_count = path, slot_count, entry_count
        self._file_system, self._writable = file_system, writable
        with IndexReader.open(path, slot_count, entry_count, file_system=file_system) as reader:
            self.header = self._written_header = reader.header
        self._file: File | None = None
        self._slots: Slots | None = None
        """None while those in the file count."""
        self._tail = bytearray()
        """The last entries, until they are in the file."""
        self._doubtful_count = 0
        """Entries below this index are perhaps in the page cache only."""
        self._is_reserved = self._must_sync = self._is_ready_to_read = False
        self.is_gone = False
        """Whether it was removed, or closed."""

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
            # So that a full disk is told now, and not by some later write in the middle.
            new_file.allocate(0, size)
            # Before it counts an entry: a header that counts some in a file without its size would
            # look like one that was made with other numbers.
            new_file.sync_data()
            index_file = cls(path, slot_count, entry_count, file_system=file_system)
        except OSError:
            file_system.remove(path)
            raise
        finally:
            new_file.close()
        index_file._slots, index_file._is_reserved = Slots(slot_count), True
        return index_file

    @property
    def is_full(self) -> bool:
        """Whether it takes no more entries."""
        return self.header.index_count >= self.entry_count

    @property
    def is_empty(self) -> bool:
        """Whether it has no entry."""
        return self.header.index_count <= 1

    @property
    def is_open(self) -> bool:
        """Whether it has a descriptor."""
        return self._file is not None

    # Reading

    def reader(self) -> IndexReader:
        """Return a reader of the file as it is now. It raises when it reads, as `IndexReader`."""
        if not self.is_full:
            # There may be hundreds of full files: each reader opens its own descriptor.
            with suppress(OSError, OutOfResourcesError):
                self._open()
        return IndexReader(
            self.path,
            self.slot_count,
            self.entry_count,
            self.header,
            file_system=self._file_system,
            file=self._file,
            tail=bytes(self._tail),
        )

    def ready_to_read(self) -> None:
        """See that queries find all entries that the header counts.

        Another process may be appending to a file that is opened for reading, or was killed while
        doing so. Its slots are behind then; whether they are shows in that of the last entry.

        Raises:
            ReadFailedError: The disk does not give back what is needed.
            OSError: The file cannot be opened.
        """
        if self._writable or self._is_ready_to_read or self.is_full:
            return
        last = self.header.index_count - 1
        with self.reader() as reader:
            if reader.slot(reader.entry(last).key_hash % self.slot_count) < last:
                self._slots = Slots.of(slot_heads(reader, last + 1))
        self._is_ready_to_read = True

    def head(self, key_hash: int) -> int | None:
        """Return the newest entry of the chain that a hash belongs to; None if the file tells."""
        if self._slots is None:
            return None
        head = self._slots.head(key_hash)
        return head if 0 < head < self.header.index_count else 0

    # Appending

    def append(
        self,
        key_hashes: npt.NDArray[np.int32],
        physical_offsets: npt.NDArray[np.int64],
        store_timestamps: npt.NDArray[np.int64],
    ) -> int:
        """Add as many of these entries, all of shape (n,), as there is room for.

        They are in memory only, until `finish_writing` or `write`.

        Returns:
            How many were added, from the first one on.

        Raises:
            DiskFullError: The file was sparse, and there is no room for its blocks, or what was
                added before could not be written.
            ReadFailedError: The disk does not give the slots back.
            OutOfResourcesError: The process may open no more files.
            FlushFailedError: The disk refuses what was added before.
        """
        header = self.header
        start = header.index_count
        count = min(len(key_hashes), self.entry_count - start)
        if count <= 0:
            return 0
        slots = self._ready_slots()
        key_hashes, physical_offsets = key_hashes[:count], physical_offsets[:count]
        store_timestamps = store_timestamps[:count]
        begins = header.begin_timestamp, header.begin_timestamp
        if start == 1:
            # The first is measured from where the previous file ended, the rest from the first.
            first = int(store_timestamps[0])
            begins = header.begin_timestamp if header.begin_timestamp > 0 else first, first
        entries = bytearray(count * ENTRY_BYTES)
        new_slots = kernels(0).append_index_entries(
            slots.view,
            slots.changed_pages,
            memoryview(entries),
            start=start,
            key_hashes=key_hashes,
            physical_offsets=physical_offsets,
            store_timestamps=store_timestamps,
            begins=begins,
        )
        self._tail = entries
        self.header = IndexHeader(
            int(store_timestamps[0]) if start == 1 else header.begin_timestamp,
            int(store_timestamps[-1]),
            int(physical_offsets[0]) if start == 1 else header.begin_physical_offset,
            int(physical_offsets[-1]),
            header.slot_count + new_slots,
            start + count,
        )
        return count

    def append_few(self, entries: Sequence[NewEntry]) -> int:
        """Add as many of these entries as there is room for; return how many. Raises as `append`.

        1 us for each, where `append` takes 80 for any number.
        """
        header = self.header
        index = header.index_count
        entries = entries[: self.entry_count - index]
        if not entries:
            return 0
        slots, used = self._ready_slots(), header.slot_count
        begin, begin_offset = header.begin_timestamp, header.begin_physical_offset
        for key_hash, physical_offset, store_timestamp in entries:
            head = slots.head(key_hash)
            if not 0 < head < index:
                head = 0
                used += 1
            seconds = (store_timestamp - begin) // 1000 if begin > 0 else 0
            seconds = min(max(seconds, 0), SECONDS_MAX)
            self._tail += ENTRY.pack(key_hash, physical_offset, seconds, head)
            slots.set_head(key_hash, index)
            if index == 1:
                begin, begin_offset = store_timestamp, physical_offset
            index += 1
        _, end_offset, end_timestamp = entries[-1]
        self.header = IndexHeader(begin, end_timestamp, begin_offset, end_offset, used, index)
        return len(entries)

    def _ready_slots(self) -> Slots:
        """Return the slots, read if need be, and see that entries will find room.

        Called before any change, so that a failed put can be tried again.
        """
        if not self._is_reserved:
            file, size = self._open(), index_file_bytes(self.slot_count, self.entry_count)
            try:
                # A copied file may be sparse, and so may RocketMQ's own.
                file.allocate(0, size)
            except OSError as error:
                raise_refusal(error, self.path, size)
                raise
            self._is_reserved = True
        if self._slots is None:
            self._slots = Slots.of(self.reader().slots())
        # Entries of the last put, if there was no room for them then.
        self.write_entries()
        return self._slots

    # Writing

    @property
    def is_written(self) -> bool:
        """Whether the file has everything, and everything was flushed."""
        return self._has_all() and not self._must_sync and not self._doubtful_count

    def write(self) -> None:
        """Write everything that is in memory. Raises as `write_entries`."""
        for pages in self.changed_slots():
            self.write_slots(pages)
        self.finish_writing()

    def changed_slots(self) -> list[range]:
        """Return the pages of slots that are to be written."""
        slots = self._slots  # Another thread may give them up.
        return [] if slots is None else list(slots.changed_runs())

    def write_slots(self, pages: range) -> None:
        """Write some pages of slots. Raises as `write_entries`."""
        if self._slots is None:
            return
        file = self._open()
        try:
            self._slots.write(pages, file)
        except OSError as error:
            self._raise_refused(error)
        self._must_sync = True

    def write_entries(self) -> None:
        """Write the entries that are in memory.

        Raises:
            DiskFullError: There is no room for them.
            FlushFailedError: The disk refuses them for another reason.
            OutOfResourcesError: The process may open no more files.
        """
        if self._tail:
            index = self.header.index_count - len(self._tail) // ENTRY_BYTES
            self._write(self._tail, entry_position(self.slot_count, index))
            self._tail = bytearray()

    def finish_writing(self) -> None:
        """Write entries, then the header that counts them. Raises as `write_entries`.

        Slots may have changed since they were written: see `is_written`.
        """
        self.write_entries()
        if self.header != self._written_header:
            self._write(HEADER.pack(*self.header), 0)
            self._written_header = self.header

    def write_again(self) -> None:
        """Write an earlier process's entries again: if its sync failed, they may be in memory only.

        The kernel took the pages for clean then, so that a sync alone would pass them over. Puts
        may go on meanwhile. Raises as `write_entries`.
        """
        if not self._doubtful_count:
            return
        file, end = self._open(), entry_position(self.slot_count, self._doubtful_count)
        for position in range(entry_position(self.slot_count, 1), end, _COPY_BYTES):
            # A page that cannot be read is not in memory only, so it need not be written again.
            with suppress(ReadFailedError):
                data = read_at(file, min(_COPY_BYTES, end - position), position)
                self._write(data, position)
        self._doubtful_count = 0

    def sync(self) -> None:
        """Make durable what was written.

        Raises:
            FlushFailedError: The operating system could not.
        """
        file, must_sync = self._file, self._must_sync
        self._must_sync = False
        if file is None or not must_sync:
            return
        try:
            file.sync_data()
        except OSError as error:
            raise FlushFailedError(self.path, error) from error

    def release(self) -> None:
        """Release slots and descriptor of a file that is full and written. Readers go on."""
        assert self.is_written, "what is not in the file would be lost"
        self._slots, self._file = None, None

    def close(self) -> None:
        """Write slots and entries that are in memory, if the disk takes them, and close."""
        with suppress(OSError, StoreError):
            if self._writable:
                self.write()
        self.close_unwritten()

    def close_unwritten(self) -> None:
        """Close without writing what is in memory. Readers go on."""
        self.is_gone = True
        self._slots, self._file, self._tail = None, None, bytearray()

    def cut(self, index_count: int, slot_heads: npt.NDArray[np.int32]) -> None:
        """Keep the entries below `index_count` (at least 2), and make all else agree with them.

        Durable after `sync`, but for the slots, which `write` writes. The end timestamp then is a
        whole number of seconds after the begin: the caller must append the next message, or this
        one again, to set it right.

        Args:
            index_count: How many entries are kept, counting entry 0.
            slot_heads: The newest entry of each slot then, shape (slot_count,).

        Raises:
            ReadFailedError: The disk does not give back what is needed.
            DiskFullError: There is no room for what is written.
            FlushFailedError: The disk refuses it for another reason.
            OutOfResourcesError: The process may open no more files.
        """
        assert 1 < index_count <= self.header.index_count
        assert not self._tail, "written before"
        file, reader = self._open(), self.reader()
        last, old_slots = reader.entry(index_count - 1), reader.slots()
        size = index_file_bytes(self.slot_count, self.entry_count)
        for start, chunk in data_chunks(file, entry_position(self.slot_count, index_count), size):
            self._write(bytes(len(chunk)), start)
        self.header = self.header._replace(
            end_timestamp=self.header.begin_timestamp + last.seconds * 1000,
            end_physical_offset=last.physical_offset,
            slot_count=int(np.count_nonzero(slot_heads)),
            index_count=index_count,
        )
        self._write(HEADER.pack(*self.header), 0)
        self._written_header = self.header
        self._slots = Slots.of(slot_heads)
        self._slots.must_be_written(old_slots)
        self._doubtful_count = index_count

    def _has_all(self) -> bool:
        slots = self._slots  # Another thread may give them up.
        are_slots_written = slots is None or slots.are_written
        return are_slots_written and not self._tail and self.header == self._written_header

    def _write(self, data: bytes | bytearray, position: int) -> None:
        file = self._open()
        try:
            file.pwrite(memoryview(data), position)
        except OSError as error:
            self._raise_refused(error)
        self._must_sync = True

    def _raise_refused(self, error: OSError) -> NoReturn:
        raise_refusal(error, self.path, index_file_bytes(self.slot_count, self.entry_count))
        raise FlushFailedError(self.path, error) from error

    def _open(self) -> File:
        if self._file is None:
            try:
                self._file = self._file_system.open(self.path, writable=self._writable)
            except OSError as error:
                raise_refusal(error, self.path, 0)
                raise
        return self._file
