"""The one large field of a message, put in and taken out by hand: protobuf would copy it, twice.

    message   key length value   key length value   ...     in any order; the large field goes last

Everything else in the message is protobuf's.
"""

from __future__ import annotations

from typing import Final

from google.protobuf.message import DecodeError

from commitbus.broker.rpc.proto.wire_format import (
    I32,
    I64,
    LENGTH_DELIMITED,
    VARINT,
    read_varint,
    varint,
)

FIELDS_MAX: Final = 64
"""Fields of a message that is taken apart here: each costs a step in Python."""

_FIXED_BYTES: Final = {I64: 8, I32: 4}


def before_field(message: bytes, number: int, size: int) -> bytes:
    """Return what `size` bytes are to follow, to be the field `number` of an encoded message."""
    return message + varint(number << 3 | LENGTH_DELIMITED) + varint(size)


def take_out(message: memoryview, number: int) -> tuple[bytes, slice]:
    """Return an encoded message without a field of bytes, and where that lies in it.

    A field that is missing lies nowhere: its slice is empty.

    Raises:
        DecodeError: It is no message, or has more than `FIELDS_MAX` fields.
    """
    wanted = number << 3 | LENGTH_DELIMITED
    others: list[memoryview] = []
    field, position = slice(0, 0), 0
    try:
        for _ in range(FIELDS_MAX + 1):
            if position == len(message):
                return b"".join(others), field
            start = position
            key, position = read_varint(message, position)
            size = 0
            if key & 7 == LENGTH_DELIMITED:
                size, position = read_varint(message, position)
            elif key & 7 == VARINT:
                _, position = read_varint(message, position)
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
