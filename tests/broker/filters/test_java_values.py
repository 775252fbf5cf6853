"""Conversions and orders that Python has differently; `tests/interop` asks Java about many more."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitbus.broker.filters.java_values import (
    INTEGER_MAX,
    LONG_MAX,
    ConversionError,
    compare,
    parse_double,
    parse_integer,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [("5", 5), ("+5", 5), ("-0", 0), ("007", 7), ("\u0665", 5), ("-2147483648", -(2**31))],
)
def test_integers_that_java_reads(text: str, value: int) -> None:
    """Signs, leading zeros, digits of any script."""
    assert parse_integer(text, INTEGER_MAX) == value


@pytest.mark.parametrize(
    "text", ["", "+", " 5", "5_0", "5L", "5.0", "\u00b2", "2147483648", "9" * 9999]
)
def test_integers_that_java_does_not_read(text: str) -> None:
    """Python's `int` takes some of them."""
    with pytest.raises(ConversionError):
        parse_integer(text, INTEGER_MAX)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *((" 5.5\n", 5.5), ("5.", 5.0), (".5e1", 5.0), ("5d", 5.0), ("0x1.8p1", 3.0)),
        *(("1e999", math.inf), ("-0x1p9999", -math.inf), ("-Infinity", -math.inf)),
    ],
)
def test_doubles_that_java_reads(text: str, value: float) -> None:
    """With blanks, a suffix, hexadecimal, and beyond the largest."""
    assert parse_double(text) == value


@pytest.mark.parametrize(
    "text", ["", ".", "5_0", "inf", "nan", "5e", "NaNd", "\u0665", "5\u3000", "0x5"]
)
def test_doubles_that_java_does_not_read(text: str) -> None:
    """Python's `float` takes some of them."""
    with pytest.raises(ConversionError):
        parse_double(text)


def test_doubles_have_java_s_total_order() -> None:
    """Minus zero before zero, NaN behind everything."""
    row = [-math.inf, -1.5, -0.0, 0.0, 1.5, math.inf, math.nan]
    for i, left in enumerate(row):
        assert [compare(left, right) for right in row] == [
            (i > j) - (i < j) for j in range(len(row))
        ]


@given(st.integers(-LONG_MAX - 1, LONG_MAX), st.floats(allow_nan=False, allow_infinity=False))
def test_an_integer_beside_a_double_is_rounded_to_one(integer: int, double: float) -> None:
    """Where Python would compare exactly."""
    assert compare(9007199254740993, 9007199254740992.0) == 0
    assert compare(integer, double) == compare(float(integer), double) == -compare(double, integer)


def test_a_boolean_is_read_from_text_at_its_left_only() -> None:
    """`true` in any case, all else is false; beside a number there is no order."""
    yes, no = True, False
    assert compare("TRUE", yes) == compare("maybe", no) == 0
    assert compare(yes, 1) == compare(1, yes) == -1
    with pytest.raises(ConversionError):
        compare(yes, "true")


@given(st.text(alphabet="0123456789.eE+-xXpPdDfF \tNaInfity_\u0665"))
def test_no_text_raises_anything_else(text: str) -> None:
    """A conversion gives a number of its type, or the one error."""
    for example in (5, 2**40, 5.5, True):
        try:
            assert compare(text, example) in {-1, 0, 1}
        except ConversionError:
            continue
