"""Walking over the records of one file, one by one, and telling where and why a log ends.

The kernels walk faster, and to the same place: recovery and reput use them for many records, and
this for a few and for the end. Both look at pieces of a file: it is read, not mapped, as a page
that the disk does not give back must be an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Final, NamedTuple, final

from commitbus.commitlog.errors import CorruptRecordError
from commitbus.commitlog.record_format import (
    BLANK_MAGIC_CODE,
    BLANK_RECORD_BYTES,
    HEADER_FORMATS,
    HOST_FLAGS,
    SIZE_AND_MAGIC,
    CheckedRecord,
    check_record,
    claimed_size,
)
from commitbus.commitlog.segments import Segment

PIECE_BYTES: Final = 4 << 20
"""Read of a file at a time: as fast as larger pieces, and the caches keep it."""
_HEADER_BYTES_MAX: Final = HEADER_FORMATS[HOST_FLAGS].size
"""Without it a record does not say how long it is."""


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

    __slots__ = ("_base_offset", "_behind", "_position", "_verify_crc", "_view", "stop")

    def __init__(
        self,
        view: memoryview,
        base_offset: int,
        position: int = 0,
        *,
        verify_crc: bool = True,
        behind: int = 0,
    ) -> None:
        """Scan `view`, whose first byte lies at `base_offset` of the log, from `position` on.

        Args:
            view: Bytes of one file.
            base_offset: Physical offset of the first of them.
            position: Position of the first record in the view.
            verify_crc: Whether bodies are compared with their checksums.
            behind: How many bytes follow the view, to the end of its file or of what was appended,
                whichever comes first.
        """
        self._view, self._base_offset, self._position = view, base_offset, position
        self._verify_crc, self._behind = verify_crc, behind
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
            self.stop = _explain(view, position, self._behind, error)


@final
class Piece(NamedTuple):
    """Bytes of a file that begin where a record begins."""

    view: memoryview
    behind: int
    """How many more bytes of the file count."""


def read_piece(file: Segment, position: int, limit: int, piece_bytes: int = PIECE_BYTES) -> Piece:
    """Return bytes of a file from `position` on: `piece_bytes`, and at least one whole record.

    Less only if `limit`, the end of the valid bytes of the file, comes before.

    Raises:
        ReadFailedError: The disk does not give them back.
    """
    rest = limit - position
    data, failure = file.read_up_to(position, min(max(piece_bytes, _HEADER_BYTES_MAX), rest))
    view = memoryview(data)
    size = claimed_size(view)
    # Records before the unreadable page are still returned.
    if failure is not None and len(view) < (size or _HEADER_BYTES_MAX):
        raise failure
    if len(view) < size <= rest:
        view = memoryview(file.read(position, size))
    return Piece(view, rest - len(view))


@final
class FileScanner:
    """Iterates over the intact records of a file, read piece by piece.

    Yields for each (view, position in the file, `CheckedRecord` with positions in the view).
    `stop`, set at the end, has the position in the file.
    """

    __slots__ = ("_file", "_limit", "_position", "_verify_crc", "stop")

    def __init__(
        self,
        file: Segment,
        position: int = 0,
        limit: int | None = None,
        *,
        verify_crc: bool = True,
    ) -> None:
        """Scan from `position` to `limit`, without one to the file's end. ReadFailedError."""
        self._file, self._position, self._verify_crc = file, position, verify_crc
        self._limit = file.size_bytes if limit is None else limit
        self.stop: ScanStop | None = None

    def __iter__(self) -> Iterator[tuple[memoryview, int, CheckedRecord]]:
        """Yield each intact record; then set `stop`."""
        start = self._position
        while self.stop is None:
            view, behind = read_piece(self._file, start, self._limit)
            scanner = RecordScanner(
                view,
                self._file.base_offset + start,
                verify_crc=self._verify_crc,
                behind=behind,
            )
            for checked in scanner:
                yield view, start + checked[-1] - checked[0], checked
            assert scanner.stop is not None, "the scanner ran to its end"
            end = scanner.stop.position
            start += end
            # In front of the last piece's end a record may merely be cut off.
            if end == 0 or behind == 0:
                self.stop = scanner.stop._replace(position=start)


def stop_at(
    view: memoryview,
    base_offset: int,
    position: int,
    *,
    verify_crc: bool = True,
    behind: int = 0,
) -> ScanStop:
    """Return why a scan of `view` went no further than `position`."""
    scanner = RecordScanner(view, base_offset, position, verify_crc=verify_crc, behind=behind)
    assert next(iter(scanner), None) is None, "no intact record begins where a scan ends"
    assert scanner.stop is not None, "the scanner ran to its end"
    return scanner.stop


def _explain(view: memoryview, position: int, behind: int, error: CorruptRecordError) -> ScanStop:
    """Tell the regular ends of a file from a bad record. Only the end of a scan pays for it."""
    rest = len(view) - position + behind
    if rest == 0:
        return ScanStop(StopKind.FILE_END, position, StopKind.FILE_END.value)
    if rest < BLANK_RECORD_BYTES:
        size, magic = (1 if any(view[position:]) else 0), 0
    elif len(view) - position < BLANK_RECORD_BYTES:
        # The view ends in the middle of a header, as before a page that cannot be read.
        return ScanStop(StopKind.BAD, position, error.reason)
    else:
        size, magic = SIZE_AND_MAGIC.unpack_from(view, position)
    if size == 0:
        return ScanStop(StopKind.NOTHING, position, StopKind.NOTHING.value)
    if (size, magic) == (rest, BLANK_MAGIC_CODE):
        return ScanStop(StopKind.BLANK, position, StopKind.BLANK.value)
    return ScanStop(StopKind.BAD, position, error.reason)
