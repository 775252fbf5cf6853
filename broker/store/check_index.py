"""Index files held against the log: the same keys in the same order, and sound chains.

The index is written in log order, so both are walked side by side and neither is held in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple, final

import numpy as np

from commitbus.broker.store.check_report import CheckReport
from commitbus.broker.store.config import StoreConfig
from commitbus.broker.store.layout import INDEX
from commitbus.commitlog.errors import ReadFailedError, StoreError
from commitbus.commitlog.file_system import FileSystem
from commitbus.commitlog.types import DispatchRequest
from commitbus.indexfile.index_format import (
    HEADER_BYTES,
    SECONDS_MAX,
    SLOT_BYTES,
    is_file_name,
    key_hash,
    key_texts,
)
from commitbus.indexfile.index_reader import IndexReader

_CHUNK_ENTRIES: Final = 1 << 18
_NEVER: Final = 1 << 63


@final
class _Entry(NamedTuple):
    file: IndexReader
    number: int
    key_hash: int
    physical_offset: int
    seconds: int


@final
class IndexCheck:
    """Checks the entries while the log is walked: each message once, in log order."""

    def __init__(
        self, store: Path, config: StoreConfig, file_system: FileSystem, report: CheckReport
    ) -> None:
        """Open the files; report what is wrong with each by itself.

        Args:
            store: The store.
            config: With the numbers of slots and entries of the files.
            file_system: What holds the store.
            report: Where problems go.
        """
        self._report = report
        self._directory = store / INDEX
        self._files: list[IndexReader] = []
        for name in file_system.list_names(self._directory):
            path = self._directory / name
            if not is_file_name(name):
                report.add(path, 0, "this is no name of an index file")
                continue
            try:
                file = IndexReader.open(
                    path, config.index_slots, config.index_entries, file_system=file_system
                )
            except (StoreError, OSError) as error:
                report.add(path, 0, str(error))
                continue
            self._files.append(file)
            report.index_files += 1
            report.index_entries += file.header.index_count - 1
        self._files.sort(key=lambda file: file.header.end_physical_offset)
        self._ends = {
            file.path: before.header.end_timestamp for before, file in pairwise(self._files)
        }
        self._begin = 0
        self._entries = self._all_entries()
        self._next = next(self._entries, None)
        if self._next is not None:
            self._begin = self._next.physical_offset

    def check_chains(self) -> None:
        """Report slots and links that are not as the entries make them. For an undisturbed file."""
        for file in self._files:
            # Hundreds of files may not all be open.
            with file:
                try:
                    self._check_chains(file)
                except ReadFailedError as error:
                    self._report.add(error.path, error.position, str(error))

    def see(self, request: DispatchRequest, *, is_vouched: bool) -> None:
        """Compare the keys of a message with the next entries.

        Args:
            request: The message.
            is_vouched: Whether its entries must be there by now, or may still be to be recovered.
        """
        if request.physical_offset < self._begin:
            return  # Older than what the index still holds.
        matched: set[int] = set()
        for text in key_texts(request):
            expected = (key_hash(text), request.physical_offset)
            self._skip_before(request.physical_offset)
            if request.physical_offset < self._begin:
                return  # Its entry may be one that the disk did not give back.
            if expected[0] not in matched:
                self._skip_repeated(request, matched)
            entry = self._next
            if entry is not None and (entry.key_hash, entry.physical_offset) == expected:
                self._check_times(entry, request.store_timestamp)
                self._next = next(self._entries, None)
                matched.add(expected[0])
            elif is_vouched and entry is not None:
                self._report.not_in_index += 1
                self._report.add(
                    *self._place(entry),
                    f"no entry for key hash {expected[0]} of the message at {expected[1]}",
                )
            else:
                # An index that ends early is filled up from its end, whoever opens the store.
                self._report.to_be_recovered += 1
        self._skip_repeated(request, matched)

    def finish(self) -> None:
        """Report the entries that no message has."""
        while self._next is not None:
            if self._report.was_closed_cleanly:
                self._report_alien(self._next)
            else:
                self._report.to_be_recovered += 1
            self._next = next(self._entries, None)

    def _skip_before(self, physical_offset: int) -> None:
        """Pass over entries that belong to no key of an earlier message."""
        while self._next is not None and self._next.physical_offset < physical_offset:
            self._report_alien(self._next)
            self._next = next(self._entries, None)

    def _skip_repeated(self, request: DispatchRequest, matched: set[int]) -> None:
        """Pass over entries that say once more what the message's earlier ones did.

        After an unclean stop RocketMQ goes on with the message that the last index file it trusts
        ends with, though that one is in there. The keys are then found twice, which is harmless.
        """
        while (
            (entry := self._next) is not None
            and entry.physical_offset == request.physical_offset
            and entry.key_hash in matched
        ):
            self._check_times(entry, request.store_timestamp)
            self._next = next(self._entries, None)

    def _report_alien(self, entry: _Entry) -> None:
        if entry.physical_offset < self._report.log_begin:
            return  # Its log file was deleted; it goes with the last message of its own file.
        self._report.add(
            *self._place(entry),
            f"entry {entry.number}: no message at {entry.physical_offset} has a key of hash "
            f"{entry.key_hash}",
        )

    def _check_times(self, entry: _Entry, store_timestamp: int) -> None:
        """Compare an entry's time. A file's first entry counts from where the file before ended.

        The file before the oldest one may have been deleted, so nothing is known of its first.
        """
        header = entry.file.header
        begin: int | None = header.begin_timestamp
        if entry.number == 1:
            begin = self._ends.get(entry.file.path)
        expected = min(max((store_timestamp - (begin or 0)) // 1000, 0), SECONDS_MAX)
        if begin is not None and entry.seconds != expected:
            self._report.add(
                *self._place(entry),
                f"entry {entry.number}: {entry.seconds} s after the file's begin, its message "
                f"{expected}",
            )
        if entry.number == header.index_count - 1 and header.end_timestamp != store_timestamp:
            self._report.add(
                entry.file.path,
                8,
                f"it ends at time {header.end_timestamp}, its last message at {store_timestamp}",
            )

    def _all_entries(self) -> Iterator[_Entry]:
        """Yield the entries; behind those that the disk does not give back, go on with a file."""
        is_unreadable = False
        for file in self._files:
            try:
                with file:
                    for entry in _entries_of(file):
                        if is_unreadable:
                            self._begin, is_unreadable = entry.physical_offset, False
                        yield entry
            except ReadFailedError as error:
                self._report.add(error.path, error.position, str(error))
                is_unreadable = True
        if is_unreadable:
            self._begin = _NEVER

    def _check_chains(self, file: IndexReader) -> None:
        heads = np.zeros(file.slot_count, dtype=np.int64)
        count = file.header.index_count
        for start in range(1, count, _CHUNK_ENTRIES):
            entries = file.entries(start, min(start + _CHUNK_ENTRIES, count))
            indexes = np.arange(start, start + len(entries))
            slots = entries["key_hash"].astype(np.int64) % file.slot_count
            # Sorted by slot, stably, each entry stands behind its predecessor in the chain.
            order = np.argsort(slots, kind="stable")
            previous = np.empty(len(entries), dtype=np.int64)
            previous[order[1:]] = indexes[order[:-1]]
            sorted_slots = slots[order]
            is_first = np.diff(sorted_slots, prepend=-1) != 0
            previous[order[is_first]] = heads[sorted_slots[is_first]]
            np.maximum.at(heads, slots, indexes)
            for at in np.flatnonzero(entries["previous"] != previous):
                self._report.add(
                    file.path,
                    file.position_of(start + int(at)),
                    f"entry {start + int(at)} leads to {entries['previous'][at]}, not to "
                    f"{previous[at]}",
                )
        last_offset = file.entry(count - 1).physical_offset
        if count > 1 and file.header.end_physical_offset != last_offset:
            self._report.add(
                file.path,
                24,
                f"it ends with the message at {file.header.end_physical_offset}, its last entry "
                f"is of {last_offset}",
            )
        found = file.slots()
        for slot in np.flatnonzero(found != heads):
            self._report.add(
                file.path,
                HEADER_BYTES + SLOT_BYTES * int(slot),
                f"slot {slot} leads to {found[slot]}, not to {heads[slot]}",
            )
        if file.header.slot_count != np.count_nonzero(heads):
            self._report.add(
                file.path,
                32,
                f"{file.header.slot_count} slots in use, counted {np.count_nonzero(heads)}",
            )

    def _place(self, entry: _Entry) -> tuple[Path, int]:
        return entry.file.path, entry.file.position_of(entry.number)


def _entries_of(file: IndexReader) -> Iterator[_Entry]:
    count = file.header.index_count
    for start in range(1, count, _CHUNK_ENTRIES):
        chunk = file.entries(start, min(start + _CHUNK_ENTRIES, count)).tolist()
        for index, (hash_, offset, seconds, _) in enumerate(chunk, start):
            yield _Entry(file, index, hash_, offset, seconds)
