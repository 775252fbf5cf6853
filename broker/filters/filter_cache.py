"""Filters by expression: equal ones share one, and all of them together take bounded memory.

Consumers wait with their filters, and a filter takes up to a hundred times as much memory as its
expression has characters.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar, final
from weakref import ref

from commitbus.broker.filters.errors import TooManyFiltersError

RECENT_MAX: Final = 100
"""Filters that are kept although nobody uses them; RocketMQ's number of SQL expressions."""
SHORT_LENGTH_MAX: Final = 64
"""Characters of an expression for which there always is room: its filter takes at most 8 KB."""

Filter = TypeVar("Filter")


@final
class _Alive(ref[Filter]):
    """A filter that is in use or cached."""

    __slots__ = ("owner", "text")
    text: str
    owner: str


@final
class FilterCache(Generic[Filter]):
    """Makes filters of expressions. Thread-safe; but for making one each call takes constant time.

    Args:
        make: Makes the filter of an expression.
        length_max: In characters, of all expressions whose filters are in use or cached. Those that
            one owner was the first to ask for may have half of it.
    """

    def __init__(self, make: Callable[[str], Filter], *, length_max: int) -> None:
        self._make = make
        self.length_max = length_max
        self._alive: dict[str, _Alive[Filter]] = {}
        self._length = 0
        # By owner. Without an entry for those that have none.
        self._lengths = Counter[str]()
        # What is alive no more. Filled by the interpreter, at any time and on any thread.
        self._gone = deque[_Alive[Filter]]()
        # Those asked for last at the end.
        self._recent: dict[str, Filter] = {}
        self._lock = threading.Lock()

    def __contains__(self, text: str) -> bool:
        """Return whether `get` need not make the filter."""
        alive = self._alive.get(text)
        return alive is not None and alive() is not None

    def get(self, text: str, owner: str = "") -> Filter:
        """Return the filter of an expression.

        Args:
            text: the expression.
            owner: whose share it counts for if it is made now; without a name it has no limit but
                that of all.

        Raises:
            TooManyFiltersError: There is no room for one more.
        """
        with self._lock:
            made = self._get(text)
            if made is None and len(text) > SHORT_LENGTH_MAX:
                self._check_room(owner)
        if made is None:
            made = self._make(text)
        with self._lock:
            made = self._keep(text, made, owner)
            self._recent.pop(text, None)
            self._recent[text] = made
            if len(self._recent) > RECENT_MAX:
                del self._recent[next(iter(self._recent))]
        return made

    def _get(self, text: str) -> Filter | None:
        alive = self._alive.get(text)
        return None if alive is None else alive()

    def _check_room(self, owner: str) -> None:
        self._forget_gone()
        if self._length > self.length_max:
            raise TooManyFiltersError("too many consumers wait with long filters of their own")
        if owner and self._lengths[owner] > self.length_max // 2:
            raise TooManyFiltersError(f"{owner} waits with too many long filters of its own")

    def _keep(self, text: str, made: Filter, owner: str) -> Filter:
        """Return the filter that another thread has made meanwhile, else keep this one."""
        if (known := self._get(text)) is not None:
            return known
        self._forget_gone()
        alive = self._alive[text] = _Alive(made, self._gone.append)
        alive.text, alive.owner = text, owner
        self._length += len(text)
        self._lengths[owner] += len(text)
        return made

    def _forget_gone(self) -> None:
        while self._gone:
            alive = self._gone.popleft()
            # Else it was made anew before this was noted.
            if self._alive.get(alive.text) is alive:
                del self._alive[alive.text]
            self._length -= len(alive.text)
            self._lengths[alive.owner] -= len(alive.text)
            if not self._lengths[alive.owner]:
                del self._lengths[alive.owner]
