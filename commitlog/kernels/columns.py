"""Many records at once: what the kernels take and return, an array item per record."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias, cast, final

import numpy as np

from commitbus.commitlog.java_hash import java_string_hash
from commitbus.commitlog.record_format import SCHEDULE_TOPIC, TRANSACTION_PREPARED
from commitbus.commitlog.types import DispatchRequest, PhysicalOffset, QueueOffset

Int64s: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
Int32s: TypeAlias = np.ndarray[Any, np.dtype[np.int32]]
UInt16s: TypeAlias = np.ndarray[Any, np.dtype[np.uint16]]
Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]
Booleans: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]

COLUMNS: Final = 8
POSITION, SIZE, TOPIC, QUEUE_ID, QUEUE_OFFSET, SYS_FLAG, STORE_TIMESTAMP, PROPERTIES = range(
    COLUMNS
)
"""Rows of `RecordColumns.table`."""

UNIT_BYTES: Final = 20
"""Of a unit of a consume queue: physical offset i64, size i32, tags code i64."""

_WORD: Final = 0xFFFF_FFFF


@final
class TopicTable:
    """Numbers topics in the order in which they are seen, so that a column can hold them.

    Numbers never change. Besides a dict for Python it keeps a hash table in arrays, for kernels
    that cannot use one: open addressing, linear probing, at most half full.

    Not thread-safe: a kernel must not search it while another thread adds to it.
    """

    __slots__ = ("_numbers", "data", "key_states", "names", "slots", "starts")

    def __init__(self) -> None:
        """Begin without any topic."""
        self._numbers: dict[bytes, int] = {}
        self.names: list[str] = []
        """By number."""
        self.slots: Int32s = np.full(64, -1, np.int32)
        """Numbers, at `topic_hash` modulo the length (a power of two) or behind; -1 is free."""
        self.starts: Int64s = np.zeros(33, np.int64)
        """Where the bytes of each topic begin in `data`; the next one's begin is its end."""
        self.data: Bytes = np.zeros(1024, np.uint8)
        self.key_states: Int64s = np.zeros((3, 32), np.int64)
        """Java's hash of `topic#` and of `topic#T#`, unsigned, and whether only Python can tell
        its tags codes: shape (3, topics)."""

    def __len__(self) -> int:
        """Return how many topics were seen."""
        return len(self.names)

    def number(self, topics: list[bytes]) -> list[int]:
        """Return the numbers of topics, new ones too; -1 for each that is none."""
        found = list(map(self._numbers.get, topics))
        if None in found:
            return list(map(self.learn, topics))
        return cast("list[int]", found)

    def learn(self, topic: bytes) -> int:
        """Return the number of a topic, new or not; -1 if these bytes are no topic."""
        number = self._numbers.get(topic, -1)
        if number >= 0:
            return number
        try:
            text = topic.decode()
        except UnicodeDecodeError:
            return -1
        if not text or "\0" in text:
            return -1
        number = len(self.names)
        self._make_room(len(topic))
        self._enter(number, topic, text)
        self.names.append(text)
        self._numbers[topic] = number
        return number

    def _make_room(self, topic_bytes: int) -> None:
        """Double what is too small."""
        count = len(self.names)
        used = int(self.starts[count])
        if used + topic_bytes > len(self.data):
            self.data = np.concatenate(
                [self.data, np.zeros(len(self.data) + topic_bytes, np.uint8)]
            )
        if count < self.key_states.shape[1]:
            return
        self.starts = np.concatenate([self.starts, np.zeros(count, np.int64)])
        self.key_states = np.concatenate([self.key_states, np.zeros((3, count), np.int64)], axis=1)
        self.slots = np.full(2 * len(self.slots), -1, np.int32)
        for topic, number in self._numbers.items():
            self._place(topic, number)

    def _enter(self, number: int, topic: bytes, text: str) -> None:
        start = int(self.starts[number])
        end = start + len(topic)
        self.data[start:end] = np.frombuffer(topic, np.uint8)
        self.starts[number + 1] = end
        self.key_states[0, number] = java_string_hash(f"{text}#") & _WORD
        self.key_states[1, number] = java_string_hash(f"{text}#T#") & _WORD
        self.key_states[2, number] = text == SCHEDULE_TOPIC
        self._place(topic, number)

    def _place(self, topic: bytes, number: int) -> None:
        slot = topic_hash(topic) % len(self.slots)
        while self.slots[slot] >= 0:
            slot = (slot + 1) % len(self.slots)
        self.slots[slot] = number


def topic_hash(topic: bytes) -> int:
    """Return where a search for a topic in `TopicTable.slots` begins, before the modulo."""
    total = 0
    for byte in topic:
        total = (total * 31 + byte) & _WORD
    return total


