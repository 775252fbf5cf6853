"""Random SQL expressions with their meaning: a tree, its text, and what it evaluates to.

The tree is evaluated as plainly as can be; only the comparison of two values is the filter's own
(it has tests of its own, and RocketMQ beside it in `tests/interop`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Final

from commitbus.broker.filters.java_values import compare, parse_double

NAMES: Final = ("a", "b", "A", "TAGS", "_x$1", "order")
STRINGS: Final = (
    "",
    "x",
    "it's",
    "5",
    "5.5",
    "true",
    "TRUE",
    " 5",
    "vip",
    "x'y''z",
    "Ünï",
    "-- no",
)
NUMBERS: Final = (
    *("0", "5", "5L", "7", "2147483647", "2147483648", "9223372036854775807l"),
    *("5.5", "5.", ".5", "5e0", "1.5E+3", "9007199254740993", "9007199254740992.0"),
)
VALUES: Final = (
    *STRINGS,
    *("0", "7", "-5", "+5", "2147483648", "-2147483648", "9007199254740993", "\u0665", "false"),
    *("NaN", "Infinity", "-0.0", "0.0", "5d", "0x1p3", "1e400"),
)

WORDS: Final = (
    *("a", "b", "TAGS", "L", "0", "5", "5L", "5.5", ".5", "'x'", "'5'", "TRUE", "false", "NULL"),
    *("=", "<>", "<", ">=", "-", "+", "(", ")", ",", "NOT", "AND", "OR", "IS", "IN", "BETWEEN"),
    *("CONTAINS", "STARTSWITH", "--", "/*", "*/", "\n", "'", "LIKE", "!", "5e", "5 AND 6"),
)
"""What an expression may consist of, and a little of what it may not."""

Node = tuple[Any, ...]
"""What it is, then its parts."""

ORDERS: Final[Mapping[str, Callable[[int, int], bool]]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
TEXT_TESTS: Final[Mapping[str, Callable[[str, str], bool]]] = {
    "CONTAINS": operator.contains,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


def random_properties(random: Random) -> dict[str, str]:
    """Some of the properties that the expressions name."""
    return {name: random.choice(VALUES) for name in NAMES if random.random() < 0.7}


# Trees


def random_condition(random: Random, depth: int) -> Node:
    """What can stand where a truth value is needed."""
    if depth <= 0 or random.random() < 0.2:
        return random.choice([("name", random.choice(NAMES)), ("truth", random.choice(
            [True, False, None])), _random_comparison(random, 0)])  # fmt: skip
    kind = random.choice(["and", "or", "not", "comparison", "comparison"])
    if kind == "comparison":
        return _random_comparison(random, depth - 1)
    count = 1 if kind == "not" else 2
    return (kind, *(random_condition(random, depth - 1) for _ in range(count)))


def _random_comparison(random: Random, depth: int) -> Node:
    kind = random.choice(["equal", "equal", "order", "order", "between", "null", "text", "in"])
    negated = random.random() < 0.4
    if kind == "equal":
        return ("equal", *_random_equals(random, depth), negated)
    if kind == "order":
        sides = (_random_orderable(random, depth) for _ in range(2))
        return ("order", random.choice(list(ORDERS)), *sides)
    if kind == "between":
        ends = [("number", "5"), ("number", "5.5")]
        if random.random() < 0.5:
            ends = [("name", "b"), _random_orderable(random, depth)]
        return ("between", _random_orderable(random, depth), *ends, negated)
    if kind == "null":
        return ("null", _random_operand(random, depth), negated)
    if kind == "text":
        part = random.choice(STRINGS)
        return (
            "text",
            random.choice(list(TEXT_TESTS)),
            _random_operand(random, depth),
            part,
            negated,
        )
    values = [random.choice(STRINGS) for _ in range(random.randint(1, 6))]
    return ("in", random.choice(NAMES), values, negated)


def _random_orderable(random: Random, depth: int) -> Node:
    simple = random.choice([("name", random.choice(NAMES)), ("number", random.choice(NUMBERS))])
    return ("minus", _random_operand(random, depth)) if random.random() < 0.2 else simple


def _random_operand(random: Random, depth: int) -> Node:
    if depth > 0 and random.random() < 0.3:
        return random_condition(random, depth - 1)
    literal = random.choice([("string", random.choice(STRINGS)), ("truth", random.random() < 0.5)])
    return literal if random.random() < 0.3 else _random_orderable(random, depth)


def _random_equals(random: Random, depth: int) -> tuple[Node, Node]:
    """Two operands of `=`; a truth literal may not be left of a string or a number."""
    left, right = _random_operand(random, depth), _random_operand(random, depth)
    left, right = (("name", "a") if side == ("truth", None) else side for side in (left, right))
    return (
        (right, left) if left[0] == "truth" and right[0] in {"string", "number"} else (left, right)
    )


# Text

LEVELS: Final = {"or": 0, "and": 1, "equal": 2, "null": 2, "order": 3, "between": 3, "text": 3,
                 "in": 3, "not": 4, "minus": 4}  # fmt: skip
"""How strongly each binds; operands bind strongest."""


def render(node: Node, random: Random, least: int = 0) -> str:
    """Write a tree down, with parentheses where `least` demands them, and sometimes elsewhere."""
    text = " ".join(_render_parts(node, random))
    if LEVELS.get(node[0], 5) < least or random.random() < 0.1:
        return f"({text})"
    return text


def _render_parts(  # noqa: C901, PLR0911, PLR0912 - a branch for each kind of node
    node: Node, random: Random
) -> list[str]:
    def word(text: str) -> str:
        blank = random.choice(["", "", "", " ", "\n", "\t/* '*/", "--'\r"])
        return blank + "".join(random.choice([c.lower(), c.upper()]) for c in text)

    def unless(negated: bool) -> list[str]:  # noqa: FBT001 - a part of a node
        return [word("NOT")] if negated else []

    match node:
        case ("name", text) | ("number", text):
            return [text]
        case ("string", value):
            return [quote(value)]
        case ("truth", value):
            return [word("NULL" if value is None else str(value))]
        case ("or" | "and" as kind, left, right):
            level = LEVELS[kind]
            return [render(left, random, level), word(kind), render(right, random, level + 1)]
        case ("not", inner):
            return [word("NOT"), render(inner, random, 4)]
        case ("minus", inner):
            return ["-", render(inner, random, 4)]
        case ("equal", left, right, negated):
            sign = "<>" if negated else "="
            return [render(left, random, 2), sign, render(right, random, 3)]
        case ("order", sign, left, right):
            return [render(left, random, 3), sign, render(right, random, 4)]
        case ("between", inner, low, high, negated):
            ends = [render(low, random, 4), word("AND"), render(high, random, 4)]
            return [render(inner, random, 3), *unless(negated), word("BETWEEN"), *ends]
        case ("null", inner, negated):
            return [render(inner, random, 2), word("IS"), *unless(negated), word("NULL")]
        case ("text", test, inner, part, negated):
            return [render(inner, random, 3), *unless(negated), word(test), quote(part)]
        case ("in", name, values, negated):
            return [name, *unless(negated), word("IN"), f"({','.join(map(quote, values))})"]
        case _:
            raise AssertionError(node)


def quote(value: str) -> str:
    """Write a string literal."""
    return "'" + value.replace("'", "''") + "'"


# Meaning


def evaluate(  # noqa: C901, PLR0911 - a branch for each kind of node
    node: Node, properties: Mapping[str, str]
) -> Any:
    """Return what a tree evaluates to, None for unknown.

    Raises:
        ConversionError: a comparison on the way cannot be made.
    """

    def of(inner: Node) -> Any:
        return evaluate(inner, properties)

    match node:
        case ("name", name):
            return properties.get(name) or None
        case ("number", text):
            return float(text) if set(text) & set(".eE") else int(text.rstrip("lL"))
        case ("string" | "truth", value):
            return value
        case ("minus", inner):
            value = of(inner)
            return -value if type(value) in {int, float} else None
        case ("and" | "or" | "not", *_):
            return _evaluate_logic(node, properties)
        case ("equal", left, right, negated):
            return _evaluate_equal(of(left), of(right), negated=negated)
        case ("null", inner, negated):
            return (of(inner) is None) is not negated
        case ("order", sign, left, right):
            return _evaluate_order(of(left), sign, lambda: of(right))
        case ("between", inner, low, high, negated):
            kind, signs = ("or", "<>") if negated else ("and", (">=", "<="))
            return of((kind, ("order", signs[0], inner, low), ("order", signs[1], inner, high)))
        case ("text", test, inner, part, negated):
            value = of(inner) if part else None
            return isinstance(value, str) and TEXT_TESTS[test](value, part) ^ negated
        case ("in", name, values, negated):
            value = of(("name", name))
            return None if value is None else (value in values) ^ negated
        case _:
            raise AssertionError(node)


def _evaluate_logic(node: Node, properties: Mapping[str, str]) -> bool | None:
    """The three-valued tables; a property alone counts as false when it is there."""

    def truth(inner: Node) -> bool | None:
        value: bool | None = evaluate(inner, properties)
        return False if inner[0] == "name" and value is not None else value

    kind, *parts = node
    decisive: bool = kind == "or"
    left = truth(parts[0])
    if kind == "not":
        return None if left is None else not left
    if left is decisive:
        return decisive
    right = truth(parts[1])
    if right is decisive:
        return decisive
    return None if left is None or right is None else not decisive


def _evaluate_equal(left: Any, right: Any, *, negated: bool) -> bool | None:
    if left is None and right is not None:
        return None
    if left is None or right is None:
        return (left is right) ^ negated
    return (compare(left, right) == 0) ^ negated


def _evaluate_order(left: Any, sign: str, right_of: Callable[[], Any]) -> bool | None:
    if left is None:
        return None
    right = right_of()
    if right is None:
        return None
    if isinstance(left, str) and isinstance(right, str):
        left, right = parse_double(left), parse_double(right)
    return ORDERS[sign](compare(left, right), 0)
