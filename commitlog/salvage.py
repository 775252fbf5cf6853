"""Finding every intact record in the bytes of a damaged log file.

1. Follow the chain of sizes from the file's start, checking each record with its CRC.
2. Where that ends, the damaged record may still tell its size: if what lies behind it looks like a
   record, a blank record or the end, only this one is lost.
3. Otherwise search for the next magic code of a record that says itself that it lies there, and
   whose lengths add up. Go on at 1.

Bytes are read, not mapped: a page that the disk cannot return is then an error to report, where a
mapped one would be a SIGBUS. A record that somebody forged inside a body, down to the offset at
which it lies, can be taken for one in step 3 only, and only if the record around it is damaged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple, final

from commitbus.commitlog.errors import CorruptRecordError
from commitbus.commitlog.file_system import File
from commitbus.commitlog.record_format import (
    BLANK_MAGIC_CODE,
    BLANK_RECORD_BYTES,
    MIN_RECORD_BYTES,
    SIZE_AND_MAGIC,
    CheckedRecord,
    check_record,
)

WINDOW_BYTES: Final = 32 << 20
"""Held in memory at a time; more only for a longer record."""
_PIECE_BYTES: Final = 1 << 20
_PAGE_BYTES: Final = 4096
_MAGIC: Final = re.compile(rb"\xda\xa3\x20[\xa7\xab]")
_MAGIC_POSITION: Final = 4


@final
class IntactRecord(NamedTuple):
    """A record that was found whole."""

    physical_offset: int
    data: memoryview
    """Its bytes, until the next one is asked for."""
    checked: CheckedRecord


@final
class LostRange(NamedTuple):
    """Bytes of the log in which no intact record is."""

    start: int
    """Physical offset."""
    end: int
    reason: str


def salvage_file(
    file: File, base_offset: int, *, durable_end: int | None
) -> Iterator[IntactRecord | LostRange]:
    """Yield the intact records of a log file and what lies between them, in order.

    Args:
        file: A log file, or what is left of it.
        base_offset: Where it begins in the log.
        durable_end: Physical offset up to which there must be records; zeros behind it are the
            log's end. None if the log goes on in another file, so that this one must be full.
    """
    yield from _Salvage(file, base_offset, durable_end).parts()


@final
class _Salvage:
    def __init__(self, file: File, base_offset: int, durable_end: int | None) -> None:
        self._file, self._base_offset, self._durable_end = file, base_offset, durable_end
        self._size = file.size()
        self._window_start = 0
        self._window = bytearray()
        self._view = memoryview(self._window)
        self._unreadable = 0

    def parts(self) -> Iterator[IntactRecord | LostRange]:
        position = 0
        while position < self._size:
            try:
                checked = self._check(position, verify_crc=True)
            except CorruptRecordError as error:
                end = self._next_record(position)
                if (lost := self._lost(position, end, error.reason)) is not None:
                    yield lost
                position = end
                continue
            end = checked[-1]
            data = self._view[end - checked[0] : end]
            yield IntactRecord(self._base_offset + position, data, checked)
            position += checked[0]

    def _check(self, position: int, *, verify_crc: bool) -> CheckedRecord:
        """Check the record at a position; positions in the result are those of the window."""
        self._load(position, MIN_RECORD_BYTES)
        at = position - self._window_start
        if self._size - position >= MIN_RECORD_BYTES:
            size, _ = SIZE_AND_MAGIC.unpack_from(self._view, at)
            if MIN_RECORD_BYTES <= size <= self._size - position:
                self._load(position, size)
                at = position - self._window_start
        return check_record(self._view, at, self._base_offset + position, verify_crc=verify_crc)

    def _next_record(self, position: int) -> int:
        """Return where to go on behind a place that holds no intact record; the size at the end."""
        if self._is_blank(position):
            return self._size
        try:
            end = position + self._check(position, verify_crc=False)[0]
        except CorruptRecordError:
            return self._search(position + 1)
        # Its size is believed if something follows that fits.
        return end if self._is_plausible(end) else self._search(position + 1)

    def _is_blank(self, position: int) -> bool:
        rest = self._size - position
        if rest < BLANK_RECORD_BYTES:
            return False
        self._load(position, BLANK_RECORD_BYTES)
        found = SIZE_AND_MAGIC.unpack_from(self._view, position - self._window_start)
        return bool(found == (rest, BLANK_MAGIC_CODE))

    def _is_plausible(self, position: int) -> bool:
        """Return whether a record, a blank one, or the end lies at a position."""
        if position == self._size or self._is_blank(position):
            return True
        try:
            self._check(position, verify_crc=False)
        except CorruptRecordError:
            return self._is_zero(position)
        return True

    def _search(self, position: int) -> int:
        """Return the first position from here on where a record may lie; the size if none does."""
        while (position := self._next_data(position)) < self._size:
            self._load(position, MIN_RECORD_BYTES)
            start, end = self._window_start, self._window_start + len(self._window)
            found = _MAGIC.search(self._window, position - start + _MAGIC_POSITION)
            if found is None:
                if end >= self._size:
                    return self._size
                # The next magic code may lie across the window's end.
                position = max(position + 1, end - _MAGIC_POSITION - 3)
                continue
            position = start + found.start() - _MAGIC_POSITION
            if self._looks_like_a_record(position):
                return position
            position += 1
        return self._size

    def _looks_like_a_record(self, position: int) -> bool:
        try:
            self._check(position, verify_crc=False)
        except CorruptRecordError:
            return False
        return True

    def _lost(self, start: int, end: int, reason: str) -> LostRange | None:
        """Return what is lost between two positions, None if nothing is."""
        first, behind = self._base_offset + start, self._base_offset + end
        if end == self._size and self._is_blank(start):
            return None
        if end == self._size and self._is_zero(start):
            if self._durable_end is None:
                return LostRange(first, behind, "zeros to the end of the file")
            if first >= self._durable_end:
                return None
            return LostRange(first, min(behind, self._durable_end), "zeros that were records")
        if self._unreadable:
            reason = f"{reason} ({self._unreadable} bytes could not be read)"
            self._unreadable = 0
        return LostRange(first, behind, reason)

    # Reading

    def _is_zero(self, position: int) -> bool:
        """Return whether there are only zeros from a position on."""
        while (position := self._next_data(position)) < self._size:
            self._load(position, min(_PIECE_BYTES, self._size - position))
            at = position - self._window_start
            rest = len(self._window) - at
            if self._window.count(0, at) != rest:
                return False
            position += rest
        return True

    def _next_data(self, position: int) -> int:
        """Return the first position that may hold something: regions never written are skipped."""
        if position >= self._size:
            return self._size
        try:
            return max(position, min(self._file.next_data(position), self._size))
        except OSError:
            return position

    def _load(self, position: int, length: int) -> None:
        """Have bytes from a position on in the window, as many of `length` as the file has."""
        length = min(length, self._size - position)
        start, end = self._window_start, self._window_start + len(self._window)
        if start <= position and position + length <= end:
            return
        wanted = min(max(length, WINDOW_BYTES), self._size - position)
        self._window = bytearray(wanted)
        self._view = memoryview(self._window)
        self._window_start = position
        for at in range(0, wanted, _PIECE_BYTES):
            self._read(at, min(_PIECE_BYTES, wanted - at))

    def _read(self, at: int, length: int) -> None:
        """Read bytes into the window; what cannot be read stays zero, page by page."""
        try:
            data = self._file.pread(length, self._window_start + at)
        except OSError:
            if length <= _PAGE_BYTES:
                self._unreadable += length
                return
            for page in range(at, at + length, _PAGE_BYTES):
                self._read(page, min(_PAGE_BYTES, at + length - page))
            return
        self._window[at : at + len(data)] = data
