"""Reading the log: records by their physical offset, and pieces of it to walk over.

The bytes come from segments, wherever those are. What cannot be had is an error of the one read
that wanted it.
"""

from __future__ import annotations

from typing import Final

from commitbus.commitlog.errors import (
    CorruptRecordError,
    OffsetOutOfRangeError,
    StoreClosedError,
)
from commitbus.commitlog.record_format import (
    decode_record,
    decode_store_timestamp,
    dispatch_request,
)
from commitbus.commitlog.record_scanner import PIECE_BYTES, FileScanner, Piece, StopKind, read_piece
from commitbus.commitlog.segments import Segment, SegmentSource
from commitbus.commitlog.types import DispatchRequest, PhysicalOffset, Record

_FIRST_READ_BYTES: Final = 4096
"""Read of a record whose size is not known: most are not longer."""
_TIMESTAMP_BYTES: Final = 128
"""A header has its store timestamp in them."""


class LogReader:
    """Reads the log; `CommitLog` adds writing. Safe to call from any thread."""

    def __init__(self, segments: SegmentSource, end_offset: int) -> None:
        """Read what lies in the segments below the end offset."""
        self._segments = segments
        self._end_offset = end_offset
        self._closed = False

    @property
    def file_size(self) -> int:
        """Bytes of each segment."""
        return self._segments.file_size

    @property
    def min_offset(self) -> PhysicalOffset:
        """First physical offset that is stored."""
        return PhysicalOffset(self._segments.min_offset)

    @property
    def end_offset(self) -> PhysicalOffset:
        """Physical offset behind the last record that was appended."""
        return PhysicalOffset(self._end_offset)

    def read_bytes(self, physical_offset: PhysicalOffset, size_bytes: int) -> bytes:
        """Return stored bytes of one file. May wait for a disk.

        Raises:
            OffsetOutOfRangeError: They do not lie in what is stored, in one file.
            ReadFailedError: The disk does not give them back.
            StoreClosedError: The log was closed.
        """
        file = self._file_with(physical_offset, size_bytes)
        return file.read(physical_offset - file.base_offset, size_bytes)

    def read_cached(self, physical_offset: PhysicalOffset, size_bytes: int) -> bytes | None:
        """Return as `read_bytes` if no disk has to be waited for, else None. Raises likewise."""
        file = self._file_with(physical_offset, size_bytes)
        return file.read_cached(physical_offset - file.base_offset, size_bytes)

    def read_piece(
        self, start: PhysicalOffset, end: PhysicalOffset, piece_bytes: int = PIECE_BYTES
    ) -> Piece:
        """Return bytes from the record at `start` on, as `record_scanner.read_piece` does.

        They end with the file, at `end`, or where nothing more is stored. Raises as `read_bytes`.
        """
        file = self._file_at(start)
        limit = min(file.size_bytes, min(end, self._end_offset) - file.base_offset)
        return read_piece(file, start - file.base_offset, limit, piece_bytes)

    def read(self, physical_offset: PhysicalOffset) -> Record:
        """Return the record at an offset, its checksum verified.

        Raises:
            CorruptRecordError: No intact record begins there.
            OffsetOutOfRangeError: Nothing is stored there.
            ReadFailedError: The disk does not give it back.
            StoreClosedError: The log was closed.
        """
        piece = self.read_piece(physical_offset, self.end_offset, _FIRST_READ_BYTES)
        return decode_record(piece.view, physical_offset)

    def store_timestamp(self, physical_offset: PhysicalOffset) -> int:
        """Return when the record at an offset was stored, looking at nothing else. As `read`."""
        file = self._file_at(physical_offset)
        position = physical_offset - file.base_offset
        length = min(
            _TIMESTAMP_BYTES, file.size_bytes - position, self._end_offset - physical_offset
        )
        return decode_store_timestamp(memoryview(file.read(position, length)), physical_offset)

    def dispatch_requests(
        self, start: PhysicalOffset, end: PhysicalOffset, max_count: int
    ) -> tuple[list[DispatchRequest], PhysicalOffset]:
        """Return what reput needs of up to `max_count` records in [start, end), and where to go on.

        Blank records are passed over. The second value is `end` once everything was returned.

        Raises:
            CorruptRecordError: The first record from `start` on is not whole.
            OffsetOutOfRangeError: Nothing is stored at `start`.
            ReadFailedError: The disk does not give a record back.
            StoreClosedError: The log was closed.
        """
        requests: list[DispatchRequest] = []
        end = min(end, self.end_offset)
        while start < end and len(requests) < max_count:
            file = self._file_at(start)
            base = file.base_offset
            limit = min(file.size_bytes, end - base)
            scanner = FileScanner(file, start - base, limit, verify_crc=False)
            for view, position, checked in scanner:
                requests.append(dispatch_request(view, PhysicalOffset(base + position), checked))
                if len(requests) == max_count:
                    return requests, requests[-1].end_offset
            stop = scanner.stop
            assert stop is not None, "the scanner ran to its end"
            if stop.kind not in (StopKind.FILE_END, StopKind.BLANK):
                if requests:
                    return requests, requests[-1].end_offset
                raise CorruptRecordError(base + stop.position, stop.reason)
            start = PhysicalOffset(base + limit)
        return requests, start

    def _file_at(self, physical_offset: int) -> Segment:
        if self._closed:
            raise StoreClosedError
        file = self._segments.find(physical_offset)
        if file is None or physical_offset >= self._end_offset:
            raise self._out_of_range(physical_offset)
        return file

    def _file_with(self, physical_offset: int, size_bytes: int) -> Segment:
        file = self._file_at(physical_offset)
        end = min(file.base_offset + file.size_bytes, self._end_offset)
        if physical_offset + size_bytes > end:
            raise self._out_of_range(physical_offset + size_bytes)
        return file

    def _out_of_range(self, physical_offset: int) -> OffsetOutOfRangeError:
        return OffsetOutOfRangeError(
            "physical offset", physical_offset, self._segments.min_offset, self._end_offset
        )
