"""Keeping the garbage collector from looking through all that the broker holds, again and again.

A full collection looks at every object there is and nobody is served meanwhile: a fifth of a second
with a million messages in flight. What has survived one that took long is set aside, as it is in
use. It is freed all the same when nothing refers to it any more; only cycles of it are not, which
the broker has few of, and which are set aside only after many more objects have come.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Final, final

LONG_S: Final = 0.02
_FULL: Final = 2


@final
class LongCollections:
    """Called by the collector, sets aside what survived a long full collection.

    Args:
        monotonic_s: The time.
    """

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._begin_s = 0.0

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        """Note the begin or the end of a collection."""
        if info["generation"] != _FULL:
            return
        if phase == "start":
            self._begin_s = self._monotonic_s()
        elif self._monotonic_s() - self._begin_s > LONG_S:
            gc.freeze()


def set_aside_after_long_collections() -> None:
    """Have the collector look at nothing twice that took long."""
    gc.callbacks.append(LongCollections())
