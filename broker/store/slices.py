"""Runs of stored records, copied as they lie in the log: what a reader of many messages gets.

Everything here may be called from any thread, and may wait for a disk.
"""

from __future__ import annotations

from typing import Final, NamedTuple, final

import numpy as np
import numpy.typing as npt

from commitbus.commitlog.commit_log import CommitLog
from commitbus.commitlog.errors import CorruptRecordError
from commitbus.commitlog.kernels import TopicTable, kernels
from commitbus.commitlog.kernels.columns import POSITION, SIZE, Int64s
from commitbus.commitlog.record_format import check_record, find_names
from commitbus.commitlog.record_scanner import StopKind, stop_at
from commitbus.commitlog.types import PhysicalOffset, QueueOffset
from commitbus.consumequeue.consume_queue import ConsumeQueue
from commitbus.consumequeue.unit_format import UNIT_DTYPE

SPAN_BYTES_MAX: Final = 1 << 20
"""Read at once, with what lies between the records that are wanted."""
GAP_BYTES_MAX: Final = 1 << 14
"""Between two wanted records, that is read with them: a system call takes longer."""
UNITS_MAX: Final = 8192
"""Records looked at for one slice: one of a MiB has as many if they are of 128 bytes."""
_SIZE_IN_TABLE: Final = np.dtype("<u4")


@final
class Slice(NamedTuple):
    """Whole records back to back."""

    first_offset: int
    """Of the first record; offsets are those of the queue, or physical ones."""
    record_count: int
    next_offset: int
    """Where the slice behind this one begins."""
    records: bytes
    sizes: bytes
    """Of each record, u32 little-endian."""


@final
class WantedTags(NamedTuple):
    """A tag filter: the codes to look for in the queue, and the tags themselves."""

    codes: frozenset[int]
    tags: frozenset[str]


