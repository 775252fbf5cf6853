"""Finding out how many slots and entries an index file was made with.

A file does not say: its header has neither number, and its size, 40 + 4 * slots + 20 * entries, is
that of many pairs. What tells are the last entries: the very last names the message that the header
ends with, the slot of each leads to it or to a later one (or, after a kill, to an earlier one), and
what either leads to is of the same slot.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from commitbus.commitlog.errors import ReadFailedError
from commitbus.commitlog.file_system import File, FileSystem, read_at
from commitbus.indexfile.index_format import (
    ENTRY,
    ENTRY_BYTES,
    HEADER,
    HEADER_BYTES,
    SLOT,
    SLOT_BYTES,
    IndexHeader,
    entry_position,
    index_file_bytes,
)

ENTRIES_PER_SLOT: Final = 4
"""In RocketMQ's own numbers, 5,000,000 slots and 20,000,000 entries."""
_OFFSET_POSITION: Final = 4
"""Of the physical offset in an entry."""
_TELLING_ENTRIES: Final = 64
"""One is not enough: where a power cut took the last ones, those before them are of the same
message, and make other numbers look right."""
_TELLING_LINKS: Final = 8
"""To earlier entries of the same slot: enough, if the slots do not lead to the last ones."""
_SCAN_BYTES: Final = 1 << 20
_GUESSES_MAX: Final = 1 << 12
"""Bounds the work on a file whose bytes look like the last entry in many places."""


def find_sizes(
    path: Path, file_system: FileSystem, configured: tuple[int, int]
) -> tuple[int, int] | None:
    """Return (slots, entries) of a file, None if it has no entry, or does not tell.

    An unreadable file has no sizes.

    Args:
        path: The file.
        file_system: What holds it.
        configured: Tried first, then RocketMQ's ratio. Only if neither fits is the file searched.

    Raises:
        OSError: It cannot be opened.
    """
    file = file_system.open(path, writable=False)
    try:
        return _find_sizes(file, configured)
    except ReadFailedError:
        return None
    finally:
        file.close()


def _find_sizes(file: File, configured: tuple[int, int]) -> tuple[int, int] | None:
    size = file.size()
    if size < HEADER_BYTES:
        return None
    header = IndexHeader(*HEADER.unpack(read_at(file, HEADER_BYTES, 0)))
    if header.index_count <= 1:
        return None
    for usual in filter(None, (configured, sizes_by_ratio(size))):
        if _fits(file, size, header, *usual, links_min=0):
            return usual
    guesses = islice(_guesses(file, size, header), _GUESSES_MAX)
    fitting = (one for one in guesses if _fits(file, size, header, *one, links_min=_TELLING_LINKS))
    return next(fitting, None)


def sizes_by_ratio(size: int) -> tuple[int, int] | None:
    """Return (slots, entries) of a file of this size with RocketMQ's ratio, None if none has it."""
    slots, rest = divmod(size - HEADER_BYTES, SLOT_BYTES + ENTRIES_PER_SLOT * ENTRY_BYTES)
    return (slots, ENTRIES_PER_SLOT * slots) if rest == 0 and slots > 0 else None


def _fits(
    file: File, size: int, header: IndexHeader, slots: int, entries: int, *, links_min: int
) -> bool:
    """Whether the last entry is what the header says, and the slots lead to the last ones.

    If they lead to earlier ones, whether at least `links_min` links say that those are of the slot.
    """
    last = header.index_count - 1
    if size != index_file_bytes(slots, entries) or last >= entries:
        return False
    first = max(1, last + 1 - _TELLING_ENTRIES)
    position = entry_position(slots, first)
    # And the one behind the last, at the end of a full file none.
    data = read_at(file, ENTRY_BYTES * (last + 2 - first), position)
    found = list(ENTRY.iter_unpack(data[: len(data) - len(data) % ENTRY_BYTES]))
    behind = found.pop() if len(found) > last + 1 - first else None
    if found[-1][1] != header.end_physical_offset:
        return False
    # An earlier entry of the last message looks like its last one.
    is_last = behind is None or behind[1] != found[-1][1]
    heads = [_head(file, slots, entry) for entry in found]
    if not all(0 <= head < entries for head in heads):
        return False
    links, is_slot_behind = 0, False
    for index, (entry, head) in enumerate(zip(found, heads, strict=True), first):
        # A killed process may leave a slot that leads to an entry which never became valid, or to
        # an older one than it should.
        is_slot_behind |= head < index
        if head < index and not any(entry):
            return False  # It was never written, or a power cut kept it from the disk.
        for other in filter(None, (entry[3], head if head < index else 0)):
            if not 0 < other < index or not _is_of_slot(file, slots, other, entry[0] % slots):
                return False
            links += 1
    return not is_slot_behind or (is_last and links >= links_min)


def _head(file: File, slots: int, entry: tuple[int, ...]) -> int:
    """Return the entry that the slot of an entry leads to, -1 if it is none."""
    if entry[0] < 0:
        return -1
    position = HEADER_BYTES + SLOT_BYTES * (entry[0] % slots)
    head: int = SLOT.unpack(read_at(file, SLOT_BYTES, position))[0]
    return head


def _is_of_slot(file: File, slots: int, index: int, slot: int) -> bool:
    key_hash: int = ENTRY.unpack(read_at(file, ENTRY_BYTES, entry_position(slots, index)))[0]
    return key_hash % slots == slot


def _guesses(file: File, size: int, header: IndexHeader) -> Iterator[tuple[int, int]]:
    """Yield the pairs for which the last entry would have the right physical offset."""
    wanted = HEADER.pack(*header)[24:32]
    before = ENTRY_BYTES * (header.index_count - 1)
    start = HEADER_BYTES + SLOT_BYTES + before + _OFFSET_POSITION
    while (start := file.next_data(start)) < size:
        chunk = read_at(file, _SCAN_BYTES + len(wanted) - 1, start)
        found = chunk.find(wanted)
        while found >= 0:
            slot_bytes = start + found - _OFFSET_POSITION - before - HEADER_BYTES
            slots, slots_rest = divmod(slot_bytes, SLOT_BYTES)
            entries, rest = divmod(size - HEADER_BYTES - slot_bytes, ENTRY_BYTES)
            if slots_rest == rest == 0 and slots > 0:
                yield slots, entries
            found = chunk.find(wanted, found + 1)
        start += _SCAN_BYTES
