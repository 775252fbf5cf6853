"""What clients that are gone held, until it is released."""

from __future__ import annotations

from collections import deque
from typing import final

import trio

from commitbus.broker.progress.holdings import Holding

Held = dict[Holding, None]


@final
class Leavers:
    """What each client held when it left, in that order. Lives on the trio thread."""

    def __init__(self) -> None:
        self._held: deque[Held] = deque()
        self._changed = trio.Event()

    def add(self, held: Held) -> None:
        """Add what a client holds no more: should it come back, what it gets then is not in it."""
        if held:
            self._held.append(held)
            self._changed.set()

    async def next(self) -> Held:
        """Wait for a client that is gone, and return what it held."""
        while not self._held:
            self._changed = trio.Event()
            await self._changed.wait()
        return self._held.popleft()
