"""The kernels that numba compiled, from Python's side: memory in, columns out."""

from __future__ import annotations

from typing import Any, Final, final

import numpy as np

from commitbus.commitlog import record_format
from commitbus.commitlog.index_keys import index_key_texts, key_hash
from commitbus.commitlog.kernels.columns import (
    COLUMNS,
    POSITION,
    PROPERTIES,
    SIZE,
    STORE_TIMESTAMP,
    SYS_FLAG,
    TOPIC,
    UNIT_BYTES,
    DispatchColumns,
    Int32s,
    Int64s,
    QueueUnits,
    RecordColumns,
    TopicTable,
    split_units,
)
from commitbus.commitlog.kernels.compiled import append, grouping, index_entries, names, scan

_SLOT_BYTES: Final = 4
for _module in (append, grouping, names, scan):
    for _name, _value in vars(_module).items():
        if _name.isupper() and not _name.startswith("_"):
            assert _value == getattr(record_format, _name), f"{_module.__name__}.{_name} differs"


@final
class NumbaKernels:
    """See `Kernels`. All but `append_records` run with the GIL released."""

    name = "numba"

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
        most = (len(view) - position) // record_format.MIN_RECORD_BYTES
        table = np.empty((COLUMNS, max(min(max_records, most), 0)), np.int64)
        unknown = np.full(2, -1, np.int64)
        address = _address(view)
        row = 0
        while True:
            row = scan.scan(
                address, len(view), base_offset, position, row, table.shape[1], verify_crc,
                topics.slots, topics.starts, topics.data, table, unknown,
            )  # fmt: skip
            if unknown[0] < 0 or topics.learn(view[unknown[0] : unknown[1]].tobytes()) < 0:
                break
            unknown[0] = -1
            if row:
                position = int(table[POSITION, row - 1] + table[SIZE, row - 1])
        if row < table.shape[1]:
            table = table[:, :row].copy()
        return RecordColumns(table, topics)

    def dispatch(
        self, view: memoryview, base_offset: int, records: RecordColumns
    ) -> DispatchColumns:
        """Return tags codes and key hashes of records."""
        table, topics = records.table, records.topics
        count = len(records)
        codes, counts = np.empty(count, np.int64), np.empty(count, np.int64)
        hashes = np.empty(names.hashes_max(table), np.int32)
        address = _address(view)
        row = hash_count = 0
        while True:
            stopped, hash_count = names.dispatch(
                address, table, row, topics.key_states, codes, counts, hashes, hash_count
            )
            if stopped == count:
                break
            codes[stopped], found = _examine(view, records, stopped)
            counts[stopped] = len(found)
            hashes[hash_count : hash_count + len(found)] = found
            hash_count += len(found)
            row = stopped + 1
        queues = _group_units(records, base_offset, codes)
        return DispatchColumns(records, base_offset, codes, hashes[:hash_count], counts, queues)

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
        # Copied, because columns of a table are neither contiguous nor always writable.
        stored = append.append_records(
            _address(view), _address(records), np.array(body_bytes), np.array(properties_bytes),
            _address(last_properties), len(last_properties),
            _address(header), len(header), _address(topic), len(topic),
            queue_offset, physical_offset,
        )  # fmt: skip
        assert stored == len(view), "the view is as long as the records"

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
        return index_entries.append_index_entries(
            _address(slots), len(slots) // _SLOT_BYTES, _address(changed_pages), _address(entries),
            start, key_hashes, physical_offsets, store_timestamps, *begins,
        )  # fmt: skip


def _address(view: memoryview | bytes) -> int:
    """Return where the bytes of a view lie. Valid as long as the caller's view is."""
    interface: dict[str, Any] = np.frombuffer(view, np.uint8).__array_interface__
    address: int = interface["data"][0]
    return address


def _group_units(records: RecordColumns, base_offset: int, codes: Int64s) -> list[QueueUnits]:
    """Return what goes into which consume queue."""
    count = len(records)
    units = np.empty(UNIT_BYTES * count, np.uint8)
    queue_offsets, table = np.empty(count, np.int64), np.empty((count, 5), np.int64)
    queue_count = grouping.group_units(
        records.table, base_offset, codes, units, queue_offsets, table
    )
    queues = table[:queue_count].tolist()
    return split_units(records.topics.names, queues, queue_offsets, units.data)


def _examine(view: memoryview, records: RecordColumns, row: int) -> tuple[int, list[int]]:
    """Return the tags code and the key hashes of a record that the compiled code left out."""
    column = records.table[:, row].tolist()
    topic = records.topics.names[column[TOPIC]]
    properties = view[column[PROPERTIES] : column[POSITION] + column[SIZE]].tobytes()
    code, unique_key, keys, tags = record_format.find_names(
        properties, topic, column[STORE_TIMESTAMP]
    )
    texts = index_key_texts(topic, column[SYS_FLAG], unique_key, keys, tags)
    return code, list(map(key_hash, texts))