def queue_slice(
    log: CommitLog,
    queue: ConsumeQueue,
    start: QueueOffset,
    end: QueueOffset,
    *,
    max_bytes: int,
    wanted: WantedTags | None,
    max_units: int = UNITS_MAX,
    only_cached: bool = False,
) -> Slice | None:
    """Return records of a queue from `start` on, `max_bytes` of them or a single longer one.

    Args:
        log: Has the records.
        queue: Says where they are.
        start: Queue offset of the first one.
        end: Of the one behind the last that may be shown.
        max_bytes: Of records.
        wanted: The tags, all when None.
        max_units: Of the queue that are looked at.
        only_cached: Return None instead of waiting for a disk for a record.

    Raises:
        OffsetOutOfRangeError: Retention has deleted what is asked for.
        ReadFailedError: The disk does not give back a block.
    """
    most = min(max_units, end - start)
    if wanted is None:
        # As many as there are if they are a little smaller than the first one on average.
        first = _units(queue, start, 1, only_cached=only_cached)
        if first is None:
            return None
        first_bytes = int(first["size_bytes"][0])
        most = min(most, 1 + max_bytes * 5 // (4 * first_bytes))
    units = _units(queue, start, most, only_cached=only_cached)
    if units is None:
        return None
    offsets = units["physical_offset"].astype(np.int64)
    sizes = units["size_bytes"].astype(np.int64)
    if wanted is None:
        chosen = np.arange(len(units))
    else:
        chosen = np.flatnonzero(np.isin(units["tags_code"], list(wanted.codes)))
    fitting = max(1, int(np.searchsorted(np.cumsum(sizes[chosen]), max_bytes, side="right")))
    is_cut = fitting < len(chosen)
    next_offset = start + (int(chosen[fitting]) if is_cut else len(units))
    chosen = chosen[:fitting]
    parts = _copy(log, offsets[chosen], sizes[chosen], only_cached=only_cached)
    if parts is None:
        return None
    records = b"".join(parts)
    if wanted is not None:
        view = memoryview(records)
        return _with_tags(view, start + chosen, sizes[chosen], next_offset, wanted.tags)
    return Slice(start, len(chosen), next_offset, records, _table(sizes[chosen]))


def _units(
    queue: ConsumeQueue, start: QueueOffset, count: int, *, only_cached: bool
) -> npt.NDArray[np.void] | None:
    data = queue.read_cached(start, count) if only_cached else queue.read(start, count)
    return None if data is None else np.frombuffer(data, dtype=UNIT_DTYPE)


def _table(sizes: Int64s) -> bytes:
    return sizes.astype(_SIZE_IN_TABLE).tobytes()


def _copy(
    log: CommitLog, offsets: Int64s, sizes: Int64s, *, only_cached: bool
) -> list[bytes | memoryview] | None:
    """Return the bytes of records, in order; None if a disk would have to be waited for."""
    if not len(offsets):
        return []
    file_bytes = log.file_size
    ends = offsets + sizes
    # Records next to each other are one run; a run never reaches into the next file.
    breaks = np.flatnonzero(offsets[1:] != ends[:-1]) + 1
    starts = offsets[np.concatenate(([0], breaks))].tolist()
    run_ends = ends[np.concatenate((breaks - 1, [len(ends) - 1]))].tolist()
    read = log.read_cached if only_cached else log.read_bytes
    parts: list[bytes | memoryview] = []
    first = 0
    while first < len(starts):
        begin, last = starts[first], first
        file_end = begin - begin % file_bytes + file_bytes
        while (
            last + 1 < len(starts)
            and run_ends[last] <= starts[last + 1] <= run_ends[last] + GAP_BYTES_MAX
            and run_ends[last + 1] <= min(file_end, begin + SPAN_BYTES_MAX)
        ):
            last += 1
        data = read(PhysicalOffset(begin), run_ends[last] - begin)
        if data is None:
            return None
        view = memoryview(data)
        parts += [view[starts[i] - begin : run_ends[i] - begin] for i in range(first, last + 1)]
        first = last + 1
    return parts


def _with_tags(
    records: memoryview,
    queue_offsets: Int64s,
    sizes: Int64s,
    next_offset: int,
    tags: frozenset[str],
) -> Slice:
    """Return the records that have one of the tags indeed: different tags may share a code."""
    kept: list[memoryview] = []
    kept_sizes: list[int] = []
    first = next_offset
    position = 0
    for queue_offset, size in zip(queue_offsets.tolist(), sizes.tolist(), strict=True):
        record = records[position : position + size]
        position += size
        if tags_of(record) in tags:
            first = min(first, queue_offset)
            kept.append(record)
            kept_sizes.append(size)
    return Slice(
        first, len(kept), next_offset, b"".join(kept), _table(np.array(kept_sizes, np.int64))
    )


_PHYSICAL_OFFSET: Final = slice(28, 36)


def tags_of(record: memoryview) -> str:
    """Return the tags of a record, empty without any.

    Raises:
        CorruptRecordError: It is none.
    """
    offset = int.from_bytes(record[_PHYSICAL_OFFSET], "big")
    *_, topic, _, _, properties, end = check_record(record, 0, offset, verify_crc=False)
    return find_names(record[properties:end].tobytes(), topic, 0)[3]


@final
class LogSlices:
    """Follows the whole log, one thread at a time."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._topics = TopicTable()

    def read(self, start: PhysicalOffset, end: PhysicalOffset, max_bytes: int) -> Slice:
        """Return records from `start` on, `max_bytes` of them or a single longer one.

        Without any before `end`, the next offset is `end`.

        Raises:
            CorruptRecordError: No record begins at `start`.
            OffsetOutOfRangeError: Nothing is stored there.
            ReadFailedError: The disk does not give it back.
        """
        while start < end:
            view, behind = self._log.read_piece(start, end, max_bytes)
            found = self._slice(view, start, max_bytes)
            if found is not None:
                return found
            stop = stop_at(view, start, 0, verify_crc=False, behind=behind)
            if stop.kind not in (StopKind.FILE_END, StopKind.BLANK):
                raise CorruptRecordError(start, stop.reason)
            start = PhysicalOffset(start + len(view) + behind)
        return Slice(start, 0, start, b"", b"")

    def _slice(self, view: memoryview, start: PhysicalOffset, max_bytes: int) -> Slice | None:
        if len(self._topics) > UNITS_MAX:
            self._topics = TopicTable()
        records = kernels(0).scan(
            view, start, 0, self._topics, max_records=UNITS_MAX, verify_crc=False
        )
        if not len(records):
            return None
        ends = records.table[POSITION] + records.table[SIZE]
        count = max(1, int(np.searchsorted(ends, max_bytes, side="right")))
        stop = int(ends[count - 1])
        sizes = _table(records.table[SIZE, :count])
        return Slice(start, count, start + stop, view[:stop].tobytes(), sizes)
