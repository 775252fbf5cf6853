"""Walking over the records of one file, one by one, and telling where and why a log ends.

The kernels walk faster, and to the same place: recovery and reput use them for many records, and
this for a few and for the end.
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
            self.stop = _explain(view, position, error)


def stop_at(
    view: memoryview, base_offset: int, position: int, *, verify_crc: bool = True
) -> ScanStop:
    """Return why a scan of `view` went no further than `position`."""
    scanner = RecordScanner(view, base_offset, position, verify_crc=verify_crc)
    assert next(iter(scanner), None) is None, "no intact record begins where a scan ends"
    assert scanner.stop is not None, "the scanner ran to its end"
    return scanner.stop


def _explain(view: memoryview, position: int, error: CorruptRecordError) -> ScanStop:
    """Tell the regular ends of a file from a bad record. Only the end of a scan pays for it."""
    rest = len(view) - position
    if rest == 0:
        return ScanStop(StopKind.FILE_END, position, StopKind.FILE_END.value)
    if rest < BLANK_RECORD_BYTES:
        size, magic = (1 if any(view[position:]) else 0), 0
    else:
        size, magic = SIZE_AND_MAGIC.unpack_from(view, position)
    if size == 0:
        return ScanStop(StopKind.NOTHING, position, StopKind.NOTHING.value)
    if (size, magic) == (rest, BLANK_MAGIC_CODE):
        return ScanStop(StopKind.BLANK, position, StopKind.BLANK.value)
    return ScanStop(StopKind.BAD, position, error.reason)
