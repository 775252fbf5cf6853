"""Time as a parameter: nothing in the store reads the wall clock itself."""

from __future__ import annotations

import time
from typing import Protocol, final


class Clock(Protocol):
    """The two clocks a store needs. Safe to call from any thread."""

    def now_ms(self) -> int:
        """Return wall-clock milliseconds since 1970, UTC. May step backwards."""

    def monotonic_s(self) -> float:
        """Return seconds from an arbitrary start. Never steps backwards."""


@final
class SystemClock:
    """The clock of this machine."""

    __slots__ = ()

    def now_ms(self) -> int:
        """Return wall-clock milliseconds since 1970, UTC."""
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        """Return seconds from an arbitrary start."""
        return time.monotonic()
