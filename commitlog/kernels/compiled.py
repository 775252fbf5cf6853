"""The loops that numba compiles. Imported only where numba is installed, by `numba_kernels`.

What one has to know:

- Everything a kernel calls and every constant it uses is in this module: numba keeps compiled code
  on disk and does not notice a change in another module. Only the CRC-32 is found by its name.
- Memory is passed as an address, not as an array: a read-only and a writable one would each be
  compiled, the second when it is first met. The caller keeps the memory mapped, and nothing is read
  before it is known to lie inside.
- All arithmetic is in int64, which wraps. numba makes int64 of int32 * int32, and a float of int64
  and uint64.
- Signatures are given, so the import compiles everything, or reads it from numba's cache on disk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from commitbus.commitlog.kernels.linked_crc32 import CRC_SYMBOL

# As in record_format and index_format; `numba_kernels` asserts that they are equal.
MESSAGE_MAGIC_CODE_V1: Final = 0xDAA320A7
MESSAGE_MAGIC_CODE_V2: Final = 0xDAA320AB
MIN_RECORD_BYTES: Final = 92
IPV4_HEADER_BYTES: Final = 88
BORN_HOST_IPV6_FLAG: Final = 0x10
STORE_HOST_IPV6_FLAG: Final = 0x20
TRANSACTION_FLAGS: Final = 0xC
TRANSACTION_PREPARED: Final = 0x4
TRANSACTION_ROLLED_BACK: Final = 0xC
ZERO_RUN_BYTES: Final = 512
CRC_MASK: Final = 0x7FFF_FFFF

_IPV6_EXTRA_BYTES: Final = 12
_WORD: Final = 0xFFFF_FFFF
_SLOTS_POSITION: Final = 40
_SLOT_BYTES: Final = 4
_PAGE_BYTES: Final = 4096
_ENTRY_BYTES: Final = 20
_UNIT_BYTES: Final = 20
_SECONDS_MAX: Final = 0x7FFF_FFFF
_NAME_END: Final = 0x01
_VALUE_END: Final = 0x02
_SPACE: Final = 0x20
_UNIQ_KEY: Final = int.from_bytes(b"UNIQ_KEY", "big")
_KEYS: Final = int.from_bytes(b"KEYS", "big")
_TAGS: Final = int.from_bytes(b"TAGS", "big")
# For finding a byte in eight at a time (Hacker's Delight, 6-1): signed, so that it stays int64.
_EIGHT_VALUE_ENDS: Final = 0x0202_0202_0202_0202
_EIGHT_ONES: Final = 0x0101_0101_0101_0101
_EIGHT_TOP_BITS: Final = -0x7F7F_7F7F_7F7F_7F80

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _kernel(signature: str, *, nogil: bool = True) -> Callable[[_Function], _Function]:
    """Compile, to run with the GIL released; cached on disk where there is a place to write to."""

    def compile_(function: _Function) -> _Function:
        try:
            compiled: _Function = njit(signature, nogil=nogil, cache=True)(function)
        except RuntimeError:
            # No writable place for the cache, nor NUMBA_CACHE_DIR: each start compiles.
            compiled = njit(signature, nogil=nogil)(function)
        return compiled

    return compile_


# Memory. Big-endian, at any alignment.


def _loader(bits: int, *, signed: bool = False) -> Any:
    """Return a function that gives the integer at an address as int64."""

    def load(_context: Any, _address: Any) -> Any:
        def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
            kind = ir.IntType(bits)
            pointer = builder.inttoptr(arguments[0], kind.as_pointer())
            value = builder.load(pointer, align=1)
            value = builder.bswap(value) if bits > 8 else value
            extend = builder.sext if signed else builder.zext
            return extend(value, ir.IntType(64)) if bits < 64 else value

        return types.int64(types.int64), generate

    return intrinsic(load)


def _storer(bits: int) -> Any:
    """Return a function that stores the low bits of an int64 at an address."""

    def store(_context: Any, _address: Any, _value: Any) -> Any:
        def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
            kind = ir.IntType(bits)
            pointer = builder.inttoptr(arguments[0], kind.as_pointer())
            value = builder.trunc(arguments[1], kind) if bits < 64 else arguments[1]
            value = builder.bswap(value) if bits > 8 else value
            builder.store(value, pointer, align=1)
            return arguments[1]

        return types.int64(types.int64, types.int64), generate

    return intrinsic(store)


_u8, _u16, _u32 = _loader(8), _loader(16), _loader(32)
_i32, _i64 = _loader(32, signed=True), _loader(64)
_store_u8, _store_i16, _store_i32, _store_i64 = map(_storer, (8, 16, 32, 64))
# Of the C library, which every process has.
_copy = types.ExternalFunction("memcpy", types.intp(types.intp, types.intp, types.uintp))


# CRC-32. By name, so that code from the cache works with whichever function this start linked.
_crc32 = types.ExternalFunction(CRC_SYMBOL, types.uint32(types.uint32, types.intp, types.uint64))


# Scanning


@_kernel("int64(int64, int64, int32[::1], int64[::1], uint8[::1])")
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
        total = (total * 31 + _u8(address + i)) & _WORD
    mask = len(slots) - 1
    slot = total & mask
    while slots[slot] >= 0:
        number: int = slots[slot]
        start = starts[number]
        if starts[number + 1] - start == length:
            i = 0
            while i < length and data[start + i] == _u8(address + i):
                i += 1
            if i == length:
                return number
        slot = (slot + 1) & mask
    return -1


@_kernel("boolean(int64, int64)")
def _has_zero_run(address: int, end: int) -> bool:
    """Return whether `ZERO_RUN_BYTES` zeros lie next to each other."""
    zeros = 0
    while address < end:
        zeros = zeros + 1 if _u8(address) == 0 else 0
        if zeros == ZERO_RUN_BYTES:
            return True
        address += 1
    return False


@_kernel("UniTuple(int64, 5)(int64, int64)")
def _locate(at: int, end: int) -> tuple[int, int, int, int, int]:
    """Return where store timestamp, body, body's end, topic and topic's end of a record lie.

    All -1 if the lengths of its parts do not add up, or its properties were not written whole.
    """
    sys_flag = _i32(at + 36)
    stored_at = at + 56
    body = at + IPV4_HEADER_BYTES
    if sys_flag & BORN_HOST_IPV6_FLAG:
        stored_at += _IPV6_EXTRA_BYTES
        body += _IPV6_EXTRA_BYTES
    if sys_flag & STORE_HOST_IPV6_FLAG:
        body += _IPV6_EXTRA_BYTES
    if body > end:
        return -1, -1, -1, -1, -1
    body_end = body + _u32(body - 4)
    length_bytes = 1 if _u32(at + 4) == MESSAGE_MAGIC_CODE_V1 else 2
    topic = body_end + length_bytes
    if topic + 3 > end:
        return -1, -1, -1, -1, -1
    topic_bytes = _u8(body_end) if length_bytes == 1 else _u16(body_end)
    topic_end = topic + topic_bytes
    if topic_bytes == 0 or topic_end + 2 > end or topic_end + 2 + _u16(topic_end) != end:
        return -1, -1, -1, -1, -1
    if topic_end + 2 < end and (
        _u8(end - 1) == 0 or (end - topic_end > ZERO_RUN_BYTES and _has_zero_run(topic_end, end))
    ):
        return -1, -1, -1, -1, -1
    return stored_at, body, body_end, topic, topic_end


@_kernel(
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
        size, magic = _u32(at), _u32(at + 4)
        if (
            magic not in (MESSAGE_MAGIC_CODE_V1, MESSAGE_MAGIC_CODE_V2)
            or size < MIN_RECORD_BYTES
            or size > length - position
            or _i64(at + 28) != base_offset + position
        ):
            break
        stored_at, body, body_end, topic, topic_end = _locate(at, at + size)
        if stored_at < 0:
            break
        if verify_crc:
            crc = _crc32(np.uint32(0), body, np.uint64(body_end - body))
            if np.int64(crc) & CRC_MASK != _u32(at + 8):
                break
        number = _find_topic(topic, topic_end - topic, slots, starts, data)
        if number < 0:
            unknown[0], unknown[1] = topic - address, topic_end - address
            break
        table[0, row] = position
        table[1, row] = size
        table[2, row] = number
        table[3, row] = _i32(at + 12)
        table[4, row] = _i64(at + 20)
        table[5, row] = _i32(at + 36)
        table[6, row] = _i64(stored_at)
        table[7, row] = topic_end + 2 - address
        row += 1
        position += size
    return row


# Names: tags codes and key hashes


@_kernel("int64(int64, int64, int64)")
def _continue_hash(total: int, address: int, end: int) -> int:
    """Return Java's hash, unsigned, of a text and of UTF-8 behind it; -1 if that is no UTF-8.

    `total` is the hash of the text before.
    """
    while address < end:
        lead = _u8(address)
        if lead < 0x80:
            total = total * 31 + lead
            address += 1
            continue
        more = 1 if 0xC2 <= lead < 0xE0 else 2 if 0xE0 <= lead < 0xF0 else 3
        if lead < 0xC2 or lead > 0xF4 or address + more >= end:
            return -1
        code = lead & (0x3F >> more)
        for i in range(1, more + 1):
            byte = _u8(address + i)
            if byte & 0xC0 != 0x80:
                return -1
            code = code << 6 | (byte & 0x3F)
        if (more == 2 and (code < 0x800 or 0xD800 <= code < 0xE000)) or (
            more == 3 and not 0x10000 <= code < 0x110000
        ):
            return -1
        if code >= 0x10000:
            # Java hashes UTF-16, where such a character is two units.
            total = total * 31 + (0xD800 + (code - 0x10000 >> 10))
            code = 0xDC00 + (code & 0x3FF)
        total = total * 31 + code
        address += more + 1
    return total & _WORD


@_kernel("int64(int64)")
def _key_hash(total: int) -> int:
    """Return what the index stores of a hash: its absolute value, 0 for -2^31."""
    if total < 0x8000_0000:
        return total
    return (0x1_0000_0000 - total) & 0x7FFF_FFFF


@_kernel("int64(int64, int64)")
def _value_end(address: int, end: int) -> int:
    """Return where the value at an address ends: at the next separator, or the end of all."""
    while address + 8 <= end:
        word = _i64(address) ^ _EIGHT_VALUE_ENDS
        if (word - _EIGHT_ONES) & ~word & _EIGHT_TOP_BITS:
            break
        address += 8
    while address < end and _u8(address) != _VALUE_END:
        address += 1
    return address


@_kernel("int64(int64, int64, int64, int64, int32[::1], int64)")
def _hash_words(
    state: int,
    address: int,
    end: int,
    is_one: int,
    hashes: Any,
    count: int,
) -> int:
    """Store the hashes of the words between spaces, or of all as one; return the new count.

    -1 if they are no UTF-8. `state` is the hash of what comes before each.
    """
    while address < end:
        word_end = end
        if not is_one:
            word_end = address
            while word_end < end and _u8(word_end) != _SPACE:
                word_end += 1
        if word_end > address:
            total = _continue_hash(state, address, word_end)
            if total < 0:
                return -1
            hashes[count] = _key_hash(total)
            count += 1
        address = word_end + 1
    return count


@_kernel("int64(int64[:, ::1])")
def hashes_max(table: Any) -> int:
    """Return how many key hashes records can have at most."""
    # No key takes less than two bytes: itself and what separates it from the next.
    properties_bytes: int = 0
    for row in range(table.shape[1]):
        properties_bytes += table[0, row] + table[1, row] - table[7, row]
    count: int = table.shape[1]
    return properties_bytes // 2 + 3 * count


@_kernel(
    "UniTuple(int64, 2)"
    "(int64, int64[:, ::1], int64, int64[:, ::1], int64[::1], int64[::1], int32[::1], int64)"
)
def dispatch(
    address: int,
    table: Any,
    row: int,
    key_states: Any,
    codes: Any,
    counts: Any,
    hashes: Any,
    hash_count: int,
) -> tuple[int, int]:
    """Fill in tags codes, key counts and key hashes from `row` on.

    Returns the row behind the last, and how many hashes there are now.

    Stops at a record that Python has to look at: one in the schedule topic, or with text that is
    no UTF-8.
    """
    while row < table.shape[1]:
        topic = table[2, row]
        if key_states[2, topic]:
            break
        start = address + table[7, row]
        end = address + table[0, row] + table[1, row]
        unique = unique_end = keys = keys_end = tags = tags_end = start
        while start < end:
            item_end = _value_end(start, end)
            # Of equal names the last one counts.
            if item_end - start > 8 and _u8(start + 8) == _NAME_END and _i64(start) == _UNIQ_KEY:
                unique, unique_end = start + 9, item_end
            elif item_end - start > 4 and _u8(start + 4) == _NAME_END:
                name = _u32(start)
                if name == _KEYS:
                    keys, keys_end = start + 5, item_end
                elif name == _TAGS:
                    tags, tags_end = start + 5, item_end
            start = item_end + 1
        code = _continue_hash(0, tags, tags_end)
        count = hash_count
        if table[5, row] & TRANSACTION_FLAGS != TRANSACTION_ROLLED_BACK:
            state = key_states[0, topic]
            count = _hash_words(state, unique, unique_end, 1, hashes, count)
            if count >= 0:
                count = _hash_words(state, keys, keys_end, 0, hashes, count)
            if count >= 0:
                count = _hash_words(key_states[1, topic], tags, tags_end, 1, hashes, count)
        if code < 0 or count < 0:
            break
        codes[row] = code - 0x1_0000_0000 if code >= 0x8000_0000 else code
        counts[row] = count - hash_count
        hash_count = count
        row += 1
    return row, hash_count


# The consume queues


@_kernel("int64(int64[:, ::1], int64, int64[::1], uint8[::1], int64[::1], int64[:, ::1])")
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
    # Open addressing, as in `_find_topic`.
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
    end = 0
    for number in range(count):
        queues[number, 2] = queues[number, 3] = end
        end += lengths[number]
    for row in range(rows):
        number = queue_of[row]
        if number >= 0:
            place = queues[number, 3]
            at = units.ctypes.data + _UNIT_BYTES * place
            _store_i64(at, base_offset + table[0, row])
            _store_i32(at + 8, table[1, row])
            _store_i64(at + 12, codes[row])
            queue_offsets[place] = table[4, row]
            queues[number, 3] = place + 1
    return count


# The index


@_kernel(
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
        head = _i32(slots + position)
        # A slot that counts as empty is one of what was there before, not one stored here.
        if head <= 0 or head >= index:
            head = 0
            new_slots += 1
        entry = entries + _ENTRY_BYTES * i
        _store_i32(entry, key_hashes[i])
        _store_i64(entry + 4, physical_offsets[i])
        _store_i32(entry + 12, min(max((store_timestamps[i] - begin) // 1000, 0), _SECONDS_MAX))
        _store_i32(entry + 16, head)
        _store_i32(slots + position, index)
        _store_u8(changed_pages + (_SLOTS_POSITION + position) // _PAGE_BYTES, 1)
        begin = next_begin
    return new_slots


# Appending


# With the GIL: a batch of 64 takes 10 us, and getting it back from reput took more than that.
@_kernel(
    "int64(int64, int64, int64[::1], int64[::1],"
    " int64, int64, int64, int64, int64, int64, int64, int64)",
    nogil=False,
)
def append_records(
    address: int,
    records: int,
    body_bytes: Any,
    properties_bytes: Any,
    last_properties: int,
    last_properties_bytes: int,
    header: int,
    header_bytes: int,
    topic: int,
    topic_bytes: int,
    queue_offset: int,
    physical_offset: int,
) -> int:
    """Store records from an address on, the first one's size as 0; return their bytes."""
    at, last = address, len(body_bytes) - 1
    for row in range(last + 1):
        body_length, properties_length = body_bytes[row], properties_bytes[row]
        body = at + header_bytes
        tail = body + body_length
        properties = tail + topic_bytes + 2
        crc = _crc32(np.uint32(0), records, np.uint64(body_length))
        _copy(at, header, np.uint64(header_bytes))
        _copy(body, records, np.uint64(body_length))
        _copy(tail, topic, np.uint64(topic_bytes))
        _copy(properties, records + body_length, np.uint64(properties_length))
        end = properties + properties_length
        if row == last:
            _copy(end, last_properties, np.uint64(last_properties_bytes))
            end += last_properties_bytes
        _store_i16(properties - 2, end - properties)
        if row:
            _store_i32(at, end - at)
        _store_i32(at + 8, np.int64(crc) & CRC_MASK)
        _store_i64(at + 20, queue_offset + row)
        _store_i64(at + 28, physical_offset + (at - address))
        _store_i32(body - 4, body_length)
        records += body_length + properties_length
        at = end
    return at - address
