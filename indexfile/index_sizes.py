"""Finding out how many slots and entries an index file was made with.

A file does not say: its header has neither number, and its size, 40 + 4 * slots + 20 * entries, is
that of many pairs. What tells are the last entries: the very last names the message that the header
ends with, the slot of each leads to it or to a later one, and the one before in the same slot is of
the same slot.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Final

from commitbus.commitlog.file_system import File, FileSystem
from commitbus.indexfile.index_format import (
    ENTRY,
    ENTRY_BYTES,
    HEADER,
    HEADER_BYTES,
    SLOT,
    SLOT_BYTES,
    IndexHeader,
    index_file_bytes,
)

ENTRIES_PER_SLOT: Final = 4
"""In RocketMQ's own numbers, 5,000,000 slots and 20,000,000 entries."""
_OFFSET_POSITION: Final = 4
"""Of the physical offset in an entry."""
_TELLING_ENTRIES: Final = 64
"""One is not enough: where a power cut took the last ones, those before them are of the same
message, and make other numbers look right."""
_SCAN_BYTES: Final = 1 << 20
_GUESSES_MAX: Final = 1 << 12
"""Bounds the work on a file whose bytes look like the last entry in many places."""


def find_sizes(
    path: Path, file_system: FileSystem, configured: tuple[int, int]
) -> tuple[int, int] | None:
    """Return (slots, entries) of a file, None if it has no entry, or does not tell.

    Args:
        path: The file.
        file_system: What holds it.
        configured: Tried first, then RocketMQ's ratio. Only if neither fits is the file searched.

    Raises:
        OSError: It cannot be read.
    """
    file = file_system.open(path, writable=False)
    try:
        size = file.size()
        if size < HEADER_BYTES:
            return None
        header = IndexHeader(*HEADER.unpack(file.pread(HEADER_BYTES, 0)))
        if header.index_count <= 1:
            return None
        usual = filter(None, (configured, sizes_by_ratio(size)))
        guesses = chain(usual, islice(_guesses(file, size, header), _GUESSES_MAX))
        return next((guess for guess in guesses if _fits(file, size, header, *guess)), None)
    finally:
        file.close()


def sizes_by_ratio(size: int) -> tuple[int, int] | None:
    """Return (slots, entries) of a file of this size with RocketMQ's ratio, None if none has it."""
    slots, rest = divmod(size - HEADER_BYTES, SLOT_BYTES + ENTRIES_PER_SLOT * ENTRY_BYTES)
    return (slots, ENTRIES_PER_SLOT * slots) if rest == 0 and slots > 0 else None


def _fits(file: File, size: int, header: IndexHeader, slots: int, entries: int) -> bool:
    """Whether the last entry is what the header says, and the slots lead to the last ones."""
    last = header.index_count - 1
    if size != index_file_bytes(slots, entries) or last >= entries:
        return False
    first = max(1, last + 1 - _TELLING_ENTRIES)
    position = HEADER_BYTES + SLOT_BYTES * slots + ENTRY_BYTES * first
    found = list(ENTRY.iter_unpack(file.pread(ENTRY_BYTES * (last + 1 - first), position)))
    if found[-1][1] != header.end_physical_offset:
        return False
    for index, (key_hash, _, _, previous) in enumerate(found, first):
        if key_hash < 0 or not 0 <= previous < index:
            return False
        if previous:
            before = HEADER_BYTES + SLOT_BYTES * slots + ENTRY_BYTES * previous
            if ENTRY.unpack(file.pread(ENTRY_BYTES, before))[0] % slots != key_hash % slots:
                return False
        slot = HEADER_BYTES + SLOT_BYTES * (key_hash % slots)
        head: int = SLOT.unpack(file.pread(SLOT_BYTES, slot))[0]
        # A killed process may leave a slot that leads to an entry which never became valid.
        if not index <= head < entries:
            return False
    return True


def _guesses(file: File, size: int, header: IndexHeader) -> Iterator[tuple[int, int]]:
    """Yield the pairs for which the last entry would have the right physical offset."""
    wanted = HEADER.pack(*header)[24:32]
    before = ENTRY_BYTES * (header.index_count - 1)
    start = HEADER_BYTES + SLOT_BYTES + before + _OFFSET_POSITION
    while (start := file.next_data(start)) < size:
        chunk = file.pread(_SCAN_BYTES + len(wanted) - 1, start)
        found = chunk.find(wanted)
        while found >= 0:
            slot_bytes = start + found - _OFFSET_POSITION - before - HEADER_BYTES
            slots, slots_rest = divmod(slot_bytes, SLOT_BYTES)
            entries, rest = divmod(size - HEADER_BYTES - slot_bytes, ENTRY_BYTES)
            if slots_rest == rest == 0 and slots > 0:
                yield slots, entries
            found = chunk.find(wanted, found + 1)
        start += _SCAN_BYTES
