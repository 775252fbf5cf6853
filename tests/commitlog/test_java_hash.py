"""Java's string hash."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitbus.commitlog.java_hash import java_string_hash


def horner(text: str) -> int:
    """The definition of String.hashCode, word for word."""
    data = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for unit in zip(data[::2], data[1::2], strict=True):
        value = (31 * value + int.from_bytes(unit, "big")) & 0xFFFF_FFFF
    return value - (1 << 32) if value >> 31 else value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("TagB", 2598920),
        ("polygenelubricants", -(1 << 31)),
        ("\U0001f600", 1772899),
    ],
)
def test_known_values(text: str, expected: int) -> None:
    """The hash equals what Java gives, down to the smallest int and for surrogate pairs."""
    assert java_string_hash(text) == expected


@given(st.text(st.characters(), max_size=40), st.integers(0, 40))
def test_equals_the_definition(text: str, repeats: int) -> None:
    """Any text, beyond one block of the computation too, hashes as the definition says."""
    assert java_string_hash(text * repeats) == horner(text * repeats)


def test_lone_surrogate_counts_as_itself() -> None:
    """Java strings may hold half a pair; its code unit enters the sum."""
    assert java_string_hash("\ud800") == 0xD800
