"""The time of an embedded broker: the machine's, and as much ahead of it as a test has moved it."""

from __future__ import annotations

import os
import threading
import time
from typing import Final, final

import trio
from trio.testing import wait_all_tasks_blocked

ADVANCE_MAX_S: Final = 30 * 24 * 3600.0
"""How far time is moved at once: a month takes minutes."""


@final
class VirtualClock(trio.abc.Clock):
    """A clock of the broker and of its trio run at once, that can be moved from any thread.

    Time goes on by itself as well: a broker whose clock nobody moves behaves like any other.
    """

    def __init__(self) -> None:
        self._ahead_s = 0.0
        self._token: trio.lowlevel.TrioToken | None = None
        self._process = os.getpid()
        self._one_at_a_time = threading.Lock()

    def now_ms(self) -> int:
        """Return wall-clock milliseconds since 1970, UTC."""
        return time.time_ns() // 1_000_000 + round(self._ahead_s * 1000)

    def monotonic_s(self) -> float:
        """Return seconds from an arbitrary start."""
        return time.monotonic() + self._ahead_s

    def advance(self, seconds: float) -> None:
        """Move time forward, and return when everything that was due meanwhile has been done.

        It stops at each timer of the broker on the way, in order: messages whose invisible time
        is over go to those who wait for them, polls end, what push consumers hold is renewed. A
        day takes a few seconds. What a client does about it, it does in its own time.

        A trio task calls it by `trio.to_thread.run_sync`.

        Raises:
            ValueError: `seconds` is negative, no number, or more than `ADVANCE_MAX_S`.
            RuntimeError: the broker is stopped, or runs in the process that this one was forked
                from, or this is called from a trio task.
        """
        if seconds < 0:
            raise ValueError(f"time does not go backwards: {seconds} s")
        # Not-a-number is neither less nor more.
        if not seconds <= ADVANCE_MAX_S:
            raise ValueError(f"time is moved by 0 to {ADVANCE_MAX_S:.0f} s at once: {seconds} s")
        if os.getpid() != self._process:
            raise RuntimeError(
                f"the broker runs in process {self._process}, which this one was forked from: "
                "its time is moved there only"
            )
        with self._one_at_a_time:
            assert self._token is not None, "the broker runs"
            try:
                trio.from_thread.run(self._advance, seconds, trio_token=self._token)
            except (trio.RunFinishedError, trio.Cancelled):
                raise RuntimeError("the broker is stopped") from None

    async def _advance(self, seconds: float) -> None:
        await wait_all_tasks_blocked()
        while seconds > 0:
            due_s = trio.lowlevel.current_statistics().seconds_to_next_deadline
            step_s = min(max(due_s, 0.0), seconds)
            self._ahead_s += step_s
            seconds -= step_s
            await wait_all_tasks_blocked()

    # What trio asks

    def start_clock(self) -> None:
        """Note which run this is the clock of."""
        self._token = trio.lowlevel.current_trio_token()

    def current_time(self) -> float:
        """Return the time of trio's deadlines."""
        return self.monotonic_s()

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Return how long trio may sleep, should nobody move the clock meanwhile."""
        return deadline - self.monotonic_s()
