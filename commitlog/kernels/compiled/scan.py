"""Finds the intact records of a piece of the log."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from commitbus.commitlog.kernels.compiled.memory import (
    crc32,
    kernel,
    load_i32,
    load_i64,
    load_u8,
    load_u16,
    load_u32,
)

# As in record_format; `numba_kernels` asserts that they are equal.
MESSAGE_MAGIC_CODE_V1: Final = 0xDAA320A7
MESSAGE_MAGIC_CODE_V2: Final = 0xDAA320AB
MIN_RECORD_BYTES: Final = 92
BORN_HOST_IPV6_FLAG: Final = 0x10
STORE_HOST_IPV6_FLAG: Final = 0x20
ZERO_RUN_BYTES: Final = 512
CRC_MASK: Final = 0x7FFF_FFFF

_IPV4_HEADER_BYTES: Final = 88
_IPV6_EXTRA_BYTES: Final = 12
_WORD: Final = 0xFFFF_FFFF


@kernel("int64(int64, int64, int32[::1], int64[::1], uint8[::1])")
def _find_topic(
    address: int,
    length: int,
    slots: Any,
    starts: Any,
    data: Any,
) -> int:
    """Return the number of a topic in a `TopicTable`, -1 if it is not there."""
    total = 0
    for i in range(length):
        total = (total * 31 + load_u8(address + i)) & _WORD
    mask = len(slots) - 1
    slot = total & mask
    while slots[slot] >= 0:
        number: int = slots[slot]
        start = starts[number]
        if starts[number + 1] - start == length:
            i = 0
            while i < length and data[start + i] == load_u8(address + i):
                i += 1
            if i == length:
                return number
        slot = (slot + 1) & mask
    return -1


@kernel("boolean(int64, int64)")
def _has_zero_run(address: int, end: int) -> bool:
    """Return whether `ZERO_RUN_BYTES` zeros lie next to each other."""
    zeros = 0
    while address < end:
        zeros = zeros + 1 if load_u8(address) == 0 else 0
        if zeros == ZERO_RUN_BYTES:
            return True
        address += 1
    return False


@kernel("UniTuple(int64, 5)(int64, int64)")
def _locate(at: int, end: int) -> tuple[int, int, int, int, int]:
    """Return where store timestamp, body, body's end, topic and topic's end of a record lie.

    All -1 if the lengths of its parts do not add up, or its properties were not written whole.
    """
    sys_flag = load_i32(at + 36)
    stored_at = at + 56
    body = at + _IPV4_HEADER_BYTES
    if sys_flag & BORN_HOST_IPV6_FLAG:
        stored_at += _IPV6_EXTRA_BYTES
        body += _IPV6_EXTRA_BYTES
    if sys_flag & STORE_HOST_IPV6_FLAG:
        body += _IPV6_EXTRA_BYTES
    if body > end:
        return -1, -1, -1, -1, -1
    body_end = body + load_u32(body - 4)
    length_bytes = 1 if load_u32(at + 4) == MESSAGE_MAGIC_CODE_V1 else 2
    topic = body_end + length_bytes
    if topic + 3 > end:
        return -1, -1, -1, -1, -1
    topic_bytes = load_u8(body_end) if length_bytes == 1 else load_u16(body_end)
    topic_end = topic + topic_bytes
    if topic_bytes == 0 or topic_end + 2 > end or topic_end + 2 + load_u16(topic_end) != end:
        return -1, -1, -1, -1, -1
    if topic_end + 2 < end and (
        load_u8(end - 1) == 0
        or (end - topic_end > ZERO_RUN_BYTES and _has_zero_run(topic_end, end))
    ):
        return -1, -1, -1, -1, -1
    return stored_at, body, body_end, topic, topic_end


@kernel(
    "int64(int64, int64, int64, int64, int64, int64, boolean,"
    " int32[::1], int64[::1], uint8[::1], int64[:, ::1], int64[::1])"
)
def scan(
    address: int,
    length: int,
    base_offset: int,
    position: int,
    row: int,
    end_row: int,
    verify_crc: bool,
    slots: Any,
    starts: Any,
    data: Any,
    table: Any,
    unknown: Any,
) -> int:
    """Fill `table` from `row` on with intact records; return the row behind the last.

    `unknown` gets where a topic lies that stopped the scan because it has no number yet.
    """
    while row < end_row and length - position >= MIN_RECORD_BYTES:
        at = address + position
        size, magic = load_u32(at), load_u32(at + 4)
        if (
            magic not in (MESSAGE_MAGIC_CODE_V1, MESSAGE_MAGIC_CODE_V2)
            or size < MIN_RECORD_BYTES
            or size > length - position
            or load_i64(at + 28) != base_offset + position
        ):
            break
        stored_at, body, body_end, topic, topic_end = _locate(at, at + size)
        if stored_at < 0:
            break
        if verify_crc:
            crc = crc32(np.uint32(0), body, np.uint64(body_end - body))
            if np.int64(crc) & CRC_MASK != load_u32(at + 8):
                break
        number = _find_topic(topic, topic_end - topic, slots, starts, data)
        if number < 0:
            unknown[0], unknown[1] = topic - address, topic_end - address
            break
        table[0, row] = position
        table[1, row] = size
        table[2, row] = number
        table[3, row] = load_i32(at + 12)
        table[4, row] = load_i64(at + 20)
        table[5, row] = load_i32(at + 36)
        table[6, row] = load_i64(stored_at)
        table[7, row] = topic_end + 2 - address
        row += 1
        position += size
    return row
