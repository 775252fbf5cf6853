"""Stores entries of the index."""

from __future__ import annotations

from typing import Any, Final

from commitbus.commitlog.kernels.compiled.memory import (
    kernel,
    load_i32,
    store_i32,
    store_i64,
    store_u8,
)

_SLOTS_POSITION: Final = 40
_SLOT_BYTES: Final = 4
_PAGE_BYTES: Final = 4096
_ENTRY_BYTES: Final = 20
_SECONDS_MAX: Final = 0x7FFF_FFFF


@kernel(
    "int64(int64, int64, int64, int64, int64, int32[::1], int64[::1], int64[::1], int64, int64)"
)
def append_index_entries(
    slots: int,
    slot_count: int,
    changed_pages: int,
    entries: int,
    start: int,
    key_hashes: Any,
    physical_offsets: Any,
    store_timestamps: Any,
    begin: int,
    next_begin: int,
) -> int:
    """Store entries from an address on; return how many slots were empty before.

    The seconds of the first count from `begin`, those of the others from `next_begin`.
    """
    new_slots = 0
    for i in range(len(key_hashes)):
        index = start + i
        position = _SLOT_BYTES * (key_hashes[i] % slot_count)
        head = load_i32(slots + position)
        # A slot that counts as empty is one of what was there before, not one stored here.
        if head <= 0 or head >= index:
            head = 0
            new_slots += 1
        entry = entries + _ENTRY_BYTES * i
        store_i32(entry, key_hashes[i])
        store_i64(entry + 4, physical_offsets[i])
        store_i32(entry + 12, min(max((store_timestamps[i] - begin) // 1000, 0), _SECONDS_MAX))
        store_i32(entry + 16, head)
        store_i32(slots + position, index)
        store_u8(changed_pages + (_SLOTS_POSITION + position) // _PAGE_BYTES, 1)
        begin = next_begin
    return new_slots
