"""The index of a store: its files in log order, filled by reput, asked by queries."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import final

import numpy as np

from commitbus.commitlog.clock import Clock
from commitbus.commitlog.errors import FlushFailedError, StoreClosedError
from commitbus.commitlog.file_system import FileSystem
from commitbus.commitlog.kernels import DispatchBatch, DispatchColumns
from commitbus.commitlog.mapped_file import raise_refusal
from commitbus.commitlog.types import DispatchRequest, PhysicalOffset
from commitbus.indexfile.index_file import IndexFile
from commitbus.indexfile.index_format import (
    HEADER,
    HEADER_BYTES,
    IndexHeader,
    KeyKind,
    file_name,
    index_file_bytes,
    is_file_name,
    key_hash,
    key_hashes,
    key_text,
    key_texts,
)
from commitbus.indexfile.index_repair import cut, intact_count

_FEW_ENTRIES = 16
"""Up to here one by one is faster: the numpy calls of a batch take 80 us however small it is."""
_BATCH_UNITS_MAX = 1 << 17
"""Characters of key texts that are hashed and stored at once: bounds the memory of a put."""


@final
class IndexService:
    """Every index file of a store. All methods are thread-safe once `load` has returned.

    A function of the log: what a put stores depends only on the messages put before, so an index
    that lost its end is filled up again by putting the messages from `dispatched_to` on.

    Attributes:
        directory: The store's `index` folder.
    """

    def __init__(
        self,
        directory: Path,
        *,
        slot_count: int,
        entry_count: int,
        clock: Clock,
        file_system: FileSystem,
        writable: bool = True,
    ) -> None:
        assert slot_count > 0
        assert entry_count > 1, "entry 0 is never used, so a file of one entry holds none"
        self.directory = directory
        self._slot_count, self._entry_count = slot_count, entry_count
        self._clock, self._file_system, self._writable = clock, file_system, writable
        self._files: list[IndexFile] = []
        self._lock = threading.Lock()
        # A file must not be closed while it is flushed; taken before `_lock`.
        self._flush_lock = threading.Lock()
        self._dispatched_to = PhysicalOffset(0)
        # Entries that the message at `_dispatched_to` already has: a roll to the next file or a
        # kill can come between two keys of one message.
        self._entries_there = 0
        self._last_full_timestamp = 0
        self._last_full_offset = PhysicalOffset(0)
        self._has_removed = False
        self._closed = False

    def load(self) -> None:
        """Open the files that are there. Call it once, before anything else.

        Raises:
            NotAStoreError: A file is not one of this many slots and entries.
            OSError: A file cannot be read.
        """
        names = filter(is_file_name, self._file_system.list_names(self.directory))
        paths = [self.directory / name for name in names]
        for position, path in enumerate(paths):
            if not self._load_file(path) and self._writable:
                # A process died after creating the file, or a power cut took its header. Entries
                # of later files are of no use without those that were in it: reput begins here.
                for lost in reversed(paths[position:]):
                    self._file_system.remove(lost)
                break
        # Names are local times, which the end of summer time sets back; offsets never go back.
        self._files.sort(key=lambda file: file.header.end_physical_offset)
        self._find_where_to_resume()

    @property
    def dispatched_to(self) -> PhysicalOffset:
        """Nothing that lies before this physical offset, the start of a message, is missing.

        After `load` it is the last indexed message, whose keys may not all be there. A log whose
        last messages have no keys leaves it behind them.
        """
        return self._dispatched_to

    @property
    def last_full_timestamp(self) -> int:
        """Store timestamp up to which full files hold everything and were flushed; 0 = unknown."""
        return self._last_full_timestamp

    @property
    def last_full_offset(self) -> PhysicalOffset:
        """Physical offset up to which full files hold everything and were flushed; 0 = unknown."""
        return self._last_full_offset

    def paths(self) -> list[Path]:
        """Return the files, oldest first."""
        with self._lock:
            return [file.path for file in self._files]

    def put(self, requests: DispatchBatch) -> None:
        """Index messages, given in log order; what the index already holds is skipped.

        Not durable before `flush`; survives the process at once.

        Raises:
            DiskFullError: There is no room for a further file. What fitted is stored; putting
                the same messages again goes on from there.
            StoreClosedError: The service was closed.
        """
        assert self._writable
        with self._lock:
            self._check_open()
            try:
                if isinstance(requests, DispatchColumns):
                    self._put_columns(requests)
                else:
                    self._put(requests)
            except OSError as error:
                self._find_where_to_resume()
                size = index_file_bytes(self._slot_count, self._entry_count)
                raise_refusal(error, self.directory, size)
                raise
            end = _end_of(requests)
            if end > self._dispatched_to:
                self._dispatched_to, self._entries_there = end, 0

    def query(
        self,
        topic: str,
        key: str,
        begin_ms: int,
        end_ms: int,
        max_count: int,
        *,
        kind: KeyKind = KeyKind.KEY,
    ) -> list[PhysicalOffset]:
        """Return up to `max_count` messages that may have a key, newest first, each once.

        Entries hold a hash and whole seconds, so the caller compares the key in the record, and
        the store timestamp with [begin_ms, end_ms] where a second matters.

        Raises:
            StoreClosedError: The service was closed.
        """
        if max_count <= 0:
            return []
        wanted = key_hash(key_text(topic, key, kind))
        found: list[PhysicalOffset] = []
        with self._lock:
            self._check_open()
            for file in reversed(self._files):
                for offset in file.candidates(wanted, begin_ms, end_ms):
                    # A message that has a key twice has two entries next to each other.
                    if not found or offset != found[-1]:
                        found.append(offset)
                        if len(found) == max_count:
                            return found
        return found

    def discard_after(
        self, trusted_timestamp: int, trusted_end: PhysicalOffset | None = None
    ) -> None:
        """After an unclean stop: keep of the files that nothing vouches for what is intact.

        Full files that end at or before `trusted_timestamp` (the checkpoint's index timestamp)
        were flushed; of those that end at that very time, the first: after the clock was set back,
        all messages are stored at one time until it has caught up. The first other file is cut
        back to before the first entry that did not reach the disk, its slots are derived again,
        and later files are removed.

        With `trusted_end` the physical offsets are compared with that instead: they always rise.
        """
        assert self._writable
        with self._flush_lock, self._lock:
            last_end = -1
            trusted = trusted_timestamp if trusted_end is None else trusted_end
            for position, file in enumerate(self._files):
                header = file.header
                end = header.end_timestamp if trusted_end is None else header.end_physical_offset
                if file.is_full and last_end < trusted >= end:
                    last_end = end
                    continue
                self._shorten(position, intact_count(file))
                break
            self._find_where_to_resume()

    def truncate(self, end: PhysicalOffset) -> None:
        """Remove the entries of messages at or beyond `end`, where the log was cut."""
        assert self._writable
        with self._flush_lock, self._lock:
            for position, file in enumerate(self._files):
                if file.header.end_physical_offset >= end:
                    self._shorten(position, file.first_index_at(end))
                    break
            self._find_where_to_resume()

    def delete_before(self, min_physical_offset: PhysicalOffset) -> None:
        """Remove files whose messages all lie before an offset. The newest file always stays."""
        assert self._writable
        with self._flush_lock, self._lock:
            while (
                len(self._files) > 1
                and self._files[0].header.end_physical_offset < min_physical_offset
            ):
                self._remove(0)

    def flush(self) -> None:
        """Make everything put before the call durable, and what was removed.

        Raises:
            FlushFailedError: The operating system could not.
        """
        with self._flush_lock:
            with self._lock:
                files = list(self._files)
                full = [file for file in files if file.is_full]
                has_removed, self._has_removed = self._has_removed, False
            for file in files:
                file.flush()
            if has_removed:
                self._sync_directories()
            if full:
                self._last_full_timestamp = full[-1].header.end_timestamp
                self._last_full_offset = PhysicalOffset(full[-1].header.end_physical_offset)

    def close(self) -> None:
        """Unmap and close every file. Does not flush. Idempotent."""
        with self._flush_lock, self._lock:
            self._closed = True
            for file in self._files:
                file.close()
            self._files.clear()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError

    def _load_file(self, path: Path) -> bool:
        """Open a file; return False, leaving it alone, if it has no entry."""
        if self._was_never_used(path):
            return False
        file = IndexFile(
            path,
            self._slot_count,
            self._entry_count,
            file_system=self._file_system,
            writable=self._writable,
        )
        if file.is_empty:
            file.close()
            return False
        self._files.append(file)
        return True

    def _was_never_used(self, path: Path) -> bool:
        """Return whether a process died between creating the file and giving it its size."""
        file = self._file_system.open(path, writable=False)
        try:
            header = file.pread(HEADER_BYTES, 0)
            is_short = file.size() < index_file_bytes(self._slot_count, self._entry_count)
            if len(header) < HEADER_BYTES or not is_short:
                return is_short
            return IndexHeader(*HEADER.unpack(header)).index_count <= 1
        finally:
            file.close()

    def _find_where_to_resume(self) -> None:
        """Set the resume point from the last message that has an entry."""
        self._dispatched_to, self._entries_there = PhysicalOffset(0), 0
        if not self._files:
            return
        last = self._files[-1].header.end_physical_offset
        self._dispatched_to = PhysicalOffset(last)
        for file in reversed(self._files):
            first = file.first_index_at(last)
            self._entries_there += file.header.index_count - first
            if first > 1:
                break

    def _put(self, requests: Sequence[DispatchRequest]) -> None:
        texts: list[str] = []
        units = 0
        # One (physical offset, store timestamp, number of entries) per message.
        messages: list[tuple[int, int, int]] = []
        for request in requests:
            if request.physical_offset < self._dispatched_to:
                continue
            new_texts = key_texts(request)
            if request.physical_offset == self._dispatched_to:
                new_texts = new_texts[self._entries_there :]
            if not new_texts:
                continue
            texts += new_texts
            messages.append((request.physical_offset, request.store_timestamp, len(new_texts)))
            units += sum(map(len, new_texts))
            if units > _BATCH_UNITS_MAX:
                self._append(texts, messages)
                texts, messages, units = [], [], 0
        if texts:
            self._append(texts, messages)

    def _put_columns(self, columns: DispatchColumns) -> None:
        offsets, counts = columns.physical_offsets, columns.key_counts
        done = 0
        if self._entries_there or offsets[0] < self._dispatched_to:
            first = int(np.searchsorted(offsets, self._dispatched_to))
            done = int(counts[:first].sum())
            if first < len(columns) and offsets[first] == self._dispatched_to:
                done += min(self._entries_there, int(counts[first]))
        entry_offsets = np.repeat(offsets, counts)
        entry_timestamps = np.repeat(columns.store_timestamps, counts)
        while done < len(columns.key_hashes):
            file = self._file_with_room()
            done += file.append(
                columns.key_hashes[done:], entry_offsets[done:], entry_timestamps[done:]
            )

    def _append(self, texts: list[str], messages: list[tuple[int, int, int]]) -> None:
        if len(texts) <= _FEW_ENTRIES:
            remaining = iter(texts)
            for offset, timestamp, count in messages:
                for text in islice(remaining, count):
                    self._file_with_room().append_one(key_hash(text), offset, timestamp)
            return
        hashes = key_hashes(texts)
        flat = np.fromiter(chain.from_iterable(messages), dtype=np.int64, count=3 * len(messages))
        columns = flat.reshape(-1, 3)
        offsets = np.repeat(columns[:, 0], columns[:, 2])
        timestamps = np.repeat(columns[:, 1], columns[:, 2])
        done = 0
        while done < len(texts):
            file = self._file_with_room()
            done += file.append(hashes[done:], offsets[done:], timestamps[done:])

    def _file_with_room(self) -> IndexFile:
        if self._files and not self._files[-1].is_full:
            return self._files[-1]
        # The first file comes with the first key: a store without keys has no 420 MB index.
        self._file_system.make_directories(self.directory)
        newest = max((file.path.name for file in self._files), default="")
        self._files.append(
            IndexFile.create(
                self.directory / file_name(self._clock.now_ms(), newest),
                self._slot_count,
                self._entry_count,
                file_system=self._file_system,
                previous=self._files[-1].header if self._files else None,
            )
        )
        # At once: a power cut must not keep the next file and lose this one.
        self._sync_directories()
        return self._files[-1]

    def _sync_directories(self) -> None:
        for directory in (self.directory, self.directory.parent):
            try:
                self._file_system.sync_directory(directory)
            except OSError as error:
                raise FlushFailedError(directory, error) from error

    def _shorten(self, position: int, index_count: int) -> None:
        """Keep of the file at `position` the entries below `index_count`, remove later files.

        The last message that remains goes too, since its last entry may be half written and the
        header needs its timestamp: the next put brings it back.
        """
        while len(self._files) > position + 1:
            self._remove(len(self._files) - 1)
        file = self._files[position]
        if index_count > 1:
            last = file.entry(index_count - 1).physical_offset
            index_count = file.first_index_at(last, index_count)
        if index_count > 1:
            cut(file, index_count)
        else:
            self._remove(position)

    def _remove(self, position: int) -> None:
        file = self._files.pop(position)
        file.close()
        # Somebody else may have removed it before: that must not keep other files.
        with suppress(FileNotFoundError):
            self._file_system.remove(file.path)
        self._has_removed = True


def _end_of(requests: DispatchBatch) -> PhysicalOffset:
    """Return the end of the last message, 0 without any."""
    if not len(requests):
        return PhysicalOffset(0)
    if isinstance(requests, DispatchColumns):
        return requests.end_offset
    return requests[-1].end_offset
