"""Filter expressions: which are understood, and what they let pass."""

from __future__ import annotations

import pytest

from commitbus.broker.filters.tag_filter import EVERYTHING, TAG_EXPRESSION_LENGTH_MAX, parse_tags
from commitbus.broker.messaging.errors import IllegalFilterError, UnsupportedFeatureError
from commitbus.broker.messaging.filters import check_syntax, parse_filter
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb


@pytest.mark.parametrize("kind", [pb.TAG, pb.FILTER_TYPE_UNSPECIFIED])
def test_tags_are_what_is_meant_if_nothing_is_said(kind: pb.FilterType) -> None:
    """And everything, if nothing at all is said."""
    tags = parse_filter(pb.FilterExpression(type=kind, expression="A || B"))
    assert tags == parse_tags("A||B")
    assert parse_filter(pb.FilterExpression(type=kind)) == EVERYTHING


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pb.TAG, "||"),
        (pb.TAG, " || || "),
        (pb.SQL, ""),
        (pb.SQL, "  "),
        (pb.TAG, "A" * (TAG_EXPRESSION_LENGTH_MAX + 1)),
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
