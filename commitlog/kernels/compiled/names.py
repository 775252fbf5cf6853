"""Tags codes and key hashes of records, from the names in their properties."""

from __future__ import annotations

from typing import Any, Final

from commitbus.commitlog.kernels.compiled.memory import kernel, load_i64, load_u8, load_u32

# As in record_format; `numba_kernels` asserts that they are equal.
TRANSACTION_FLAGS: Final = 0xC
TRANSACTION_ROLLED_BACK: Final = 0xC

_WORD: Final = 0xFFFF_FFFF
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


@kernel("int64(int64, int64, int64)")
def _continue_hash(total: int, address: int, end: int) -> int:
    """Return Java's hash, unsigned, of a text and of UTF-8 behind it; -1 if that is no UTF-8.

    `total` is the hash of the text before.
    """
    while address < end:
        lead = load_u8(address)
        if lead < 0x80:
            total = total * 31 + lead
            address += 1
            continue
        more = 1 if 0xC2 <= lead < 0xE0 else 2 if 0xE0 <= lead < 0xF0 else 3
        if lead < 0xC2 or lead > 0xF4 or address + more >= end:
            return -1
        code = lead & (0x3F >> more)
        for i in range(1, more + 1):
            byte = load_u8(address + i)
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


@kernel("int64(int64)")
def _key_hash(total: int) -> int:
    """Return what the index stores of a hash: its absolute value, 0 for -2^31."""
    if total < 0x8000_0000:
        return total
    return (0x1_0000_0000 - total) & 0x7FFF_FFFF


@kernel("int64(int64, int64)")
def _value_end(address: int, end: int) -> int:
    """Return where the value at an address ends: at the next separator, or the end of all."""
    while address + 8 <= end:
        word = load_i64(address) ^ _EIGHT_VALUE_ENDS
        if (word - _EIGHT_ONES) & ~word & _EIGHT_TOP_BITS:
            break
        address += 8
    while address < end and load_u8(address) != _VALUE_END:
        address += 1
    return address


@kernel("int64(int64, int64, int64, int64, int32[::1], int64)")
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
            while word_end < end and load_u8(word_end) != _SPACE:
                word_end += 1
        if word_end > address:
            total = _continue_hash(state, address, word_end)
            if total < 0:
                return -1
            hashes[count] = _key_hash(total)
            count += 1
        address = word_end + 1
    return count


@kernel("int64(int64[:, ::1])")
def hashes_max(table: Any) -> int:
    """Return how many key hashes records can have at most."""
    # No key takes less than two bytes: itself and what separates it from the next.
    properties_bytes: int = 0
    for row in range(table.shape[1]):
        properties_bytes += table[0, row] + table[1, row] - table[7, row]
    count: int = table.shape[1]
    return properties_bytes // 2 + 3 * count


@kernel(
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
            if (
                item_end - start > 8
                and load_u8(start + 8) == _NAME_END
                and load_i64(start) == _UNIQ_KEY
            ):
                unique, unique_end = start + 9, item_end
            elif item_end - start > 4 and load_u8(start + 4) == _NAME_END:
                name = load_u32(start)
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
