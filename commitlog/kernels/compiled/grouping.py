"""The units of records, sorted by consume queue."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from commitbus.commitlog.kernels.compiled.memory import kernel, store_i32, store_i64

# As in record_format; `numba_kernels` asserts that they are equal.
TRANSACTION_PREPARED: Final = 0x4

_UNIT_BYTES: Final = 20


@kernel(
    "void(int64[:, ::1], int64, int64[::1], uint8[::1], int64[::1], int64[:, ::1],"
    " int64[::1], int64[::1])"
)
def _place_units(
    table: Any,
    base_offset: int,
    codes: Any,
    units: Any,
    queue_offsets: Any,
    queues: Any,
    lengths: Any,
    queue_of: Any,
) -> None:
    """Store each unit behind those that its queue has already. Arguments as of `group_units`.

    `queues` are those that there are; `lengths` says how many units each gets, `queue_of` the
    number of each record's queue, -1 for none.
    """
    end = 0
    for number in range(len(queues)):
        queues[number, 2] = queues[number, 3] = end
        end += lengths[number]
    for row in range(table.shape[1]):
        number = queue_of[row]
        if number >= 0:
            place = queues[number, 3]
            at = units.ctypes.data + _UNIT_BYTES * place
            store_i64(at, base_offset + table[0, row])
            store_i32(at + 8, table[1, row])
            store_i64(at + 12, codes[row])
            queue_offsets[place] = table[4, row]
            queues[number, 3] = place + 1


@kernel("int64(int64[:, ::1], int64, int64[::1], uint8[::1], int64[::1], int64[:, ::1])")
def group_units(
    table: Any, base_offset: int, codes: Any, units: Any, queue_offsets: Any, queues: Any
) -> int:
    """Store the consume queue units of records, those of a queue next to each other.

    Args:
        table: The records.
        base_offset: Physical offset from which positions count.
        codes: The records' tags codes.
        units: Room for a unit of each record.
        queue_offsets: Gets the queue offset of each unit.
        queues: Shape (records, 5); gets of each queue its topic, its id, the index of its first
            unit, the one behind its last, and whether its queue offsets follow each other.

    Returns:
        How many queues there are.
    """
    rows = table.shape[1]
    slot_count = 64
    while slot_count < 2 * rows:
        slot_count *= 2
    mask = slot_count - 1
    # Open addressing, as in a `TopicTable`.
    slots = np.full(slot_count, -1, np.int64)
    queue_of = np.full(rows, -1, np.int64)
    lengths, next_offsets = np.zeros(rows, np.int64), np.empty(rows, np.int64)
    count = 0
    for row in range(rows):
        # A rolled-back message has this bit too.
        if table[5, row] & TRANSACTION_PREPARED:
            continue
        topic, queue_id, queue_offset = table[2, row], table[3, row], table[4, row]
        slot = (topic * 31 + queue_id) & mask
        while slots[slot] >= 0:
            number = slots[slot]
            if queues[number, 0] == topic and queues[number, 1] == queue_id:
                break
            slot = (slot + 1) & mask
        number = slots[slot]
        if number < 0:
            number = slots[slot] = count
            queues[number, 0], queues[number, 1], queues[number, 4] = topic, queue_id, 1
            next_offsets[number] = queue_offset
            count += 1
        if queue_offset != next_offsets[number]:
            queues[number, 4] = 0
        next_offsets[number] = queue_offset + 1
        lengths[number] += 1
        queue_of[row] = number
    _place_units(table, base_offset, codes, units, queue_offsets, queues[:count], lengths, queue_of)
    return count
