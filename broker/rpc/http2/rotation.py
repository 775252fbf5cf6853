"""Many who wait for the same, looked at a few at a time."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar, final

_AT_ONCE: Final = 128
"""Looked at in one step: 50 us."""

_T = TypeVar("_T", bound=Hashable)


@final
class Rotation(Generic[_T]):
    """Items in the order in which they are looked at.

    A client may have 10,000 streams that wait, and make each of its packets a reason to look at
    them: other connections must have their turn in between.
    """

    __slots__ = ("_left", "items")

    def __init__(self) -> None:
        self.items: dict[_T, None] = {}
        """Those that wait."""
        self._left = 0

    def add(self, item: _T) -> None:
        """Have an item wait for the next `start`."""
        self.items[item] = None

    def discard(self, item: _T) -> None:
        """Have an item wait no more."""
        self.items.pop(item, None)

    def clear(self) -> None:
        """Forget all."""
        self.items.clear()
        self._left = 0

    def start(self) -> None:
        """Have `step` look at each of those that wait now."""
        self._left = len(self.items)

    def step(self, is_done: Callable[[_T], bool]) -> bool:
        """Look at the next few and drop those that are done; return whether more are to come."""
        count = min(self._left, _AT_ONCE)
        self._left -= count
        waiting = self.items
        for _ in range(min(count, len(waiting))):
            item = next(iter(waiting))
            del waiting[item]
            if not is_done(item):
                waiting[item] = None
        return self._left > 0 and bool(waiting)
