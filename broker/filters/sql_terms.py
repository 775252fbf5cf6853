"""The parts of an SQL expression: what may be combined with what, and what it evaluates to.

Every function here makes a larger term of smaller ones, or refuses what RocketMQ refuses when it
parses. A term evaluates to a string (only properties and string literals do), a number, a boolean,
or None, the unknown of three-valued logic. It raises `ConversionError` where RocketMQ throws.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, TypeAlias, final

from commitbus.broker.filters.errors import FilterExpressionError
from commitbus.broker.filters.java_values import LONG_MAX, Value, compare, parse_double

DEPTH_MAX: Final = 100
"""Of terms inside terms, so that evaluation cannot exhaust the stack. Chains of AND, and of OR, and
parentheses around one term add nothing."""

Properties: TypeAlias = Mapping[str, str]
Evaluate: TypeAlias = Callable[[Properties], Value | None]


@final
class Kind(Enum):
    """What the rules of combination tell apart."""

    PROPERTY = auto()
    STRING = auto()
    NUMBER = auto()
    TRUTH = auto()  # the literals TRUE, FALSE and NULL
    PREDICATE = auto()  # what evaluates to true, false or unknown
    NEGATIVE = auto()  # a minus sign before anything


@final
@dataclass(frozen=True, slots=True)
class Term:
    """A part of an expression."""

    kind: Kind
    evaluate: Evaluate
    depth: int = 1
    literal: Value | None = None
    """The value of a string, a number or a truth."""


# Operands


def property_(name: str) -> Term:
    """A property of the message; an empty one is missing, as RocketMQ's decoder has it."""
    return Term(Kind.PROPERTY, lambda message: message.get(name) or None)


def string(value: str) -> Term:
    """A string literal, without its quotes."""
    return Term(Kind.STRING, lambda _: value, literal=value)


def integer(text: str) -> Term:
    """A whole number of at most 64 bits. An L behind it says nothing: its size decides its type."""
    digits = text.rstrip("lL")
    value = int(digits) if len(digits) < 20 else LONG_MAX + 1
    if value > LONG_MAX:
        raise FilterExpressionError(f"{shorten(text)} is beyond the largest integer, {LONG_MAX}")
    return Term(Kind.NUMBER, lambda _: value, literal=value)


def double(text: str) -> Term:
    """A number with a point or an exponent. There is no 0.0: RocketMQ refuses it too."""
    value = float(text)
    if value in {0.0, float("inf")}:
        raise FilterExpressionError(f"{shorten(text)} is not between 4.9E-324 and 1.8E308")
    return Term(Kind.NUMBER, lambda _: value, literal=value)


TRUE: Final = Term(Kind.TRUTH, lambda _: True, literal=True)
FALSE: Final = Term(Kind.TRUTH, lambda _: False, literal=False)
NULL: Final = Term(Kind.TRUTH, lambda _: None)


def negative(operand: Term) -> Term:
    """A minus sign; what is no number, a property included, becomes unknown."""
    inner = operand.evaluate

    def evaluate(message: Properties) -> Value | None:
        value = inner(message)
        return -value if isinstance(value, int | float) and not isinstance(value, bool) else None

    return _larger(Kind.NEGATIVE, evaluate, operand)


# Logic


def conjunction(*operands: Term) -> Term:
    """AND: false at the first false operand, the rest unseen; else unknown if one is."""
    return _decided_by(operands, decisive=False)


def disjunction(*operands: Term) -> Term:
    """OR: true at the first true operand, the rest unseen; else unknown if one is."""
    return _decided_by(operands, decisive=True)


def _decided_by(operands: tuple[Term, ...], *, decisive: bool) -> Term:
    predicates = [as_predicate(operand) for operand in operands]
    evaluations = [predicate.evaluate for predicate in predicates]

    def evaluate(message: Properties) -> Value | None:
        result: bool | None = not decisive
        for inner in evaluations:
            value = inner(message)
            if value is decisive:
                return decisive
            if value is None:
                result = None
        return result

    return _larger(Kind.PREDICATE, evaluate, *predicates)


def negation(operand: Term) -> Term:
    """NOT: unknown stays unknown."""
    predicate = as_predicate(operand)
    inner = predicate.evaluate

    def evaluate(message: Properties) -> Value | None:
        value = inner(message)
        return None if value is None else not value

    return _larger(Kind.PREDICATE, evaluate, predicate)


def as_predicate(operand: Term) -> Term:
    """Return a term where a truth value is needed.

    A property alone is false whatever its text is, `true` included, and unknown when missing.
    """
    if operand.kind in {Kind.PREDICATE, Kind.TRUTH}:
        return operand
    if operand.kind is not Kind.PROPERTY:
        raise FilterExpressionError("a number or a string stands where a condition is needed")
    inner = operand.evaluate
    return _larger(
        Kind.PREDICATE, lambda message: None if inner(message) is None else False, operand
    )


# Comparisons


def equal(left: Term, right: Term) -> Term:
    """`=`: unknown without a left side, false without a right side, true without both."""
    for side in (left, right):
        if side.kind is Kind.TRUTH and side.literal is None:
            raise FilterExpressionError("nothing equals NULL: write IS NULL or IS NOT NULL")
    if left.kind is Kind.TRUTH and right.kind in {Kind.STRING, Kind.NUMBER}:
        raise FilterExpressionError("TRUE and FALSE cannot be compared with a number or a string")
    return _equal(left, right)


