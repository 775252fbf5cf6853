"""Keeping the garbage collector from looking through all that the broker holds, again and again.

A full collection looks at every object there is and nobody is served meanwhile: a fifth of a second
with a million messages in flight. What has survived one that took long is set aside, as it is in
use. It is freed all the same when nothing refers to it any more, but cycles of it are not. So that
these do not add up for ever, everything is looked at again whenever the process holds twice as much
as it did after the last such look.

With thousands of connections even a short full collection takes 50 ms, and a client that opens
streams without end makes one follow the other. So the collector rests after each one, for as many
times as long as it took.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from typing import Final, final

LONG_S: Final = 0.02
ALLOCATED_BLOCKS_MIN: Final = 2_000_000
"""Pieces of memory, 100 bytes each, up to which nothing is looked at again."""
RESTS: Final = 20
"""The rest after a full collection, in multiples of its length."""
_FULL: Final = 2
_NEVER: Final = 1 << 30


@final
class LongCollections:
    """Called by the collector, sets aside what survived a long full collection.

    Args:
        monotonic_s: The time.
        allocated_blocks: Returns how many pieces of memory are in use.
    """

    def __init__(
        self,
        monotonic_s: Callable[[], float] = time.monotonic,
        allocated_blocks: Callable[[], int] = sys.getallocatedblocks,
    ) -> None:
        self._monotonic_s, self._allocated_blocks = monotonic_s, allocated_blocks
        self._begin_s = 0.0
        self._blocks_max = self._twice_of_now()
        self._looks_at_all = False
        self._thresholds = gc.get_threshold()
        self._rests_until_s = 0.0

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        """Note the begin or the end of a collection."""
        if info["generation"] != _FULL:
            self._wake()
        elif phase == "start":
            self._begin_s = self._monotonic_s()
        else:
            now_s = self._monotonic_s()
            took_s = now_s - self._begin_s
            if took_s > LONG_S:
                self._set_aside()
            self._rest(now_s, took_s)

    def _rest(self, now_s: float, took_s: float) -> None:
        self._rests_until_s = now_s + RESTS * took_s
        gc.set_threshold(*self._thresholds[:_FULL], _NEVER)

    def _wake(self) -> None:
        """Allow the next full collection, if the rest is over; the younger ones come often."""
        if self._rests_until_s and self._monotonic_s() >= self._rests_until_s:
            self._rests_until_s = 0.0
            gc.set_threshold(*self._thresholds)

    def _set_aside(self) -> None:
        if self._looks_at_all:
            self._looks_at_all, self._blocks_max = False, self._twice_of_now()
        elif self._allocated_blocks() > self._blocks_max:
            # The next full collection is the one that looks at all.
            gc.unfreeze()
            self._looks_at_all = True
            return
        gc.freeze()

    def _twice_of_now(self) -> int:
        return 2 * max(self._allocated_blocks(), ALLOCATED_BLOCKS_MIN // 2)


def set_aside_after_long_collections() -> None:
    """Have what survives a long full collection set aside, from now on."""
    gc.callbacks.append(LongCollections())
