"""Protobuf's wire format, as much as the attacks need: requests need not be right."""

from __future__ import annotations

from collections.abc import Iterator

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5


def varint(value: int) -> bytes:
    """Encode an unsigned number."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def number(field: int, value: int) -> bytes:
    """Encode a number field; negative ones take ten bytes, as int32 and int64 do."""
    return varint(field << 3 | VARINT) + varint(value % (1 << 64))


def text(field: int, value: str | bytes) -> bytes:
    """Encode a string, bytes or message field."""
    data = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | LENGTH) + varint(len(data)) + data


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the fields of a message: number, and value or bytes.

    Raises:
        ValueError: it ends in the middle of a field, or is no message.
    """
    position = 0
    while position < len(data):
        key, position = _read_varint(data, position)
        kind = key & 7
        if kind == VARINT:
            value, position = _read_varint(data, position)
            yield key >> 3, value
            continue
        size = {FIXED64: 8, FIXED32: 4}.get(kind)
        if kind == LENGTH:
            size, position = _read_varint(data, position)
        if size is None or position + size > len(data):
            raise ValueError(f"no field at byte {position}")
        yield key >> 3, data[position : position + size]
        position += size


def first(data: bytes, field: int) -> int | bytes | None:
    """Return the first value of a field; None if there is none."""
    return next((value for found, value in fields(data) if found == field), None)


def message_in(data: bytes, field: int) -> bytes:
    """Return the message or text of a field; empty if there is none."""
    value = first(data, field)
    return value if isinstance(value, bytes) else b""


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if position >= len(data) or shift > 63:
            raise ValueError(f"no number at byte {position}")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
