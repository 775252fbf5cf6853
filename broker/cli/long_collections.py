"""Keeping the garbage collector from looking through all that the broker holds, again and again.

A full collection looks at every object there is and nobody is served meanwhile: a fifth of a second
with a million messages in flight. What has survived one that took long is set aside, as it is in
use. It is freed all the same when nothing refers to it any more, but cycles of it are not. So that
these do not add up for ever, everything is looked at again whenever the process holds twice as much
as it did after the last such look.
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
_FULL: Final = 2


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

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        """Note the begin or the end of a collection."""
        if info["generation"] != _FULL:
            return
        if phase == "start":
            self._begin_s = self._monotonic_s()
        elif self._monotonic_s() - self._begin_s > LONG_S:
            self._set_aside()

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
