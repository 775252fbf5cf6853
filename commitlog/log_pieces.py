"""Reads a log file piece by piece: as fast as a mapping, and a bad block is an error, no SIGBUS.

A piece begins where its reader says, so that a record is never cut at its beginning; one that is
longer than a piece gets a piece of its own length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from commitbus.commitlog.errors import ReadFailedError
from commitbus.commitlog.file_system import PAGE_BYTES, File, read_at, read_up_to

PIECE_BYTES: Final = 4 * 1024 * 1024
"""Measured: from 2 to 8 MiB as fast as a mapping, at 1 MiB a quarter slower."""


@final
@dataclass(frozen=True, slots=True)
class LogPiece:
    """Bytes of a log file."""

    view: memoryview
    start: int
    """Position in the file."""
    failure: ReadFailedError | None = None
    """Why the piece is shorter than asked for: the disk does not give back the next page."""

    @property
    def end(self) -> int:
        """Position in the file of the first byte behind the piece."""
        return self.start + len(self.view)

    def holds(self, position: int, length: int) -> bool:
        """Tell whether it has these bytes."""
        return self.start <= position and position + length <= self.end


EMPTY_PIECE: Final = LogPiece(memoryview(b""), 0)


def read_piece(file: File, position: int, length: int) -> LogPiece:
    """Return up to `length` bytes: fewer before an unreadable page, or at the end of the file."""
    data, failure = read_up_to(file, length, position)
    return LogPiece(memoryview(data), position, failure)


def next_readable(file: File, position: int, end: int) -> int:
    """Return the first page behind `position` that can be read, `end` if there is none."""
    while (position := (position // PAGE_BYTES + 1) * PAGE_BYTES) < end:
        try:
            read_at(file, 1, position)
        except ReadFailedError:
            continue
        return position
    return end
