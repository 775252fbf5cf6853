"""Counts the fields of an encoded request: one with millions is refused before it is parsed.

A parser makes an object of each element of a repeated field: an empty message of 2 bytes becomes 70
bytes of memory, or 280 with what its parent makes for it. All else in a message takes about as much
memory as it has bytes: singular fields overwrite each other, unknown ones are kept as they came.

So only repeated fields of texts, bytes and messages matter, and the way to them. A message that
has none below it is passed over, whatever its size.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final, Union

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from commitbus.broker.rpc.proto.wire_format import (
    I32,
    I64,
    LENGTH_DELIMITED,
    VARINT,
    read_varint,
)

FIELD_BYTES_MIN: Final = 2
"""A key and a length, or a key and a value."""

# A type that contains itself needs the old spelling.
Shape = Mapping[int, Union["Shape", None]]
"""The fields of a message that are looked at, by key: the shape of a message in which to look
further, or None for an element in which nothing is repeated."""

_Part = tuple[int, int, Shape]
"""A message inside a request: where it begins and ends."""

_REPEATABLE: Final = {
    FieldDescriptor.TYPE_STRING,
    FieldDescriptor.TYPE_BYTES,
    FieldDescriptor.TYPE_MESSAGE,
}
_FIXED_BYTES: Final = {I64: 8, I32: 4}


@cache
def shape_of(message: Descriptor) -> Shape:
    """Return what to look at in an encoded message; nothing where no field is repeated."""
    return _shape_of(message, {})


def _shape_of(message: Descriptor, known: dict[str, dict[int, Shape | None]]) -> Shape:
    found = known.get(message.full_name)
    if found is not None:
        return found
    shape = known[message.full_name] = {}
    for field in message.fields:
        if field.type not in _REPEATABLE:
            continue
        below = _shape_of(field.message_type, known) if field.message_type is not None else None
        if field.is_repeated or below:
            shape[field.number << 3 | LENGTH_DELIMITED] = below or None
    return shape


def has_more_fields(data: bytes, shape: Shape, maximum: int) -> bool:
    """Return whether a message has more than so many fields, as far as they matter.

    It stops as soon as that is known, either way: a message of a few large fields costs a few
    steps, one of many small fields at most `maximum` steps. What is no message is no error here:
    the parser finds that out, and what it makes before that is counted.
    """
    if not shape:
        return False
    fields, unseen_bytes = 0, len(data)
    unseen: list[_Part] = [(0, len(data), shape)]
    while unseen and fields + unseen_bytes // FIELD_BYTES_MIN > maximum:
        part = unseen.pop()
        others = len(unseen)
        fields += _count(data, part, unseen, maximum + 1 - fields)
        if fields > maximum:
            return True
        unseen_bytes -= part[1] - part[0]
        unseen_bytes += sum(end - begin for begin, end, _ in unseen[others:])
    return False


def _count(data: bytes, part: _Part, unseen: list[_Part], maximum: int) -> int:
    """Return how many fields a message has itself; add the messages in it that matter."""
    position, end, shape = part
    fields = 0
    try:
        while position < end and fields < maximum:
            fields += 1
            key = data[position]
            position += 1
            if key >= 0x80:
                key, position = read_varint(data, position - 1)
            kind = key & 7
            if kind == LENGTH_DELIMITED:
                size = data[position]
                position += 1
                if size >= 0x80:
                    size, position = read_varint(data, position - 1)
                below = shape.get(key)
                if below is not None and position + size <= end:
                    unseen.append((position, position + size, below))
                position += size
            elif kind == VARINT:
                _, position = read_varint(data, position)
            else:
                # What is in a group is looked at as if it were not in it: that counts no less.
                position += _FIXED_BYTES.get(kind, 0)
    except LookupError:
        pass  # It ends inside a number.
    return fields
