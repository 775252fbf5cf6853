"""Filters by expression: equal ones share one, and all of them together take bounded memory.

Consumers wait with their filters, and a filter takes up to a hundred times as much memory as its
expression has characters.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, Generic, TypeVar, final
from weakref import WeakValueDictionary

from commitbus.broker.filters.errors import TooManyFiltersError

RECENT_MAX: Final = 100
"""Filters that are kept although nobody uses them; RocketMQ's number of SQL expressions."""
SHORT_LENGTH_MAX: Final = 64
"""Of an expression, in characters, that there always is room for: it takes no more than 8 KB."""

Filter = TypeVar("Filter")


@final
class FilterCache(Generic[Filter]):
    """Makes filters of expressions. Thread-safe.

    Args:
        make: Makes the filter of an expression.
        length_max: In characters, of all expressions whose filters are in use or cached.
    """

    def __init__(self, make: Callable[[str], Filter], *, length_max: int) -> None:
        self._make = make
        self.length_max = length_max
        self._alive = WeakValueDictionary[str, Filter]()
        # Those asked for last at the end.
        self._recent: dict[str, Filter] = {}
        self._lock = threading.Lock()

    def __contains__(self, text: str) -> bool:
        """Return whether `get` need not make the filter."""
        return text in self._alive

    def get(self, text: str) -> Filter:
        """Return the filter of an expression.

        Raises:
            TooManyFiltersError: There is no room for one more.
        """
        with self._lock:
            made = self._alive.get(text)
            is_long = len(text) > SHORT_LENGTH_MAX
            if made is None and is_long and sum(map(len, self._alive)) > self.length_max:
                raise TooManyFiltersError("too many consumers wait with long filters of their own")
        if made is None:
            made = self._make(text)
        with self._lock:
            made = self._alive.setdefault(text, made)
            self._recent.pop(text, None)
            self._recent[text] = made
            if len(self._recent) > RECENT_MAX:
                del self._recent[next(iter(self._recent))]
        return made
