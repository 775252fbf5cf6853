"""Scanning SQL before it is parsed: comments, needless parentheses, and the bound on parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import thread_time
from typing import Final

import pytest

from commitbus.broker.filters import sql_filter
from commitbus.broker.filters.errors import FilterExpressionError
from commitbus.broker.filters.filter_cache import FilterCache
from commitbus.broker.filters.sql_filter import SQL_EXPRESSION_LENGTH_MAX, compile_sql
from commitbus.broker.filters.sql_scan import PARTS_MAX, scan


def nested(opening: str, depth: int) -> str:
    """A number in parentheses."""
    return opening * depth + "1" + ")" * depth


HOSTILE: Final[Mapping[str, Callable[[int], str]]] = {
    "dashes": lambda length: "a=" + "-" * (length - 3) + "1",
    "dashes between line ends": lambda length: "a=" + "-\n" * (length // 2 - 2) + "1",
    "comments": lambda length: "--\n" * (length // 3 - 1) + "a",
    "comments without an end": lambda length: "a=1" + "/*" * (length // 2 - 2),
    "block comments": lambda length: "/**/" * (length // 4 - 1) + "a",
    "slashes": lambda length: "a=" + "/" * (length - 2),
    "quotes": lambda length: "a='" + "'" * (length - 4),
    "string without an end": lambda length: "a='" + "x''" * (length // 3 - 1),
    "strings": lambda length: "a=" + "'x' " * (length // 4 - 1),
    "parentheses": lambda length: "(" * (length // 2 - 1) + "a" + ")" * (length // 2 - 1),
    "opening parentheses": lambda length: "(" * length,
    "signs in parentheses": lambda length: "a=" + nested("(+", length // 3 - 1),
    "signs": lambda length: "a=" + "+" * (length - 3) + "1",
    "NOT": lambda length: "not " * (length // 4 - 1) + "a",
    "OR": lambda length: "a or " * (length // 5 - 1) + "a",
    "AND": lambda length: "a=1 and " * (length // 8 - 1) + "a",
    "equalities": lambda length: "a=" * (length // 2 - 1) + "a",
    "IN": lambda length: "a in (" + "'x'," * (length // 4 - 3) + "'x')",
    "zeros": lambda length: "a=" + "0" * (length - 2),
    "digits": lambda length: "a=." + "1" * (length - 3),
    "exponents": lambda length: "a=" + "1e" * (length // 2 - 1),
    "many names": lambda length: (
        "not " * 90 + "(" + " or ".join(f"n{number:04}" for number in range(length // 9 - 50)) + ")"
    ),
}


def compile_time_s(text: str) -> float:
    """Least CPU time of three compilations, valid or not."""
    times = []
    for _ in range(3):
        begin = thread_time()
        sql_filter._compile(text)
        times.append(thread_time() - begin)
    return min(times)


@pytest.mark.parametrize("family", HOSTILE)
def test_twice_as_long_an_expression_takes_about_twice_as_long(family: str) -> None:
    """And none takes long: a linear cost of 10 us for a character would be 82 ms."""
    compile_sql("loads = 'the parser'")
    make = HOSTILE[family]
    long_s = compile_time_s(make(SQL_EXPRESSION_LENGTH_MAX))
    assert len(make(SQL_EXPRESSION_LENGTH_MAX)) <= SQL_EXPRESSION_LENGTH_MAX
    assert long_s < 0.25
    # What is so quick cannot be measured well.
    assert long_s < 0.005 or long_s < 3.2 * compile_time_s(make(SQL_EXPRESSION_LENGTH_MAX // 2))


@pytest.mark.parametrize("text", ["a = ----", "a = 1 --x = ", "a --"])
def test_a_text_is_parsed_at_most_once(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """However it ends, and however often it is asked for."""
    compile_sql("loads = 'the parser'")
    from commitbus.broker.filters import sql_parser  # noqa: PLC0415 - it loads a library

    parsed: list[str] = []
    parse = sql_parser._parser.parse

    def counted(text: str) -> object:
        parsed.append(text)
        return parse(text)

    monkeypatch.setattr(sql_parser._parser, "parse", counted)
    cache = FilterCache(sql_filter._compile, length_max=1000)
    kept = [cache.get(text) for _ in range(3)]
    assert len(parsed) == 1
    assert kept[0] is kept[2]


def test_an_expression_has_a_bounded_number_of_parts() -> None:
    """Parentheses that say nothing, blanks and comments do not count."""
    chain = "+" * (PARTS_MAX - 3) + "1"
    assert compile_sql(f"a={chain}").accepts({"a": "1"})
    assert compile_sql(f"(/*--*/(((a={chain[6:]}))))--x\n").accepts({"a": "1"})
    with pytest.raises(FilterExpressionError, match="at most 4096"):
        compile_sql(f"a=+{chain}")


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("a--x\n=1", "a   \n=1"),
        ("a/*x\ny*/=1", "a   \n   =1"),
        ("a = '--' -- it's", "a = '--'        "),
        ("a = --5", "a = --5"),
        ("a = --5 -- five", "a = --5 -- five"),
        ("a = '/*' /*", "a = '/*' /*"),
        ("((a)) = (((1)))", "( a ) = (  1  )"),
        ("a IN (('x'))", "a IN (('x'))"),
        ("((a) = 1)", "((a) = 1)"),
    ],
)
def test_what_says_nothing_is_blanked_out(text: str, seen: str) -> None:
    """So the parser tells each place as the consumer sees it."""
    assert scan(text).text == seen


def test_the_names_of_properties_are_known_without_the_parser() -> None:
    """Neither keywords, nor what strings and comments say, nor exponents are among them."""
    text = "a > 1e5 AND NOT (TAGS In ('b') or order IS null) /* c */ and true = d -- e"
    assert scan(text).names == {"a", "TAGS", "order", "d"}
