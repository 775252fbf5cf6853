"""Reading the log for consume queues and index: what they take from records, in batches."""

from __future__ import annotations

from typing import Final, final

from commitbus.commitlog.commit_log import CommitLog
from commitbus.commitlog.errors import CorruptRecordError
from commitbus.commitlog.kernels import DispatchBatch, DispatchColumns, TopicTable, kernels
from commitbus.commitlog.record_scanner import StopKind, stop_at
from commitbus.commitlog.types import PhysicalOffset

FEW_BYTES: Final = 16 << 10
"""Below that record by record: reading columns costs half a millisecond, however few they have."""
_TOPICS_MAX: Final = 100_000


@final
class DispatchReader:
    """Follows the records of a log, one thread at a time."""

    __slots__ = ("_count", "_log", "_topics")

    def __init__(self, log: CommitLog) -> None:
        """Read `log`, which may be appended to meanwhile."""
        self._log = log
        self._topics = TopicTable()
        self._count = 0
        """Of the newest batch."""

    def read(
        self, start: PhysicalOffset, end: PhysicalOffset, max_count: int
    ) -> tuple[DispatchBatch, PhysicalOffset]:
        """Return up to `max_count` records in [start, end), and where to go on.

        There may be fewer than that before `end`; without any, the second value is `end`. Checksums
        are not looked at: what is in the log was checked when it came there, or by recovery.

        Raises:
            CorruptRecordError: The first record from `start` on is not whole.
            OffsetOutOfRangeError: Nothing is stored at `start`.
            StoreClosedError: The log was closed.
        """
        end = min(end, self._log.end_offset)
        if end - start < FEW_BYTES:
            return self._log.dispatch_requests(start, end, max_count)
        while start < end:
            columns, start = self._read_file(start, end, max_count)
            if columns is not None:
                return columns, start
        return [], start

    def _read_file(
        self, start: PhysicalOffset, end: PhysicalOffset, max_count: int
    ) -> tuple[DispatchColumns | None, PhysicalOffset]:
        """Return as `read`, from one file; at its end None and where the next file begins."""
        if len(self._topics) > _TOPICS_MAX:
            self._topics = TopicTable()
        file_size = self._log.files.file_size
        base = PhysicalOffset(start - start % file_size)
        length = min(file_size, end - base)
        with self._log.pin(base, length) as view:
            chosen = kernels(self._count)
            records = chosen.scan(
                view, base, start - base, self._topics, max_records=max_count, verify_crc=False
            )
            self._count = len(records)
            if self._count:
                columns = chosen.dispatch(view, base, records)
                return columns, columns.end_offset
            stop = stop_at(view, base, start - base, verify_crc=False)
        if stop.kind not in (StopKind.FILE_END, StopKind.BLANK):
            raise CorruptRecordError(start, stop.reason)
        return None, PhysicalOffset(base + length)
