"""Filters by SQL expression, compiled once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

from commitbus.broker.filters.encoded_properties import PropertyFinder
from commitbus.broker.filters.errors import FilterExpressionError
from commitbus.broker.filters.filter_cache import FilterCache
from commitbus.broker.filters.java_values import ConversionError
from commitbus.broker.filters.sql_scan import scan

if TYPE_CHECKING:
    from commitbus.broker.filters.sql_terms import Term

SQL_EXPRESSION_LENGTH_MAX: Final = 8192
"""In characters. The longest takes 50 ms to compile and 1 MB to keep."""
ALIVE_LENGTH_MAX: Final = 1 << 21
"""In characters, of all expressions whose filters are in use or cached: 256 MB."""


@final
class SqlFilter:
    """Accepts messages for which a condition on their properties is true, not false or unknown.

    A comparison that RocketMQ answers with an exception (a text that is no number) makes the whole
    condition not true, wherever it is evaluated.
    """

    __slots__ = ("__weakref__", "_evaluate", "_finder")

    tags_codes: Final = None
    reads_properties: Final = True

    def __init__(self, condition: Term, names: Iterable[str]) -> None:
        self._evaluate: Final = condition.evaluate
        self._finder: Final = PropertyFinder(sorted(names))

    def accepts(self, properties: Mapping[str, str]) -> bool:
        """See `MessageFilter`."""
        try:
            return self._evaluate(properties) is True
        except ConversionError:
            return False

    def accepts_encoded(self, properties: bytes | memoryview) -> bool:
        """See `MessageFilter`."""
        return self.accepts(self._finder.find(properties))


@final
@dataclass(frozen=True, slots=True, weakref_slot=True)
class _Refusal:
    """Why there is no filter: kept like one, so that asking again for nonsense is cheap too."""

    reason: str


def compile_sql(text: str) -> SqlFilter:
    """Return the filter for an SQL92 expression, from a cache if anybody has it or had it lately.

    Thread-safe.

    Raises:
        FilterExpressionError: It is empty, too long, too deep, or no such expression.
        TooManyFiltersError: There is no room for one more.
    """
    if len(text) > SQL_EXPRESSION_LENGTH_MAX:
        raise FilterExpressionError(
            f"SQL filter expression of {len(text)} characters, at most "
            f"{SQL_EXPRESSION_LENGTH_MAX} are allowed"
        )
    compiled = cache.get(text)
    if isinstance(compiled, _Refusal):
        raise FilterExpressionError(compiled.reason)
    return compiled


def prepare_sql(text: str, owner: str) -> object:
    """Compile an expression, valid or not, for as long as the returned object is kept.

    Args:
        text: of at most `SQL_EXPRESSION_LENGTH_MAX` characters.
        owner: see `FilterCache.get`.

    Raises:
        TooManyFiltersError: There is no room for one more.
    """
    return cache.get(text, owner)


def is_quick(text: str) -> bool:
    """Return whether `compile_sql` answers at once; else it takes milliseconds, the first time."""
    return len(text) > SQL_EXPRESSION_LENGTH_MAX or text in cache


def _compile(text: str) -> SqlFilter | _Refusal:
    if not text.strip():
        return _Refusal("an SQL filter expression cannot be empty")
    # Only who uses SQL pays for the parser: 0.1 s and 15 MB.
    from commitbus.broker.filters.sql_parser import parse  # noqa: PLC0415 - as said

    try:
        scanned = scan(text)
        return SqlFilter(parse(scanned.text), scanned.names)
    except FilterExpressionError as error:
        return _Refusal(f"SQL filter expression: {error}")


cache: Final = FilterCache(_compile, length_max=ALIVE_LENGTH_MAX)
