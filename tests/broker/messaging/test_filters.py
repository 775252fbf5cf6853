"""Filter expressions: which are understood, and what they let pass."""

from __future__ import annotations

import pytest

from commitbus.broker.messaging.errors import IllegalFilterError, UnsupportedFeatureError
from commitbus.broker.messaging.filters import (
    EVERYTHING,
    EXPRESSION_LENGTH_MAX,
    check_syntax,
    parse_filter,
)
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from commitbus.commitlog.record_format import tags_code


@pytest.mark.parametrize("text", ["*", "", " * ", "  "])
@pytest.mark.parametrize("kind", [pb.TAG, pb.FILTER_TYPE_UNSPECIFIED])
def test_a_star_and_nothing_mean_everything(text: str, kind: pb.FilterType) -> None:
    """Messages without a tag as well."""
    tags = parse_filter(pb.FilterExpression(type=kind, expression=text))
    assert tags == EVERYTHING
    assert tags.matches("any")
    assert tags.matches(None)


def test_tags_are_alternatives_with_blanks_around_them() -> None:
    """`A || B` accepts A and B exactly, by hash first."""
    tags = parse_filter(pb.FilterExpression(type=pb.TAG, expression=" A||  B c || "))
    assert tags.tags_codes == frozenset({tags_code("A"), tags_code("B c")})
    assert [tags.matches(tag) for tag in ("A", "B c", "B", "a", None)] == [
        *(True, True, False, False, False)
    ]


def test_tags_that_share_a_hash_are_told_apart() -> None:
    """Aa and BB have the same Java hash: only the exact comparison tells."""
    assert tags_code("Aa") == tags_code("BB")
    tags = parse_filter(pb.FilterExpression(type=pb.TAG, expression="Aa"))
    assert not tags.matches("BB")


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pb.TAG, "||"),
        (pb.TAG, " || || "),
        (pb.SQL, ""),
        (pb.SQL, "  "),
        (pb.TAG, "A" * (EXPRESSION_LENGTH_MAX + 1)),
        (pb.SQL, "A" * (EXPRESSION_LENGTH_MAX + 1)),
    ],
)
def test_an_expression_that_selects_nothing_is_illegal(kind: pb.FilterType, text: str) -> None:
    """Empty SQL, no tag between the bars, or more than anybody writes."""
    with pytest.raises(IllegalFilterError):
        parse_filter(pb.FilterExpression(type=kind, expression=text))
    with pytest.raises(IllegalFilterError):
        check_syntax(pb.FilterExpression(type=kind, expression=text))


def test_sql_is_refused_when_used_and_not_when_announced() -> None:
    """A client that announces it must get as far as the receive that tells it why."""
    expression = pb.FilterExpression(type=pb.SQL, expression="a > 5")
    with pytest.raises(UnsupportedFeatureError):
        parse_filter(expression)
    check_syntax(expression)
