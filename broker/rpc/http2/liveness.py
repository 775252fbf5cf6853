"""Whether a client is there: it has begun to speak HTTP/2, and answers when it is asked."""

from __future__ import annotations

from enum import Enum
from typing import final

from commitbus.broker.rpc.http2.limits import ServerLimits


@final
class Verdict(Enum):
    """What a look at a client finds."""

    THERE = "there"
    ASK = "a ping is due"
    GONE = "it did not answer a ping"
    NEVER_BEGAN = "it has not begun"


@final
class Liveness:
    """When a client was heard of. Times are on the scale of `trio.current_time()`."""

    __slots__ = ("_limits", "_opened_s", "_pinged_s", "heard_s")

    def __init__(self, limits: ServerLimits, now_s: float) -> None:
        self._limits = limits
        self._opened_s = self.heard_s = now_s
        self._pinged_s: float | None = None

    def look(self, now_s: float, *, is_established: bool) -> Verdict:
        """Return what is to be done; after `ASK`, a ping counts as sent."""
        limits = self._limits
        if not is_established:
            is_late = now_s - self._opened_s > limits.preface_s
            return Verdict.NEVER_BEGAN if is_late else Verdict.THERE
        if self._pinged_s is None or self.heard_s >= self._pinged_s:
            self._pinged_s = None
            if now_s - self.heard_s <= limits.keepalive_s:
                return Verdict.THERE
            self._pinged_s = now_s
            return Verdict.ASK
        is_late = now_s - self._pinged_s > limits.keepalive_timeout_s
        return Verdict.GONE if is_late else Verdict.THERE
