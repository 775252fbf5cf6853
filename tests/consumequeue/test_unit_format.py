"""The 20 bytes of a consume queue unit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitbus.commitlog.types import PhysicalOffset
from commitbus.consumequeue.unit_format import (
    PADDING,
    PADDING_BYTES,
    UNIT,
    UNIT_DTYPE,
    CqUnit,
    decode_unit,
    decode_units,
)

OFFSETS = st.integers(0, 2**63 - 1).map(PhysicalOffset)
UNITS = st.builds(CqUnit, OFFSETS, st.integers(1, 2**31 - 1), st.integers(-(2**63), 2**63 - 1))


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        (
            CqUnit(PhysicalOffset(0x0102030405060708), 0x0A0B0C0D, 0x1112131415161718),
            "01020304050607080a0b0c0d1112131415161718",
        ),
        # Java's hash -2^31 is stored sign-extended to 64 bits.
        (CqUnit(PhysicalOffset(1), 2, -(2**31)), "000000000000000100000002ffffffff80000000"),
        (PADDING, "00000000000000007fffffff0000000000000000"),
    ],
)
def test_a_unit_is_big_endian(unit: CqUnit, expected: str) -> None:
    """Physical offset, size and tags code in the bytes that RocketMQ writes."""
    assert UNIT.pack(*unit).hex() == expected
    assert decode_unit(bytes.fromhex(expected)) == unit


@given(st.lists(UNITS, max_size=40))
def test_units_survive_the_round_trip_in_both_readers(units: list[CqUnit]) -> None:
    """The plain and the numpy reader see what was packed."""
    data = b"".join(UNIT.pack(*unit) for unit in units)
    assert decode_units(data) == units
    assert [tuple(row) for row in np.frombuffer(data, UNIT_DTYPE).tolist()] == units


def test_zeros_are_no_unit_and_padding_is_one() -> None:
    """A fresh file has no units; padding counts as written, so that a load passes over it."""
    assert not decode_unit(bytes(20)).is_written
    assert decode_unit(PADDING_BYTES).is_written
    assert not CqUnit(PhysicalOffset(-1), 5, 0).is_written
