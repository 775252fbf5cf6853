"""The bytes of a consume queue: 20 per message, at 20 * queue offset.

     0       8     12      20
    +-------+-----+-------+
    | phys. | size| tags  |
    | offset| i32 | code  |
    | i64   |     | i64   |
    +-------+-----+-------+

All integers are big-endian and signed. The tags code is the Java hash of the tags, sign-extended;
0 without tags; in the topic of delayed messages the time they are due.

A unit is there when its physical offset is not negative and its size is positive: files begin as
zeros. A queue whose first message is not the first of its file (older ones were deleted) has
padding before it: physical offset 0, size 2^31 - 1, tags code 0.
"""

from __future__ import annotations

import struct
from functools import partial
from typing import NamedTuple, final

import numpy as np

from commitbus.commitlog.types import PhysicalOffset

UNIT_BYTES = 20
UNIT = struct.Struct(">qiq")
UNIT_DTYPE = np.dtype([("physical_offset", ">i8"), ("size_bytes", ">i4"), ("tags_code", ">i8")])
assert UNIT.size == UNIT_DTYPE.itemsize == UNIT_BYTES


@final
class CqUnit(NamedTuple):
    """Where a message of a queue lies in the log."""

    physical_offset: PhysicalOffset
    size_bytes: int
    tags_code: int
    """Signed 64 bits."""

    @property
    def end_offset(self) -> PhysicalOffset:
        """First physical offset after the message."""
        return PhysicalOffset(self.physical_offset + self.size_bytes)

    @property
    def is_written(self) -> bool:
        """Whether this is a message or padding, not bytes that nothing was written to."""
        return self.physical_offset >= 0 and self.size_bytes > 0


_new_unit = partial(tuple.__new__, CqUnit)
"""A fifth of the cost of calling the class, whose `__new__` is written in Python."""

PADDING = CqUnit(PhysicalOffset(0), 0x7FFFFFFF, 0)
"""Stands before the first message of a queue; no message is as large."""
PADDING_BYTES = UNIT.pack(*PADDING)


def decode_unit(data: bytes | memoryview, position: int = 0) -> CqUnit:
    """Return the unit at a position in bytes."""
    physical_offset, size_bytes, tags_code = UNIT.unpack_from(data, position)
    return CqUnit(physical_offset, size_bytes, tags_code)


def decode_units(data: bytes) -> list[CqUnit]:
    """Return the units in bytes whose length is a multiple of `UNIT_BYTES`."""
    return list(map(_new_unit, UNIT.iter_unpack(data)))
