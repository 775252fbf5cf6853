"""The one large field of a message, put in and taken out by hand: protobuf would copy it, twice.

    message   key length value   key length value   ...     in any order; the large field goes last

Everything else in the message is protobuf's. Source of the format: the encoding chapter of the
Protocol Buffers documentation.
"""

from __future__ import annotations

from typing import Final

from google.protobuf.message import DecodeError

FIELDS_MAX: Final = 64
"""Of a message that is taken apart here: each costs a step in Python."""

_VARINT, _I64, _LENGTH_DELIMITED, _I32 = 0, 1, 2, 5
_VARINT_BYTES_MAX: Final = 10
_FIXED_BYTES: Final = {_I64: 8, _I32: 4}


def before_field(message: bytes, number: int, size: int) -> bytes:
    """Return what `size` bytes are to follow, to be the field `number` of an encoded message."""
    return message + _varint(number << 3 | _LENGTH_DELIMITED) + _varint(size)


def take_out(message: memoryview, number: int) -> tuple[bytes, slice]:
    """Return an encoded message without a field of bytes, and where that lies in it.

    A field that is missing lies nowhere: its slice is empty.

    Raises:
        DecodeError: It is no message, or has more than `FIELDS_MAX` fields.
    """
    wanted = number << 3 | _LENGTH_DELIMITED
    others: list[memoryview] = []
    field, position = slice(0, 0), 0
    try:
        for _ in range(FIELDS_MAX + 1):
            if position == len(message):
                return b"".join(others), field
            start = position
            key, position = _read_varint(message, position)
            size = 0
            if key & 7 == _LENGTH_DELIMITED:
                size, position = _read_varint(message, position)
            elif key & 7 == _VARINT:
                _, position = _read_varint(message, position)
            else:
                size = _FIXED_BYTES[key & 7]
            position += size
            if position > len(message):
                break
            if key == wanted:
                field = slice(position - size, position)
            else:
                others.append(message[start:position])
    except LookupError:
        pass
    raise DecodeError("the bytes are no message, or one with too many fields")


def _varint(number: int) -> bytes:
    """Return 7 bits a byte, the lowest first, the top bit set in all but the last byte."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _read_varint(data: memoryview, position: int) -> tuple[int, int]:
    """Return a number, and where it ends.

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
