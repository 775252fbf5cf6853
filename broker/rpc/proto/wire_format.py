"""Protocol Buffers' wire format, for the few messages too frequent or too large to be objects.

    field    key (varint: number << 3 | type), then the value
    type 0   a varint: seven bits a byte, the lowest first, the top bit says that more follow
    type 1   8 bytes
    type 2   a varint with the length, then so many bytes: text, bytes, or a message
    type 5   4 bytes

Source: the encoding chapter of the Protocol Buffers documentation.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

VARINT, I64, LENGTH_DELIMITED, I32 = 0, 1, 2, 5

_VARINT_BYTES_MAX: Final = 10
_LENGTH_DELIMITED_TYPES: Final = {
    FieldDescriptor.TYPE_STRING,
    FieldDescriptor.TYPE_BYTES,
    FieldDescriptor.TYPE_MESSAGE,
}
_VARINT_TYPES: Final = {
    FieldDescriptor.TYPE_INT32,
    FieldDescriptor.TYPE_INT64,
    FieldDescriptor.TYPE_ENUM,
    FieldDescriptor.TYPE_BOOL,
}
_LAST: Final = [bytes((bits,)) for bits in range(0x80)]
_MORE: Final = [bytes((bits | 0x80,)) for bits in range(0x80)]


def varint(value: int) -> bytes:
    """Return an integer of up to 64 bits; a negative one takes ten bytes."""
    if value < 0:
        value += 1 << 64
    groups = b""
    while value >= 0x80:
        groups += _MORE[value & 0x7F]
        value >>= 7
    return groups + _LAST[value]


def read_varint(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """Return the number at a position, and where it ends.

    Raises:
        LookupError: There is none.
    """
    number = 0
    for shift in range(0, 7 * _VARINT_BYTES_MAX, 7):
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
    raise LookupError


def key_of(message: type[Message], name: str) -> bytes:
    """Return the bytes that stand before the value of a field."""
    field = message.DESCRIPTOR.fields_by_name[name]
    assert field.type in _LENGTH_DELIMITED_TYPES | _VARINT_TYPES, f"{name} is of another type"
    kind = LENGTH_DELIMITED if field.type in _LENGTH_DELIMITED_TYPES else VARINT
    return varint(field.number << 3 | kind)


@lru_cache(maxsize=4096)
def _long(size: int) -> bytes:
    return varint(size)


def length(value: bytes | memoryview) -> bytes:
    """Return the length of a value of type 2."""
    size = len(value)
    # Lengths repeat, and looking one up takes a quarter of the time.
    return _LAST[size] if size < 0x80 else _long(size)


def delimited(key: bytes, value: bytes) -> bytes:
    """Return a field of type 2."""
    return key + length(value) + value
