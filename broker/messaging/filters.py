"""Which messages of a topic a consumer wants: from the protocol's words to a filter."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import trio

from commitbus.broker.filters.errors import FilterExpressionError, TooManyFiltersError
from commitbus.broker.filters.message_filter import MessageFilter
from commitbus.broker.filters.sql_filter import compile_sql, is_quick
from commitbus.broker.filters.tag_filter import TagFilter, parse_tags
from commitbus.broker.messaging.errors import IllegalFilterError, TooManyRequestsError
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb

_Filter = TypeVar("_Filter", bound=MessageFilter)


def parse_filter(expression: pb.FilterExpression) -> MessageFilter:
    """Return the filter that a client asks for; an absent expression accepts everything.

    Of SQL it may take long: see `prepare_filter`.

    Raises:
        IllegalFilterError: the expression is empty where it must not be, too long, or none.
        TooManyRequestsError: consumers wait with too many long filters already.
    """
    if expression.type == pb.SQL:
        return _made(compile_sql, expression.expression)
    return parse_tag_filter(expression.expression)


def parse_tag_filter(text: str) -> TagFilter:
    """Return the filter for `A || B`; `*` and nothing accept everything.

    Raises:
        IllegalFilterError: the expression is too long, or has no tag.
        TooManyRequestsError: as `parse_filter`.
    """
    return _made(parse_tags, text)


def _made(make: Callable[[str], _Filter], text: str) -> _Filter:
    try:
        return make(text)
    except FilterExpressionError as error:
        raise IllegalFilterError(str(error)) from None
    except TooManyFiltersError as error:
        raise TooManyRequestsError(str(error)) from None


def is_prepared(expression: pb.FilterExpression) -> bool:
    """Return whether `parse_filter` answers at once."""
    return expression.type != pb.SQL or is_quick(expression.expression)


async def prepare_filter(expression: pb.FilterExpression) -> None:
    """Make `parse_filter` answer at once, on a thread where the trio thread would be held up.

    The first SQL expression takes 150 ms, because it loads the parser; a long one 35 ms.

    Raises:
        TooManyRequestsError: as `parse_filter`.
    """
    if not is_prepared(expression):
        with suppress(IllegalFilterError):
            await trio.to_thread.run_sync(parse_filter, expression)
