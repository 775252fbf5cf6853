"""The index of a store: its files in log order, filled by reput, asked by queries."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from itertools import chain, islice
from pathlib import Path
from typing import Final, final

import numpy as np

from commitbus.commitlog.clock import Clock
from commitbus.commitlog.errors import (
    ReadFailedError,
    StoreClosedError,
    StoreError,
)
from commitbus.commitlog.file_system import FileSystem
from commitbus.commitlog.kernels import DispatchBatch, DispatchColumns
from commitbus.commitlog.mapped_file import raise_refusal
from commitbus.commitlog.threads import SYSTEM_THREADS, Threads
from commitbus.commitlog.types import DispatchRequest, PhysicalOffset
from commitbus.indexfile.index_chain import Wanted, Work, candidates
from commitbus.indexfile.index_file import IndexFile, NewEntry
from commitbus.indexfile.index_files import IndexFiles
from commitbus.indexfile.index_format import (
    IndexHeader,
    KeyKind,
    index_file_bytes,
    key_hash,
    key_hashes,
    key_text,
    key_texts,
)
from commitbus.indexfile.index_reader import IndexReader
from commitbus.indexfile.index_repair import intact_count

_FEW_ENTRIES = 16
"""Up to here one by one is faster: the numpy calls of a batch take 80 us however small it is."""
_BATCH_UNITS_MAX = 1 << 17
"""Characters of key texts that are hashed and stored at once: bounds the memory of a put."""
_NO_LIMIT: Final = 1 << 63


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
        threads: Threads = SYSTEM_THREADS,
        writable: bool = True,
    ) -> None:
        self.directory = directory
        self._file_bytes = index_file_bytes(slot_count, entry_count)
        self._writable = writable
        self._index = IndexFiles(
            directory,
            slot_count,
            entry_count,
            clock=clock,
            file_system=file_system,
            writable=writable,
        )
        # Held while a put writes, and by queries only while they open their readers.
        self._lock = threads.lock()
        # A file must not be given up while it is flushed; taken before `_lock`.
        self._flush_lock = threads.lock()
        self._dispatched_to = PhysicalOffset(0)
        # Entries that the message at `_dispatched_to` already has: a roll to the next file or a
        # kill can come between two keys of one message.
        self._entries_there = 0
        self._last_full_timestamp = 0
        self._last_full_offset = PhysicalOffset(0)
        self._closed = False

    def load(self) -> None:
        """Look at the files that are there. Call it once, before anything else.

        A file that the disk does not give back is removed, with those behind it: reput makes them
        anew. If nothing may be changed, queries say so.

        Raises:
            NotAStoreError: A file is not one of this many slots and entries.
            OSError: A file cannot be opened.
        """
        self._index.load()
        if self._writable:
            self._find_where_to_resume()

    @property
    def dispatched_to(self) -> PhysicalOffset:
        """Nothing that lies before this physical offset, the start of a message, is missing.

        After `load` it is the last indexed message, whose keys may not all be there. A log whose
        last messages have no keys leaves it behind them. Goes back when a file is lost.
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
            return [file.path for file in self._index.files]

    def put(self, requests: DispatchBatch) -> None:
        """Index messages, given in log order; what the index already holds is skipped.

        Not durable before `flush`; survives the process at once, but for slots, which can be
        derived from the entries.

        Raises:
            DiskFullError: There is no room for a further file, or for this one. What fitted is
                kept; putting the same messages again goes on from there.
            ReadFailedError: The disk does not give back what is needed of the newest file. It was
                removed: put the messages from `dispatched_to` on.
            FlushFailedError: The disk refused to take something.
            StoreClosedError: The service was closed.
            OutOfResourcesError: The process may open no more files. Put the same messages again.
        """
        assert self._writable
        with self._lock:
            self._check_open()
            try:
                if isinstance(requests, DispatchColumns):
                    self._put_columns(requests)
                else:
                    self._put(requests)
                if self._index.files:
                    self._index.files[-1].finish_writing()
            except ReadFailedError as error:
                self._index.drop_from(len(self._index.files) - 1, error)
                self._find_where_to_resume()
                raise
            except (OSError, StoreError) as error:
                self._find_where_to_resume()
                if isinstance(error, OSError):
                    raise_refusal(error, self.directory, self._file_bytes)
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
        """Return the first `max_count` of `candidates`. Raises as that."""
        if max_count <= 0:
            return []
        with closing(self.candidates(topic, key, begin_ms, end_ms, kind=kind)) as found:
            return list(islice(found, max_count))

    def candidates(
        self,
        topic: str,
        key: str,
        begin_ms: int,
        end_ms: int,
        *,
        before: int = _NO_LIMIT,
        kind: KeyKind = KeyKind.KEY,
    ) -> Generator[PhysicalOffset, None, None]:
        """Return the messages that may have a key, newest first, each once.

        Only those before a physical offset, if one is given. Later puts are not seen, and puts do
        not wait for the caller.
        Entries hold a hash and whole seconds, so the caller compares the key in the record, and
        the store timestamp with [begin_ms, end_ms] where a second matters.

        Raises:
            StoreClosedError: The service was closed.
            QueryTooWideError: Taking the next one: there are too many entries to be passed over.
            ReadFailedError: Likewise: the disk does not give back what is needed to find it.
            OutOfResourcesError: Likewise: the process may open no more files.
        """
        wanted = Wanted(key_hash(key_text(topic, key, kind)), begin_ms, end_ms, before)
        with self._lock:
            self._check_open()
            chains = [self._chain(file, wanted.key_hash) for file in self._index.files]
        return self._follow(chains[::-1], wanted)

    def _chain(self, file: IndexFile, key_hash: int) -> tuple[IndexReader, int | None]:
        try:
            file.ready_to_read()
        except FileNotFoundError:
            pass  # It was removed; its reader raises the error.
        except OSError as error:
            raise ReadFailedError(file.path, 0, error) from error
        return file.reader(), file.head(key_hash)

    def _follow(
        self, chains: list[tuple[IndexReader, int | None]], wanted: Wanted
    ) -> Generator[PhysicalOffset, None, None]:
        work, last = Work(), None
        for reader, head in chains:
            with reader:
                try:
                    for offset in candidates(reader, wanted, head, work):
                        # A message that has a key twice has two entries next to each other.
                        if offset != last:
                            yield offset
                        last = offset
                except FileNotFoundError:
                    continue  # Its messages were deleted meanwhile.
                except OSError as error:
                    raise ReadFailedError(reader.path, 0, error) from error
        if self._index.unreadable is not None:
            raise self._index.unreadable

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
            for position, file in enumerate(self._index.files):
                header = file.header
                end = header.end_timestamp if trusted_end is None else header.end_physical_offset
                if file.is_full and last_end < trusted >= end:
                    last_end = end
                    continue
                try:
                    with file.reader() as reader:
                        self._index.shorten(position, intact_count(reader))
                except ReadFailedError as error:
                    self._index.drop_from(position, error)
                break
            self._find_where_to_resume()

    def truncate(self, end: PhysicalOffset) -> None:
        """Remove the entries of messages at or beyond `end`, where the log was cut."""
        assert self._writable
        with self._flush_lock, self._lock:
            for position, file in enumerate(self._index.files):
                if file.header.end_physical_offset >= end:
                    try:
                        with file.reader() as reader:
                            index_count = reader.first_index_at(end)
                        self._index.shorten(position, index_count)
                    except ReadFailedError as error:
                        self._index.drop_from(position, error)
                    break
            self._find_where_to_resume()

    def delete_before(self, min_physical_offset: PhysicalOffset) -> None:
        """Remove files whose messages all lie before an offset. The newest file always stays."""
        assert self._writable
        with self._flush_lock, self._lock:
            while (
                len(self._index.files) > 1
                and self._index.files[0].header.end_physical_offset < min_physical_offset
            ):
                self._index.remove(0)

    def flush(self) -> None:
        """Make everything put before the call durable, and what was removed.

        Raises:
            FlushFailedError: The operating system could not.
            DiskFullError: There is no room for what was in memory only. Trying again is right.
            OutOfResourcesError: The process may open no more files. Likewise.
        """
        with self._flush_lock:
            with self._lock:
                files = list(self._index.files)
            are_done = [self._flush_file(file) for file in files]
            with self._lock:
                self._index.sync_names()
            done = are_done.index(False) if False in are_done else len(files)
            header = files[done - 1].header if done else IndexHeader()
            self._last_full_timestamp = header.end_timestamp
            self._last_full_offset = PhysicalOffset(header.end_physical_offset)

    def flush_cuts(self) -> None:
        """Make durable what `discard_after` and `truncate` removed, and no more than that.

        Raises:
            FlushFailedError: The operating system could not.
            OutOfResourcesError: The process may open no more files.
        """
        with self._flush_lock, self._lock:
            for file in self._index.files:
                file.sync()
            self._index.sync_names()

    def _flush_file(self, file: IndexFile) -> bool:
        """Make a file durable; return whether it is full, so that it needs no further flush."""
        if not file.is_written:
            try:
                file.write_again()
            except FileNotFoundError:
                if file.is_gone:
                    return False  # A put has met a bad block in it, and makes it anew.
                raise
            # One after the other, so that a put, for which consumers wait, waits for a few only.
            for pages in file.changed_slots():
                with self._lock:
                    file.write_slots(pages)
            with self._lock:
                if file.is_gone:
                    return False
                file.finish_writing()
            file.sync()
        with self._lock:
            is_done = file.is_full and file.is_written and not file.is_gone
            if is_done:
                file.release()
        return is_done

    def close(self) -> None:
        """Write what is in memory and close every file. Does not flush. Idempotent."""
        with self._flush_lock, self._lock:
            self._closed = True
            for file in self._index.files:
                file.close()
            self._index.files.clear()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError

    def _find_where_to_resume(self) -> None:
        """Set the resume point from the last message that has an entry."""
        self._dispatched_to, self._entries_there = self._index.last_message()

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
            file = self._index.with_room()
            done += file.append(
                columns.key_hashes[done:], entry_offsets[done:], entry_timestamps[done:]
            )

    def _append(self, texts: list[str], messages: list[tuple[int, int, int]]) -> None:
        done = 0
        if len(texts) <= _FEW_ENTRIES:
            remaining = iter(texts)
            entries = [
                NewEntry(key_hash(text), offset, timestamp)
                for offset, timestamp, count in messages
                for text in islice(remaining, count)
            ]
            while done < len(entries):
                done += self._index.with_room().append_few(entries[done:])
            return
        hashes = key_hashes(texts)
        flat = np.fromiter(chain.from_iterable(messages), dtype=np.int64, count=3 * len(messages))
        columns = flat.reshape(-1, 3)
        offsets = np.repeat(columns[:, 0], columns[:, 2])
        timestamps = np.repeat(columns[:, 1], columns[:, 2])
        while done < len(texts):
            file = self._index.with_room()
            done += file.append(hashes[done:], offsets[done:], timestamps[done:])


def _end_of(requests: DispatchBatch) -> PhysicalOffset:
    """Return the end of the last message, 0 without any."""
    if not len(requests):
        return PhysicalOffset(0)
    if isinstance(requests, DispatchColumns):
        return requests.end_offset
    return requests[-1].end_offset
