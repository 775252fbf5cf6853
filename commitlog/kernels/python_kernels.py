"""The kernels in Python and numpy: what there is without a compiler, and until it is ready.

One loop in Python hops from size to size. What lies on that chain is then checked in numpy, a field
of all records at a time; where records break a rule, those before the first are what is left.

A gather reads one item at each of N positions through a view of overlapping items: neither a copy
of the log nor a loop in Python.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, final

import numpy as np
from isal.isal_zlib import crc32

from commitbus.commitlog.index_keys import index_key_texts, key_hashes
from commitbus.commitlog.kernels.columns import (
    POSITION,
    PROPERTIES,
    QUEUE_ID,
    QUEUE_OFFSET,
    SIZE,
    STORE_TIMESTAMP,
    SYS_FLAG,
    TOPIC,
    Booleans,
    Bytes,
    DispatchColumns,
    Int32s,
    Int64s,
    QueueUnits,
    RecordColumns,
    TopicTable,
    split_units,
)
from commitbus.commitlog.record_format import (
    BORN_HOST_IPV6_FLAG,
    CRC_MASK,
    HOST_FLAGS,
    MESSAGE_MAGIC_CODE_V1,
    MESSAGE_MAGIC_CODE_V2,
    MIN_RECORD_BYTES,
    PROPERTIES_LENGTH,
    STORE_HOST_IPV6_FLAG,
    ZERO_RUN,
    ZERO_RUN_BYTES,
    find_names,
)
from commitbus.commitlog.record_format import SIZE as SIZE_WORD

_HEADER: Final = np.dtype(
    {
        "names": ["size", "magic", "crc", "queue_id", "queue_offset", "physical_offset",
                  "sys_flag", "store_timestamp", "body_bytes"],
        "formats": [">u4", ">u4", ">u4", ">i4", ">i8", ">i8", ">i4", ">i8", ">u4"],
        "offsets": [0, 4, 8, 12, 20, 28, 36, 56, 84],
        "itemsize": 88,
    }
)  # fmt: skip
"""Where the fields lie if both hosts are IPv4; each IPv6 host moves the later ones by 12 bytes."""
_IPV6_EXTRA_BYTES: Final = 12
_I64: Final = np.dtype(">i8")
_U32: Final = np.dtype(">u4")
_U16: Final = np.dtype(">u2")

_SLOTS_POSITION: Final = 40
_PAGE_BYTES: Final = 4096
_SECONDS_MAX: Final = 0x7FFF_FFFF
_SLOT: Final = np.dtype(">i4")
_ENTRY: Final = np.dtype(
    [("key_hash", ">i4"), ("physical_offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")]
)
_UNIT: Final = np.dtype([("physical_offset", ">i8"), ("size_bytes", ">i4"), ("tags_code", ">i8")])


@lru_cache
def _own_fields(header_bytes: int) -> np.dtype[Any]:
    """Return where in a header of that size the fields lie in which records of a batch differ."""
    return np.dtype(
        {
            "names": ["size", "crc", "queue_offset", "physical_offset", "body_bytes"],
            "formats": [">u4", ">u4", ">i8", ">i8", ">u4"],
            "offsets": [0, 8, 20, 28, header_bytes - 4],
            "itemsize": header_bytes,
        }
    )


@final
class PythonKernels:
    """See `Kernels`."""

    name = "python"

    def scan(
        self,
        view: memoryview,
        base_offset: int,
        position: int,
        topics: TopicTable,
        *,
        max_records: int,
        verify_crc: bool,
    ) -> RecordColumns:
        """Return the intact records from `position` on."""
        positions = _follow_chain(view, position, max_records)
        return RecordColumns(
            _check(view, positions, base_offset, topics, verify_crc=verify_crc), topics
        )

    def dispatch(
        self, view: memoryview, base_offset: int, records: RecordColumns
    ) -> DispatchColumns:
        """Return tags codes and key hashes of records."""
        table, names = records.table, records.topics.names
        codes: list[int] = []
        counts: list[int] = []
        texts: list[str] = []
        ends = table[POSITION] + table[SIZE]
        columns = (table[PROPERTIES], ends, table[TOPIC], table[SYS_FLAG], table[STORE_TIMESTAMP])
        for start, end, topic_number, sys_flag, store_timestamp in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            topic = names[topic_number]
            code, unique_key, keys, tags = find_names(
                view[start:end].tobytes(), topic, store_timestamp
            )
            codes.append(code)
            new_texts = index_key_texts(topic, sys_flag, unique_key, keys, tags)
            counts.append(len(new_texts))
            texts += new_texts
        tags_codes = np.array(codes, np.int64)
        return DispatchColumns(
            records,
            base_offset,
            tags_codes,
            key_hashes(texts),
            np.array(counts, np.int64),
            _group_units(records, base_offset, tags_codes),
        )

    def append_records(
        self,
        view: memoryview,
        records: bytes | memoryview,
        body_bytes: Int64s,
        properties_bytes: Int64s,
        *,
        last_properties: bytes,
        header: bytes,
        topic: bytes,
        queue_offset: int,
        physical_offset: int,
    ) -> None:
        """Store records next to each other, hidden by the first one's size."""
        count, header_bytes = len(body_bytes), len(header)
        if last_properties:
            records = b"".join((records, last_properties))
            properties_bytes = properties_bytes.copy()
            properties_bytes[-1] += len(last_properties)
        sizes = body_bytes + properties_bytes + (header_bytes + len(topic) + 2)
        body_ends = np.cumsum(body_bytes + properties_bytes) - properties_bytes
        bounds = np.stack([body_ends - body_bytes, body_ends, body_ends + properties_bytes])
        bodies = [records[start:end] for start, end in zip(*bounds[:2].tolist(), strict=True)]
        own = bytearray(header * count)
        headers = np.frombuffer(own, _own_fields(header_bytes))
        headers["size"] = sizes
        headers["size"][0] = 0
        headers["crc"] = [crc32(body) & CRC_MASK for body in bodies]
        headers["queue_offset"] = np.arange(queue_offset, queue_offset + count)
        headers["physical_offset"] = np.cumsum(sizes) - sizes + physical_offset
        headers["body_bytes"] = body_bytes
        pack_length = PROPERTIES_LENGTH.pack
        parts: list[bytes | bytearray | memoryview] = []
        at = 0
        for body, body_end, end in zip(bodies, *bounds[1:].tolist(), strict=True):
            parts += (
                own[at : at + header_bytes],
                body,
                topic,
                pack_length(end - body_end),
                records[body_end:end],
            )
            at += header_bytes
        view[:] = b"".join(parts)

    def append_index_entries(
        self,
        slots: memoryview,
        changed_pages: memoryview,
        entries: memoryview,
        *,
        start: int,
        key_hashes: Int32s,
        physical_offsets: Int64s,
        store_timestamps: Int64s,
        begins: tuple[int, int],
    ) -> int:
        """Make index entries, each at the head of its slot's chain."""
        count = len(key_hashes)
        heads_of_slots = np.frombuffer(slots, _SLOT)
        wanted = key_hashes % np.int32(len(heads_of_slots))
        # Sorted by slot, stably, each entry stands behind its predecessor in the chain.
        order = np.argsort(wanted, kind="stable")
        sorted_slots = wanted[order]
        sorted_indexes = (order + start).astype(np.int32)
        is_first = np.empty(count, dtype=np.bool_)
        is_first[0] = True
        np.not_equal(sorted_slots[1:], sorted_slots[:-1], out=is_first[1:])
        is_last = np.append(is_first[1:], np.True_)
        heads = heads_of_slots[sorted_slots[is_first]].astype(np.int32)
        heads[(heads < 0) | (heads >= start)] = 0
        previous = np.empty(count, dtype=np.int32)
        previous[order[1:]] = sorted_indexes[:-1]
        previous[order[is_first]] = heads
        batch = np.empty(count, dtype=_ENTRY)
        batch["key_hash"] = key_hashes
        batch["physical_offset"] = physical_offsets
        seconds = (store_timestamps - begins[1]) // 1000
        seconds[0] = (store_timestamps[0] - begins[0]) // 1000
        batch["seconds"] = np.clip(seconds, 0, _SECONDS_MAX)
        batch["previous"] = previous
        entries[:] = batch.tobytes()
        changed = sorted_slots[is_last]
        heads_of_slots[changed] = sorted_indexes[is_last]
        pages = np.frombuffer(changed_pages, np.uint8)
        pages[(_SLOTS_POSITION + _SLOT.itemsize * changed.astype(np.int64)) // _PAGE_BYTES] = 1
        return len(heads) - int(np.count_nonzero(heads))


def _group_units(records: RecordColumns, base_offset: int, codes: Int64s) -> list[QueueUnits]:
    """Return what goes into which consume queue."""
    table, rows = records.table, records.in_queues()
    if not rows.size:
        return []
    keys = records.queue_keys(rows)
    order = np.argsort(keys, kind="stable")
    rows, keys = rows[order], keys[order]
    units = np.empty(len(rows), _UNIT)
    units["physical_offset"] = table[POSITION, rows] + base_offset
    units["size_bytes"] = table[SIZE, rows]
    units["tags_code"] = codes[rows]
    queue_offsets = table[QUEUE_OFFSET, rows]
    # A queue's are dense if no jump lies behind its first and up to its last.
    jumps = np.cumsum(np.diff(queue_offsets, prepend=queue_offsets[0]) != 1)
    starts = np.flatnonzero(np.diff(keys, prepend=keys[0]))
    ends = np.append(starts, len(rows))
    starts = np.append(0, starts)
    queues = zip(
        table[TOPIC, rows[starts]].tolist(),
        table[QUEUE_ID, rows[starts]].tolist(),
        starts.tolist(),
        ends.tolist(),
        (jumps[ends - 1] == jumps[starts]).tolist(),
        strict=True,
    )
    return split_units(records.topics.names, queues, queue_offsets, memoryview(units.tobytes()))


def _follow_chain(view: memoryview, position: int, max_records: int) -> Int64s:
    """Return where records may begin: each where the size of the one before says."""
    last_start = len(view) - MIN_RECORD_BYTES
    most = max((len(view) - position) // MIN_RECORD_BYTES, 0)
    positions = np.empty(min(max_records, most), np.int64)
    # Stored there at once: making an array of a list is a tenth of the loop.
    store = positions.data
    size_at = SIZE_WORD.unpack_from
    for row in range(len(positions)):
        if position > last_start:
            return positions[:row]
        store[row] = position
        position += size_at(view, position)[0]
    return positions


def _gather(data: Bytes, positions: Int64s, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return a copy of the items that lie at `positions` of `data`, aligned or not."""
    if not positions.size:
        return np.empty(0, dtype)
    windows = np.ndarray(
        (data.size - dtype.itemsize + 1,), f"V{dtype.itemsize}", data, strides=(1,)
    )
    return windows[positions].view(dtype)


def _leading(is_sound: Booleans) -> int:
    """Return how many records come before the first that is not sound."""
    return len(is_sound) if is_sound.all() else int(is_sound.argmin())


def _check(
    view: memoryview, positions: Int64s, base_offset: int, topics: TopicTable, *, verify_crc: bool
) -> Int64s:
    """Return the table of the intact records that lead `positions`. As `check_record`."""
    data = np.frombuffer(view, np.uint8)
    header = _gather(data, positions, _HEADER)
    size = header["size"].astype(np.int64)
    is_v1 = header["magic"] == MESSAGE_MAGIC_CODE_V1
    count = _leading(
        (is_v1 | (header["magic"] == MESSAGE_MAGIC_CODE_V2))
        & (header["physical_offset"] == base_offset + positions)
        & (size >= MIN_RECORD_BYTES)
        & (positions + size <= len(view))
    )
    header, positions, length_bytes = header[:count], positions[:count], 2 - is_v1[:count]
    ends = positions + size[:count]
    body_start, body_bytes, store_timestamp = _behind_hosts(data, header, positions, ends)
    body_end = body_start + body_bytes
    count = _leading(body_end + length_bytes + 3 <= ends)
    header, positions, ends = header[:count], positions[:count], ends[:count]
    body_start, body_end, length_bytes = body_start[:count], body_end[:count], length_bytes[:count]
    topic_start = body_end + length_bytes
    topic_bytes = data[body_end].astype(np.int64)
    long_topics = np.flatnonzero(length_bytes == 2)
    topic_bytes[long_topics] = _gather(data, body_end[long_topics], _U16)
    topic_end = topic_start + topic_bytes
    has_room = topic_end + 2 <= ends
    properties_start = topic_end + 2
    properties_bytes = _gather(data, np.where(has_room, topic_end, 0), _U16)
    count = _leading(has_room & (topic_bytes > 0) & (properties_start + properties_bytes == ends))
    numbers = _number_topics(data, topic_start[:count], topic_bytes[:count], topics)
    count = min(
        _leading(numbers >= 0), _leading(_are_whole(view, data, topic_end[:count], ends[:count]))
    )
    if verify_crc:
        is_intact = _are_bodies_intact(view, body_start[:count], body_end[:count], header["crc"])
        count = _leading(is_intact)
    return np.array(
        [
            positions[:count],
            ends[:count] - positions[:count],
            numbers[:count],
            header["queue_id"][:count],
            header["queue_offset"][:count],
            header["sys_flag"][:count],
            store_timestamp[:count],
            properties_start[:count],
        ],
        np.int64,
    )


def _behind_hosts(
    data: Bytes, header: np.ndarray[Any, Any], positions: Int64s, ends: Int64s
) -> tuple[Int64s, Int64s, Int64s]:
    """Return where bodies begin, how long they are, and the store timestamps.

    A record that is too small for its hosts gets a body that is too long for it.
    """
    body_start = positions + _HEADER.itemsize
    body_bytes = header["body_bytes"].astype(np.int64)
    store_timestamp = header["store_timestamp"].astype(np.int64)
    sys_flag = header["sys_flag"]
    rows = np.flatnonzero(sys_flag & HOST_FLAGS)
    if rows.size:
        born = np.where(sys_flag[rows] & BORN_HOST_IPV6_FLAG, _IPV6_EXTRA_BYTES, 0)
        both = born + np.where(sys_flag[rows] & STORE_HOST_IPV6_FLAG, _IPV6_EXTRA_BYTES, 0)
        body_start[rows] += both
        fits = body_start[rows] <= ends[rows]
        body_bytes[rows] = np.iinfo(np.uint32).max
        rows, born = rows[fits], born[fits]
        store_timestamp[rows] = _gather(data, positions[rows] + 56 + born, _I64)
        body_bytes[rows] = _gather(data, body_start[rows] - 4, _U32)
    return body_start, body_bytes, store_timestamp


def _number_topics(data: Bytes, starts: Int64s, lengths: Int64s, topics: TopicTable) -> Int64s:
    """Return the number of each topic, -1 where the bytes are none."""
    numbers = np.empty(len(starts), np.int64)
    left = np.arange(len(starts))
    while left.size:
        length = int(lengths[left[0]])
        is_as_long = lengths[left] == length
        rows, left = left[is_as_long], left[~is_as_long]
        texts = _gather(data, starts[rows], np.dtype(f"V{length}"))
        # A tenth of the time where the records are all of one topic, as in most batches.
        if texts.tobytes() == texts[0].tobytes() * len(rows):
            numbers[rows] = topics.learn(texts[0].tobytes())
        else:
            numbers[rows] = topics.number(texts.tolist())
    return numbers


def _are_whole(view: memoryview, data: Bytes, topic_end: Int64s, ends: Int64s) -> Booleans:
    """Return whose properties show no sign of a write that was torn."""
    properties_bytes = ends - topic_end - 2
    is_whole: Booleans = (properties_bytes == 0) | (data[ends - 1] != 0)
    for row in np.flatnonzero(ends - topic_end > ZERO_RUN_BYTES).tolist():
        is_whole[row] &= ZERO_RUN not in view[topic_end[row] : ends[row]].tobytes()
    return is_whole


def _are_bodies_intact(
    view: memoryview, starts: Int64s, ends: Int64s, crcs: np.ndarray[Any, Any]
) -> Booleans:
    found = [crc32(view[a:b]) for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
    is_intact: Booleans = np.array(found, np.int64) & CRC_MASK == crcs[: len(starts)]
    return is_intact
