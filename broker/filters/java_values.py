"""How Java reads and orders the values that a filter compares.

Properties are text. RocketMQ converts them with `Integer.valueOf`, `Long.valueOf`,
`Double.valueOf` and `Boolean.valueOf`, so what these accept is what a filter understands. An `int`
stands for an Integer up to `INTEGER_MAX` either way, else for a Long; a `float` for a Double.
"""

from __future__ import annotations

import math
import re
from typing import Final, TypeAlias

Value: TypeAlias = str | int | float | bool
INTEGER_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1

_INTEGER: Final = re.compile(r"[+-]?\d+")  # \d is Unicode's, as Character.digit is
_BLANKS: Final = "".join(map(chr, range(0x21)))
_DECIMAL: Final = re.compile(
    r"[+-]?(?:NaN|Infinity|(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?)"
)
_HEXADECIMAL: Final = re.compile(
    r"[+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+[fFdD]?"
)


class ConversionError(Exception):
    """A value cannot be compared with another of its kind: RocketMQ throws."""


def parse_integer(text: str, maximum: int) -> int:
    """Read what `Integer.valueOf` or `Long.valueOf` reads: a sign, digits, nothing around them.

    Args:
        text: Any.
        maximum: `INTEGER_MAX` or `LONG_MAX`; the smallest is one beyond it.

    Raises:
        ConversionError: It is no integer, or out of the range.
    """
    if _INTEGER.fullmatch(text) and (text.isascii() or max(text) <= "\uffff"):
        try:
            number = int(text)
        except ValueError:  # Python's limit of 4,300 digits
            raise ConversionError from None
        if -maximum - 1 <= number <= maximum:
            return number
    raise ConversionError


def parse_double(text: str) -> float:
    """Read what `Double.valueOf` reads: also blanks around it, `NaN`, `0x1p3` and `5d`.

    Raises:
        ConversionError: It is no number.
    """
    text = text.strip(_BLANKS)
    if _DECIMAL.fullmatch(text):
        return float(text.rstrip("fFdD"))
    if _HEXADECIMAL.fullmatch(text):
        try:
            return float.fromhex(text.rstrip("fFdD"))
        except OverflowError:
            return -math.inf if text[0] == "-" else math.inf
    raise ConversionError


def compare(left: Value, right: Value) -> int:
    """Return -1, 0 or 1 after converting one side to the type of the other.

    Text becomes what the other side is; an integer beside a double becomes a double. A boolean has
    no order with a number: that is -1, as RocketMQ has it.

    Raises:
        ConversionError: Text is not what it would have to be. Or a boolean is compared with text at
            its right, which RocketMQ fails to convert.
    """
    if isinstance(left, str):
        if isinstance(right, str):
            return (left > right) - (left < right)
        left = _convert(left, right)
    elif isinstance(right, str):
        if isinstance(left, bool):
            raise ConversionError
        right = _convert(right, left)
    if isinstance(left, bool) != isinstance(right, bool):
        return -1
    if isinstance(left, float) or isinstance(right, float):
        return _compare_doubles(float(left), float(right))
    return (left > right) - (left < right)


def _convert(text: str, example: float) -> float:
    """Return what `text` is in the type of `example`, which may be bool, int or float."""
    if isinstance(example, bool):
        return text.lower() == "true"
    if isinstance(example, int):
        return parse_integer(text, INTEGER_MAX if abs(example) <= INTEGER_MAX else LONG_MAX)
    return parse_double(text)


def _compare_doubles(left: float, right: float) -> int:
    """Order as `Double.compare` does: -0.0 before 0.0, NaN after everything and equal to itself."""
    if left < right:
        return -1
    if left > right:
        return 1
    if left == right:
        left, right = math.copysign(1, left), math.copysign(1, right)
    else:
        left, right = math.isnan(left), math.isnan(right)
    return (left > right) - (left < right)
