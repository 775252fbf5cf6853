"""Walking over the records of one file: the only way that the store reads a log in sequence.

Reput, recovery and the consistency check all use it, so that they agree on where a log ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple, final

from commitbus.commitlog.errors import CorruptRecordError
from commitbus.commitlog.record_format import (
    BLANK_MAGIC_CODE,
    BLANK_RECORD_BYTES,
    SIZE_AND_MAGIC,
    CheckedRecord,
    check_record,
)


@final
class StopKind(Enum):
    """Why a scan went no further."""

    FILE_END = "the file's last record ends where the bytes end"
    BLANK = "a blank record fills the rest of the file"
    NOTHING = "nothing was written from here on, or a write that was never completed"
    BAD = "a bad record"


@final
class ScanStop(NamedTuple):
    """Where a scan ended and why."""

    kind: StopKind
    position: int
    """Position in the view: behind the last good record."""
    reason: str


@final
class RecordScanner:
    """Iterates over the intact records of a view and stops at the first that is not one.

    Yields `CheckedRecord`s, whose last item is the position behind the record. `stop` says where
    the iteration ended, once it did.
    """

    __slots__ = ("_base_offset", "_position", "_verify_crc", "_view", "stop")

    def __init__(
        self, view: memoryview, base_offset: int, position: int = 0, *, verify_crc: bool = True
    ) -> None:
        """Scan `view`, whose first byte lies at `base_offset` of the log, from `position` on.

        The view reaches to the end of its file or of what was appended, whichever comes first.
        """
        self._view, self._base_offset, self._position = view, base_offset, position
        self._verify_crc = verify_crc
        self.stop: ScanStop | None = None

    def __iter__(self) -> Iterator[CheckedRecord]:
        """Yield each intact record; then set `stop`."""
        view, base_offset, verify_crc = self._view, self._base_offset, self._verify_crc
        position = self._position
        try:
            while True:
                checked = check_record(
                    view, position, base_offset + position, verify_crc=verify_crc
                )
                yield checked
                position = checked[-1]
        except CorruptRecordError as error:
            self.stop = self._explain(position, error)

    def _explain(self, position: int, error: CorruptRecordError) -> ScanStop:
        """Tell the regular ends of a file from a bad record. Only the end of a scan pays for it."""
        rest = len(self._view) - position
        if rest == 0:
            return ScanStop(StopKind.FILE_END, position, StopKind.FILE_END.value)
        if rest < BLANK_RECORD_BYTES:
            size, magic = (1 if any(self._view[position:]) else 0), 0
        else:
            size, magic = SIZE_AND_MAGIC.unpack_from(self._view, position)
        if size == 0:
            return ScanStop(StopKind.NOTHING, position, StopKind.NOTHING.value)
        if (size, magic) == (rest, BLANK_MAGIC_CODE):
            return ScanStop(StopKind.BLANK, position, StopKind.BLANK.value)
        return ScanStop(StopKind.BAD, position, error.reason)
