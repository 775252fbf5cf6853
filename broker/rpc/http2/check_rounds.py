"""When to look whether a client never began, has vanished, or takes nothing."""

from __future__ import annotations

import heapq
from math import inf
from typing import Final, Protocol, final
from weakref import ref

import trio

_AT_ONCE: Final = 100
"""Connections looked at before other tasks have their turn."""


class Checked(Protocol):
    """A connection that is looked at now and then."""

    def check(self, now_s: float) -> float:
        """Do what is due; return the seconds until the next look, `inf` for none."""


@final
class CheckRounds:
    """Looks at each connection when it is due, never at all of them together."""

    def __init__(self, step_s: float) -> None:
        """`step_s` is how late a look may come."""
        self._step_s = step_s
        # Not the connections themselves: one that has ended is to be forgotten at once, with all
        # that its client did not read.
        self._due: list[tuple[float, int, ref[Checked]]] = []
        self._number = 0

    def add(self, connection: Checked, after_s: float) -> None:
        """Have a connection looked at after so many seconds, and then as `check` says."""
        if after_s < inf:
            # The number settles which of two comes first: connections cannot be compared.
            self._number += 1
            due_s = trio.current_time() + after_s
            heapq.heappush(self._due, (due_s, self._number, ref(connection)))

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await trio.sleep(self._step_s)
            now_s = trio.current_time()
            looks_left = _AT_ONCE
            while self._due and self._due[0][0] <= now_s:
                connection = heapq.heappop(self._due)[2]()
                if connection is not None:
                    self.add(connection, connection.check(now_s))
                    del connection
                looks_left -= 1
                if not looks_left:
                    looks_left = _AT_ONCE
                    await trio.lowlevel.checkpoint()
