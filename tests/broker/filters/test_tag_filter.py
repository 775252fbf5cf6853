"""Tag filters: which expressions are understood, and what they let pass."""

from __future__ import annotations

import pytest

from commitbus.broker.filters.errors import FilterExpressionError
from commitbus.broker.filters.tag_filter import EVERYTHING, TAG_EXPRESSION_LENGTH_MAX, parse_tags
from commitbus.commitlog.record_format import encode_properties, tags_code

ROWS: list[dict[str, str]] = [
    {"TAGS": "A"},
    {"TAGS": "B c", "KEYS": "k"},
    {"KEYS": "TAGS", "TAGS": "B"},
    {"TAGS": "a"},
    {"XTAGS": "A"},
    {},
]


@pytest.mark.parametrize("text", ["*", "", " * ", " " * 1000])
def test_a_star_and_nothing_mean_everything(text: str) -> None:
    """Messages without a tag as well."""
    assert parse_tags(text) is EVERYTHING
    assert all(EVERYTHING.accepts(row) for row in ROWS)
    assert all(EVERYTHING.accepts_encoded(encode_properties(row)) for row in ROWS)


def test_tags_are_alternatives_with_blanks_around_them() -> None:
    """`A || B` accepts A and B exactly, by hash first."""
    tags = parse_tags(" A||  B c || ")
    assert tags.tags_codes == frozenset({tags_code("A"), tags_code("B c")})
    wanted = [True, True, False, False, False, False]
    assert [tags.accepts(row) for row in ROWS] == wanted
    assert [tags.accepts_encoded(memoryview(encode_properties(row))) for row in ROWS] == wanted


def test_a_star_among_tags_is_a_tag() -> None:
    """Only alone does it mean everything."""
    assert parse_tags("* || A").tags == frozenset({"*", "A"})


def test_tags_that_share_a_hash_are_told_apart() -> None:
    """Aa and BB have the same Java hash: only the exact comparison tells."""
    assert tags_code("Aa") == tags_code("BB")
    assert not parse_tags("Aa").accepts({"TAGS": "BB"})


@pytest.mark.parametrize("text", ["||", " || || ", "A" * (TAG_EXPRESSION_LENGTH_MAX + 1)])
def test_bars_without_a_tag_and_too_much_text_are_refused(text: str) -> None:
    """Nobody means them."""
    with pytest.raises(FilterExpressionError, match=r"no tag|at most"):
        parse_tags(text)
