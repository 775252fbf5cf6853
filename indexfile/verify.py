"""Comparing an index file with itself and with the log that it is derived from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import final

import numpy as np
import numpy.typing as npt

from commitbus.commitlog.types import DispatchRequest, PhysicalOffset, Problem
from commitbus.indexfile.index_format import (
    ENTRY_BYTES,
    HEADER_BYTES,
    SECONDS_MAX,
    SLOT_BYTES,
    key_hash,
    key_texts,
)
from commitbus.indexfile.index_reader import IndexEntry, IndexReader
from commitbus.indexfile.index_repair import slot_heads

RecordAt = Callable[[PhysicalOffset], DispatchRequest | None]
_CHUNK_ENTRIES = 4096


def verify_index_file(
    file: IndexReader, record_at: RecordAt, *, log_start: int = 0
) -> Iterator[Problem]:
    """Yield what is wrong with an index file.

    Every entry must stand for a key of a message that the log has, in log order, and lead to the
    entry before it in its slot; every slot must lead to its newest entry; the header must agree.

    Args:
        file: Opened, and not written meanwhile.
        record_at: What the log has at a physical offset; None if no intact message begins there.
        log_start: Entries of messages before it are not looked up: their log file was deleted.
    """
    yield from _verify_entries(file, record_at, log_start)
    heads = slot_heads(file, file.header.index_count)
    yield from _verify_slots(file, heads)
    yield from _verify_header(file, int(np.count_nonzero(heads)))


@final
class _LogView:
    """The message that the walk through the entries has come to."""

    def __init__(self, file: IndexReader, record_at: RecordAt) -> None:
        self._begin_timestamp, self._record_at = file.header.begin_timestamp, record_at
        self._physical_offset = -1
        self._hashes: frozenset[int] = frozenset()
        self._record: DispatchRequest | None = None

    def difference(self, index: int, entry: IndexEntry) -> str | None:
        """Return in what an entry differs from its message, None if in nothing."""
        if entry.physical_offset != self._physical_offset:
            self._physical_offset = entry.physical_offset
            self._record = self._record_at(entry.physical_offset)
            texts = key_texts(self._record) if self._record else []
            self._hashes = frozenset(map(key_hash, texts))
        if self._record is None:
            return f"the log has no message at physical offset {entry.physical_offset}"
        if entry.key_hash not in self._hashes:
            return f"no key of the message at {entry.physical_offset} has hash {entry.key_hash}"
        seconds = (self._record.store_timestamp - self._begin_timestamp) // 1000
        # The first entry counts from where the previous file ended.
        if index > 1 and entry.seconds != min(max(seconds, 0), SECONDS_MAX):
            return f"{entry.seconds} seconds since the begin, the log says {seconds}"
        return None


def _verify_entries(file: IndexReader, record_at: RecordAt, log_start: int) -> Iterator[Problem]:
    log = _LogView(file, record_at)
    heads: dict[int, int] = {}
    last_offset = 0
    for start in range(1, file.header.index_count, _CHUNK_ENTRIES):
        end = min(start + _CHUNK_ENTRIES, file.header.index_count)
        rows = file.entries(start, end).tolist()
        for index, row in enumerate(rows, start):
            entry = IndexEntry(*row)
            slot = entry.key_hash % file.slot_count
            what = _what_is_wrong(entry, last_offset, heads.get(slot, 0))
            if what is None and entry.physical_offset >= log_start:
                what = log.difference(index, entry)
            if what is not None:
                position = HEADER_BYTES + SLOT_BYTES * file.slot_count + ENTRY_BYTES * index
                yield Problem(file.path, position, f"entry {index}: {what}")
            heads[slot] = index
            last_offset = max(last_offset, entry.physical_offset)


def _what_is_wrong(entry: IndexEntry, last_offset: int, head: int) -> str | None:
    if entry.key_hash < 0 or entry.seconds < 0:
        return f"{entry} has a negative number"
    if entry.physical_offset < last_offset:
        return f"physical offset {entry.physical_offset} after {last_offset}"
    if entry.previous != head:
        return f"leads to entry {entry.previous}, the one before it in its slot is {head}"
    return None


def _verify_slots(file: IndexReader, heads: npt.NDArray[np.int32]) -> Iterator[Problem]:
    slots = file.slots()
    for slot in np.flatnonzero(slots != heads).tolist():
        yield Problem(
            file.path,
            HEADER_BYTES + SLOT_BYTES * slot,
            f"slot {slot} leads to entry {slots[slot]}, its newest is {heads[slot]}",
        )


def _verify_header(file: IndexReader, slot_count: int) -> Iterator[Problem]:
    header = file.header
    if file.is_empty:
        return
    for position, name, got, expected in (
        (16, "begin physical offset", header.begin_physical_offset, file.entry(1).physical_offset),
        (
            24,
            "end physical offset",
            header.end_physical_offset,
            file.entry(header.index_count - 1).physical_offset,
        ),
        (32, "slot count", header.slot_count, slot_count),
    ):
        if got != expected:
            yield Problem(file.path, position, f"{name} is {got}, the entries say {expected}")
    if header.end_timestamp < header.begin_timestamp:
        yield Problem(
            file.path, 8, f"ends at {header.end_timestamp}, begins at {header.begin_timestamp}"
        )
