"""From the expression of a consumer to a filter."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from commitbus.broker.common.errors import IllegalFilterError, TooManyRequestsError
from commitbus.broker.common.worker_lines import address_served, compute_in_worker
from commitbus.broker.filters import sql_filter, tag_filter
from commitbus.broker.filters.errors import FilterExpressionError, TooManyFiltersError
from commitbus.broker.filters.message_filter import MessageFilter
from commitbus.broker.filters.tag_filter import TagFilter

_Filter = TypeVar("_Filter", bound=MessageFilter)


def parse_filter(text: str, *, is_sql: bool) -> MessageFilter:
    """Return the filter of an expression, of SQL92 or of tags.

    It may take long: see `prepare_filter`.

    Raises:
        IllegalFilterError: the expression is empty where it must not be, too long, or none.
        TooManyRequestsError: consumers wait with too many long filters already.
    """
    return _made(sql_filter.compile_sql, text) if is_sql else parse_tag_filter(text)


def parse_tag_filter(text: str) -> TagFilter:
    """Return the filter for `A || B`; `*` and nothing accept everything.

    Raises:
        IllegalFilterError: the expression is too long, or has no tag.
        TooManyRequestsError: as `parse_filter`.
    """
    return _made(tag_filter.parse_tags, text)


def _made(make: Callable[[str], _Filter], text: str) -> _Filter:
    try:
        return make(text)
    except FilterExpressionError as error:
        raise IllegalFilterError(str(error)) from None
    except TooManyFiltersError as error:
        raise TooManyRequestsError(str(error)) from None


def is_prepared(text: str, *, is_sql: bool) -> bool:
    """Return whether `parse_filter` answers at once."""
    return (sql_filter.is_quick if is_sql else tag_filter.is_quick)(text)


async def prepare_filter(text: str, *, is_sql: bool) -> object:
    """Make `parse_filter` answer at once, on a thread where the trio thread would be held up.

    The first SQL expression takes 150 ms, because it loads the parser; a long one 50 ms.

    Returns:
        An object to keep until `parse_filter` was called: without it other filters may push this
        one out of the cache before.

    Raises:
        TooManyRequestsError: as `parse_filter`; or the caller has too much work waiting already.
    """
    if is_prepared(text, is_sql=is_sql):
        return None
    prepare = sql_filter.prepare_sql if is_sql else tag_filter.prepare_tags
    try:
        return await compute_in_worker(prepare, text, address_served())
    except FilterExpressionError:
        return None  # `parse_filter` says so, as soon.
    except TooManyFiltersError as error:
        raise TooManyRequestsError(str(error)) from None
