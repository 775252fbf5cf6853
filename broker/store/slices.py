"""Runs of stored records, copied as they lie in the log: what a reader of many messages gets.

Everything here may be called from any thread, and may wait for a disk.
"""

from __future__ import annotations

from typing import Final, NamedTuple, final

import numpy as np

from commitbus.commitlog.commit_log import CommitLog
from commitbus.commitlog.errors import CorruptRecordError
from commitbus.commitlog.kernels import TopicTable, kernels
from commitbus.commitlog.kernels.columns import POSITION, SIZE, Int64s
from commitbus.commitlog.record_format import check_record, find_names
from commitbus.commitlog.record_scanner import StopKind, stop_at
from commitbus.commitlog.types import PhysicalOffset, QueueOffset
from commitbus.consumequeue.consume_queue import ConsumeQueue

UNITS_MAX: Final = 8192
"""Records looked at for one slice: one of a MiB has as many if they are of 128 bytes."""


@final
class Slice(NamedTuple):
    """Whole records back to back."""

    first_offset: int
    """Of the first record; offsets are those of the queue, or physical ones."""
    record_count: int
    next_offset: int
    """Where the slice behind this one begins."""
    records: bytes


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
) -> Slice:
    """Return records of a queue from `start` on, `max_bytes` of them or a single longer one.

    Raises:
        OffsetOutOfRangeError: Retention has deleted what is asked for.
    """
    units = queue.units_array(start, min(UNITS_MAX, end - start))
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
    parts = _copy(log, offsets[chosen], sizes[chosen])
    if wanted is not None:
        records = memoryview(b"".join(parts))
        return _with_tags(records, start + chosen, sizes[chosen], next_offset, wanted.tags)
    return Slice(start, len(chosen), next_offset, b"".join(parts))


def _copy(log: CommitLog, offsets: Int64s, sizes: Int64s) -> list[bytes]:
    """Return the bytes of records, in order; those in one file as one item."""
    if not len(offsets):
        return []
    file_bytes = log.files.file_size
    ends = offsets + sizes
    # Records next to each other are one run; a run never reaches into the next file.
    breaks = np.flatnonzero(offsets[1:] != ends[:-1]) + 1
    starts = offsets[np.concatenate(([0], breaks))]
    ends = ends[np.concatenate((breaks - 1, [len(ends) - 1]))]
    files = starts // file_bytes
    parts: list[bytes] = []
    for file in np.unique(files).tolist():
        in_file = files == file
        runs = list(zip(starts[in_file].tolist(), ends[in_file].tolist(), strict=True))
        base = file * file_bytes
        length = max(end for _, end in runs) - base
        with log.pin(PhysicalOffset(base), length) as view:
            parts.append(b"".join([view[start - base : end - base] for start, end in runs]))
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
    first = next_offset
    position = 0
    for queue_offset, size in zip(queue_offsets.tolist(), sizes.tolist(), strict=True):
        record = records[position : position + size]
        position += size
        if tags_of(record) in tags:
            first = min(first, queue_offset)
            kept.append(record)
    return Slice(first, len(kept), next_offset, b"".join(kept))


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
        """
        file_bytes = self._log.files.file_size
        while start < end:
            base = PhysicalOffset(start - start % file_bytes)
            length = min(file_bytes, end - base)
            with self._log.pin(base, length) as view:
                found = self._slice(view, base, start - base, max_bytes)
                if found is not None:
                    return found
                stop = stop_at(view, base, start - base, verify_crc=False)
            if stop.kind not in (StopKind.FILE_END, StopKind.BLANK):
                raise CorruptRecordError(start, stop.reason)
            start = PhysicalOffset(base + length)
        return Slice(start, 0, start, b"")

    def _slice(
        self, view: memoryview, base: PhysicalOffset, position: int, max_bytes: int
    ) -> Slice | None:
        if len(self._topics) > UNITS_MAX:
            self._topics = TopicTable()
        records = kernels(0).scan(
            view, base, position, self._topics, max_records=UNITS_MAX, verify_crc=False
        )
        if not len(records):
            return None
        ends = records.table[POSITION] + records.table[SIZE]
        count = max(1, int(np.searchsorted(ends, position + max_bytes, side="right")))
        stop = int(ends[count - 1])
        return Slice(base + position, count, base + stop, view[position:stop].tobytes())