def not_equal(left: Term, right: Term) -> Term:
    """`<>`: the opposite of `=`, so true when only the right side is missing."""
    return negation(equal(left, right))


def is_null(operand: Term) -> Term:
    """IS NULL: true for what is missing or unknown, false else."""
    return _equal(operand, NULL)


def is_not_null(operand: Term) -> Term:
    """IS NOT NULL: the opposite."""
    return negation(is_null(operand))


def _equal(left: Term, right: Term) -> Term:
    left_side, right_side = left.evaluate, right.evaluate

    def evaluate(message: Properties) -> Value | None:
        first, second = left_side(message), right_side(message)
        if first is None:
            return True if second is None else None
        return second is not None and compare(first, second) == 0

    return _larger(Kind.PREDICATE, evaluate, left, right)


def greater(left: Term, right: Term) -> Term:
    """`>`."""
    return _ordered(left, operator.gt, right)


def greater_or_equal(left: Term, right: Term) -> Term:
    """`>=`."""
    return _ordered(left, operator.ge, right)


def less(left: Term, right: Term) -> Term:
    """`<`."""
    return _ordered(left, operator.lt, right)


def less_or_equal(left: Term, right: Term) -> Term:
    """`<=`."""
    return _ordered(left, operator.le, right)


def _ordered(left: Term, holds: Callable[[int, int], bool], right: Term) -> Term:
    """Unknown if a side is missing; two properties are compared as doubles."""
    for side in (left, right):
        if side.kind in {Kind.STRING, Kind.TRUTH, Kind.PREDICATE}:
            raise FilterExpressionError("only properties and numbers have an order")
    left_side, right_side = left.evaluate, right.evaluate

    def evaluate(message: Properties) -> Value | None:
        first = left_side(message)
        if first is None:
            return None
        second = right_side(message)
        if second is None:
            return None
        if isinstance(first, str) and isinstance(second, str):
            first, second = parse_double(first), parse_double(second)
        return holds(compare(first, second), 0)

    return _larger(Kind.PREDICATE, evaluate, left, right)


def between(operand: Term, low: Term, high: Term) -> Term:
    """BETWEEN: both ends belong to it."""
    both = conjunction(greater_or_equal(operand, low), less_or_equal(operand, high))
    if low.kind is high.kind is Kind.NUMBER:
        assert low.literal is not None, "a number has a value"
        assert high.literal is not None, "a number has a value"
        if compare(high.literal, low.literal) < 0:
            raise FilterExpressionError(f"nothing is between {low.literal} and {high.literal}")
    return both


def not_between(operand: Term, low: Term, high: Term) -> Term:
    """NOT BETWEEN: below the one or above the other."""
    return disjunction(less(operand, low), greater(operand, high))


# Strings


def contains(operand: Term, part: str) -> Term:
    """CONTAINS."""
    return _text(operand, part, operator.contains, wanted=True)


def not_contains(operand: Term, part: str) -> Term:
    """NOT CONTAINS."""
    return _text(operand, part, operator.contains, wanted=False)


def starts_with(operand: Term, part: str) -> Term:
    """STARTSWITH."""
    return _text(operand, part, str.startswith, wanted=True)


def not_starts_with(operand: Term, part: str) -> Term:
    """NOT STARTSWITH."""
    return _text(operand, part, str.startswith, wanted=False)


def ends_with(operand: Term, part: str) -> Term:
    """ENDSWITH."""
    return _text(operand, part, str.endswith, wanted=True)


def not_ends_with(operand: Term, part: str) -> Term:
    """NOT ENDSWITH."""
    return _text(operand, part, str.endswith, wanted=False)


def _text(operand: Term, part: str, test: Callable[[str, str], bool], *, wanted: bool) -> Term:
    """False, with NOT or without, for what is missing or no string, and for an empty part."""
    inner = operand.evaluate

    def evaluate(message: Properties) -> Value | None:
        if part == "":
            return False  # before the operand is evaluated, which may raise
        value = inner(message)
        return isinstance(value, str) and test(value, part) is wanted

    return _larger(Kind.PREDICATE, evaluate, operand)


def member(operand: Term, *values: str) -> Term:
    """IN, of strings; unknown if the property is missing."""
    return _member(operand, values, wanted=True)


def not_member(operand: Term, *values: str) -> Term:
    """NOT IN."""
    return _member(operand, values, wanted=False)


def _member(operand: Term, values: tuple[str, ...], *, wanted: bool) -> Term:
    if operand.kind is not Kind.PROPERTY:
        raise FilterExpressionError("IN needs a property at its left")
    inner, among = operand.evaluate, frozenset(values)

    def evaluate(message: Properties) -> Value | None:
        value = inner(message)
        return None if value is None else (value in among) is wanted

    return _larger(Kind.PREDICATE, evaluate, operand)


def _larger(kind: Kind, evaluate: Evaluate, *parts: Term) -> Term:
    depth = 1 + max(part.depth for part in parts)
    if depth > DEPTH_MAX:
        raise FilterExpressionError(f"terms are nested more than {DEPTH_MAX} deep")
    return Term(kind, evaluate, depth)


def shorten(text: str) -> str:
    """Return at most some 40 characters of a consumer's text, for a message about it."""
    return text if len(text) <= 40 else f"{text[:40]}..."
