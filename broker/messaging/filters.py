"""Which messages of a topic a consumer wants: from the protocol's words to a filter."""

from __future__ import annotations

from contextlib import suppress

from commitbus.broker.filters.errors import FilterExpressionError
from commitbus.broker.filters.tag_filter import TagFilter, parse_tags
from commitbus.broker.messaging.errors import IllegalFilterError, UnsupportedFeatureError
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb

__all__ = ["TagFilter", "check_syntax", "parse_filter"]


def parse_filter(expression: pb.FilterExpression) -> TagFilter:
    """Return the filter that a client asks for; an absent expression accepts everything.

    Raises:
        IllegalFilterError: the expression is empty where it must not be, too long, or has no tag.
        UnsupportedFeatureError: an SQL expression.
    """
    if expression.type == pb.SQL:
        if not expression.expression.strip():
            raise IllegalFilterError("an SQL filter expression cannot be empty")
        raise UnsupportedFeatureError("SQL filter expressions are not supported: filter by tag")
    try:
        return parse_tags(expression.expression)
    except FilterExpressionError as error:
        raise IllegalFilterError(str(error)) from None


def check_syntax(expression: pb.FilterExpression) -> None:
    """Check a filter that is announced, not used yet.

    Raises:
        IllegalFilterError: as in `parse_filter`.
    """
    with suppress(UnsupportedFeatureError):
        parse_filter(expression)
