"""When the waits of parked receivers end: one timer for all of them."""

from __future__ import annotations

from functools import lru_cache
from heapq import heappop, heappush
from math import ceil, inf
from typing import Final, Protocol, final

import trio

_PER_S: Final = 100


class Waits(Protocol):
    """Something that waits, but not for ever."""

    def time_over(self) -> None:
        """Wait no more; it is forgotten already."""


def shared_deadline_s(at_s: float) -> float:
    """Return the next hundredth of a second, so that many waits end at the same time."""
    return _hundredth(ceil(at_s * _PER_S))


@lru_cache(maxsize=4096)
def _hundredth(number: int) -> float:
    # One object for all that wait until then.
    return number / _PER_S


@final
class Deadlines:
    """Who waits until when. Lives on the trio thread.

    A wait costs its place in a set: of some 2,000 sets, as polls last 20 s and end at
    `shared_deadline_s`. That many can also be ended before their time at no more than that costs.
    """

    def __init__(self) -> None:
        self._waiting: dict[float, set[Waits]] = {}
        self._order: list[float] = []
        """A heap of the keys."""
        self._sooner = trio.Event()

    def add(self, at_s: float, who: Waits) -> None:
        """Have somebody told at this time, on the scale of `trio.current_time()`."""
        waiting = self._waiting.get(at_s)
        if waiting is None:
            waiting = self._waiting[at_s] = set()
            heappush(self._order, at_s)
            if self._order[0] == at_s:
                self._sooner.set()
        waiting.add(who)

    def discard(self, at_s: float, who: Waits) -> None:
        """Forget somebody, if the time has not come yet."""
        if waiting := self._waiting.get(at_s):
            waiting.discard(who)

    async def run(self) -> None:
        """Tell everybody at their time; never returns."""
        while True:
            self._sooner = trio.Event()
            with trio.move_on_at(self._order[0] if self._order else inf):
                await self._sooner.wait()
            self._end_due(trio.current_time())

    def _end_due(self, now_s: float) -> None:
        while self._order and self._order[0] <= now_s:
            waiting = self._waiting.pop(heappop(self._order))
            while waiting:
                waiting.pop().time_over()
