"""Reading the log for consume queues and index: what they take from records, in batches."""

from __future__ import annotations

from typing import Final, final

from commitbus.commitlog.commit_log import CommitLog
from commitbus.commitlog.errors import CorruptRecordError
from commitbus.commitlog.kernels import (
    DispatchBatch,
    DispatchColumns,
    Kernels,
    TopicTable,
    kernels,
)
from commitbus.commitlog.record_scanner import PIECE_BYTES, StopKind, stop_at
from commitbus.commitlog.types import PhysicalOffset

FEW_RECORDS: Final = {"python": 64, "numba": 12}
"""Up to so many are faster one by one, at 10 us each. Columns take, however few they have, 600 us
more without the compiled kernels and 150 with them: that is numpy and numba met with cold caches,
as by a thread that has just woken up; in a loop it is a quarter."""
_TOPICS_MAX: Final = 100_000
_PIECE_BYTES_MIN: Final = 1 << 16


@final
class DispatchReader:
    """Follows the records of a log, one thread at a time."""

    __slots__ = ("_count", "_log", "_record_bytes", "_topics")

    def __init__(self, log: CommitLog) -> None:
        """Read `log`, which may be appended to meanwhile."""
        self._log = log
        self._topics = TopicTable()
        self._count = 0
        """Of the newest batch."""
        self._record_bytes = 1024.0
        """Of one of its records."""

    def read(
        self, start: PhysicalOffset, end: PhysicalOffset, max_count: int
    ) -> tuple[DispatchBatch, PhysicalOffset]:
        """Return up to `max_count` records in [start, end), and where to go on.

        There may be fewer than that before `end`; without any, the second value is `end`. Checksums
        are not looked at: what is in the log was checked when it came there, or by recovery.

        Raises:
            CorruptRecordError: The first record from `start` on is not whole.
            OffsetOutOfRangeError: Nothing is stored at `start`.
            ReadFailedError: The disk does not give a record back.
            StoreClosedError: The log was closed.
        """
        end = min(end, self._log.end_offset)
        # A few say nothing for the compiled kernels.
        chosen = kernels(self._count if self._count > FEW_RECORDS["numba"] else 0)
        batch: DispatchBatch
        if end - start <= FEW_RECORDS[chosen.name] * self._record_bytes:
            batch, reached = self._log.dispatch_requests(start, end, max_count)
        else:
            batch, reached = self._read_columns(chosen, start, end, max_count)
        self._count = len(batch)
        if self._count:
            self._record_bytes = (reached - start) / self._count
        return batch, reached

    def end_of_file(self, offset: PhysicalOffset) -> PhysicalOffset:
        """Return where the log file behind that of `offset` begins."""
        file_size = self._log.file_size
        return PhysicalOffset(offset - offset % file_size + file_size)

    def _read_columns(
        self, chosen: Kernels, start: PhysicalOffset, end: PhysicalOffset, max_count: int
    ) -> tuple[DispatchBatch, PhysicalOffset]:
        while start < end:
            columns, start = self._read_file(chosen, start, end, max_count)
            if columns is not None:
                return columns, start
        return [], start

    def _read_file(
        self, chosen: Kernels, start: PhysicalOffset, end: PhysicalOffset, max_count: int
    ) -> tuple[DispatchColumns | None, PhysicalOffset]:
        """Return as `read`, from one file; at its end None and where the next file begins."""
        if len(self._topics) > _TOPICS_MAX:
            self._topics = TopicTable()
        wanted_bytes = int(max_count * self._record_bytes)
        piece_bytes = min(max(wanted_bytes, _PIECE_BYTES_MIN), PIECE_BYTES)
        view, behind = self._log.read_piece(start, end, piece_bytes)
        records = chosen.scan(view, start, 0, self._topics, max_records=max_count, verify_crc=False)
        if len(records):
            columns = chosen.dispatch(view, start, records)
            return columns, columns.end_offset
        stop = stop_at(view, start, 0, verify_crc=False, behind=behind)
        if stop.kind not in (StopKind.FILE_END, StopKind.BLANK):
            raise CorruptRecordError(start, stop.reason)
        return None, PhysicalOffset(start + len(view) + behind)