@final
class QueueUnits(NamedTuple):
    """What goes into one consume queue, in log order. At least one unit."""

    topic: str
    queue_id: int
    queue_offsets: Sequence[int]
    """Of each unit; a `range` with step 1 where each follows the one before, as nearly always."""
    units: memoryview
    """`UNIT_BYTES` for each, as the queue's file has them."""


def split_units(
    topics: Sequence[str],
    queues: Iterable[tuple[int, int, int, int, bool]],
    queue_offsets: Int64s,
    units: memoryview,
) -> list[QueueUnits]:
    """Return the units of each queue, given those of all of them, queue after queue.

    Args:
        topics: Their names by number.
        queues: Of each its topic, its id, the index of its first unit, the one behind its last,
            and whether its queue offsets follow each other.
        queue_offsets: Of each unit.
        units: The units.
    """
    split = []
    for topic, queue_id, start, end, is_dense in queues:
        first = int(queue_offsets[start])
        offsets = range(first, first + end - start)
        split.append(
            QueueUnits(
                topics[topic],
                queue_id,
                offsets if is_dense else queue_offsets[start:end].tolist(),
                units[UNIT_BYTES * start : UNIT_BYTES * end],
            )
        )
    return split


@final
@dataclass(frozen=True)
class RecordColumns:
    """Intact records of one file that lie next to each other, in log order."""

    table: Int64s
    """Shape (COLUMNS, records). Positions count from the beginning of the file."""
    topics: TopicTable

    def __len__(self) -> int:
        """Return how many records these are."""
        return int(self.table.shape[1])

    @property
    def end(self) -> int:
        """Position behind the last record, of which there must be one."""
        return int(self.table[POSITION, -1] + self.table[SIZE, -1])

    def queue_ends(self) -> dict[tuple[str, int], QueueOffset]:
        """Return what follows the newest record of each queue, of those that are in queues."""
        last_first = self.in_queues()[::-1]
        if not last_first.size:
            return {}
        _, indexes = np.unique(self.queue_keys(last_first), return_index=True)
        newest = self.table[:, last_first[indexes]]
        columns = (newest[TOPIC], newest[QUEUE_ID], newest[QUEUE_OFFSET])
        return {
            (self.topics.names[topic], queue_id): QueueOffset(queue_offset + 1)
            for topic, queue_id, queue_offset in zip(*map(np.ndarray.tolist, columns), strict=True)
        }

    def in_queues(self) -> Int64s:
        """Return the indexes of the records that transactions do not keep out of queues."""
        # A rolled-back message has this bit too.
        return np.flatnonzero(self.table[SYS_FLAG] & TRANSACTION_PREPARED == 0)

    def queue_keys(self, rows: Int64s) -> Int64s | UInt16s:
        """Return a number for the queue of each row: equal for equal queues."""
        topics, queue_ids = self.table[TOPIC, rows], self.table[QUEUE_ID, rows]
        lowest = queue_ids.min()
        keys: Int64s = topics * (queue_ids.max() - lowest + 1) + (queue_ids - lowest)
        # numpy sorts numbers of 16 bits by radix.
        return keys.astype(np.uint16) if keys.max() < 1 << 16 else keys


@final
@dataclass(frozen=True, slots=True)
class DispatchColumns:
    """What consume queues and index take from records, in log order."""

    records: RecordColumns
    base_offset: int
    """Physical offset from which the records' positions count."""
    tags_codes: Int64s
    """Shape (records,)."""
    key_hashes: Int32s
    """What the index stores for each key, in [0, 2^31); the keys of a record next to each other."""
    key_counts: Int64s
    """How many of the hashes are a record's; shape (records,)."""
    queues: list[QueueUnits]
    """In any order, each queue once; without the records that transactions keep out of queues."""

    def __len__(self) -> int:
        """Return how many records these are."""
        return len(self.records)

    @property
    def physical_offsets(self) -> Int64s:
        """Where the records lie in the log."""
        offsets: Int64s = self.records.table[POSITION] + self.base_offset
        return offsets

    @property
    def end_offset(self) -> PhysicalOffset:
        """First physical offset after the last record, of which there must be one."""
        return PhysicalOffset(self.base_offset + self.records.end)

    @property
    def store_timestamps(self) -> Int64s:
        """When the records were stored, in milliseconds since 1970; never decreases."""
        timestamps: Int64s = self.records.table[STORE_TIMESTAMP]
        return timestamps


DispatchBatch: TypeAlias = Sequence[DispatchRequest] | DispatchColumns
"""What reput takes to the queues and the index at a time: a few one by one, many as columns."""
