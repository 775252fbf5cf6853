"""The protocol's filter expressions as the core takes them."""

from __future__ import annotations

from collections.abc import Awaitable

from commitbus.broker.core import filtering
from commitbus.broker.filters.message_filter import MessageFilter
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb


def parse_filter(expression: pb.FilterExpression) -> MessageFilter:
    """Return the filter that a client asks for; an absent expression accepts everything.

    Raises:
        RequestError: as `filtering.parse_filter`.
    """
    return filtering.parse_filter(expression.expression, is_sql=expression.type == pb.SQL)


def is_prepared(expression: pb.FilterExpression) -> bool:
    """Return whether `parse_filter` answers at once."""
    return filtering.is_prepared(expression.expression, is_sql=expression.type == pb.SQL)


def prepare_filter(expression: pb.FilterExpression) -> Awaitable[object]:
    """Make `parse_filter` answer at once; the result of the wait is to be kept until then."""
    return filtering.prepare_filter(expression.expression, is_sql=expression.type == pb.SQL)
