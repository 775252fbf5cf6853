"""Filter expressions: which are understood, and what they let pass."""

from __future__ import annotations

import pytest
import trio

from commitbus.broker.common.errors import IllegalFilterError
from commitbus.broker.filters.tag_filter import EVERYTHING, TAG_EXPRESSION_LENGTH_MAX, parse_tags
from commitbus.broker.messaging.filters import is_prepared, parse_filter, prepare_filter
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
        (pb.TAG, "A" * (TAG_EXPRESSION_LENGTH_MAX + 1)),
        (pb.SQL, ""),
        (pb.SQL, "  "),
        (pb.SQL, "a LIKE 'x%'"),
        (pb.SQL, f"a = '{'x' * 8192}'"),
    ],
)
def test_an_expression_that_selects_nothing_is_illegal(kind: pb.FilterType, text: str) -> None:
    """Empty or wrong SQL, no tag between the bars, or more than anybody writes."""
    expression = pb.FilterExpression(type=kind, expression=text)
    trio.run(prepare_filter, expression)
    assert is_prepared(expression)
    with pytest.raises(IllegalFilterError):
        parse_filter(expression)


def test_sql_is_compiled_before_the_trio_thread_needs_it() -> None:
    """On another thread, and kept."""
    expression = pb.FilterExpression(type=pb.SQL, expression="only_here > 5")
    assert not is_prepared(expression)
    trio.run(prepare_filter, expression)
    assert is_prepared(expression)
    assert parse_filter(expression).accepts({"only_here": "6"})
