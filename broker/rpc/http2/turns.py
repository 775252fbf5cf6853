"""Fair use of the one thread: connections that keep it busy take turns, others are served at once.

Every connection may read whenever something has arrived. That is fair as long as nobody's work
fills the thread. But a few clients that send as fast as they can make each scheduler tick last as
long as all their reads together, and everybody waits for that. So a connection is busy whose reads
bring much work each, or whose address has used a large share of the thread lately. The busy ones
together are given one budget in each tick. An address that used less is served earlier, by at most
`_USED_MAX_S`: nobody waits for ever.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Final, final
from weakref import WeakValueDictionary

import trio

TURN_S: Final = 0.002
"""The longest that one connection works before others have their turn."""
_TICK_S: Final = 0.002
"""The work of all busy connections in one scheduler tick."""
_SPENT_MAX_S: Final = 5 * _TICK_S
"""The most that is remembered of a turn that took too long."""
_LIGHT_SHARE: Final = 0.4
"""An address that uses no more of the thread than this is never busy."""
_BURST_S: Final = 0.005
"""An address may use so much at once and stay light."""
_USED_MAX_S: Final = 0.25
"""More than this is not remembered."""
_SHORT_S: Final = 0.001
"""A connection whose reads bring no more work than this is not busy."""
_SMOOTHING: Final = 0.25
_TASK_S: Final = 0.0003
"""The cost of a handler that needs a task, beyond its measured beginning."""


@final
class Turns:
    """The budget of the busy connections, and those that wait for it.

    Args:
        thread_s: Returns the processor time of the thread.
    """

    def __init__(self, thread_s: Callable[[], float] = time.thread_time) -> None:
        self.thread_s = thread_s
        self._spent_s = 0.0
        """By busy connections since the last tick's budget was given out."""
        self._waiting: list[tuple[float, int]] = []
        """A heap of when each is due and its number; some may have left."""
        self._waiters: dict[int, tuple[trio.Event, float]] = {}
        """By number: what wakes it, and how long its turn will take."""
        self._numbers = count()
        self._asleep = trio.lowlevel.ParkingLot()
        self._uses: WeakValueDictionary[str, _Use] = WeakValueDictionary()

    def load_of(self, address: str) -> Load:
        """Return the load of a new connection from an address."""
        use = self._uses.get(address)
        if use is None:
            use = self._uses[address] = _Use()
        return Load(self, use)

    async def wait(self, used_s: float, turn_s: float) -> None:
        """Wait while the budget is spent, or others wait.

        Args:
            used_s: What the connection's address has used lately: it comes so much later.
            turn_s: What a turn of the connection takes on average.
        """
        if self._spent_s < _TICK_S and not self._waiters:
            return
        self._asleep.unpark()
        number, event = next(self._numbers), trio.Event()
        self._waiters[number] = event, turn_s
        heappush(self._waiting, (trio.current_time() + used_s, number))
        try:
            await event.wait()
        finally:
            self._waiters.pop(number, None)

    def spend(self, seconds: float) -> None:
        """Note work that a busy connection has done."""
        self._asleep.unpark()
        self._spent_s = min(self._spent_s + seconds, _SPENT_MAX_S)

    async def run(self) -> None:
        """Give out the budget of each tick until cancelled."""
        while True:
            if not self._waiting and not self._spent_s:
                await self._asleep.park()
            # The excess over the budget is missing in the next ticks.
            self._spent_s = max(0.0, self._spent_s - _TICK_S)
            self._wake_some()
            await trio.lowlevel.checkpoint()

    def _wake_some(self) -> None:
        """Wake those whose turns fit into the budget; one of them in any case."""
        left_s = _TICK_S - self._spent_s
        while self._waiting and left_s > 0:
            _, number = heappop(self._waiting)
            waiter = self._waiters.pop(number, None)
            if waiter is not None:
                event, turn_s = waiter
                event.set()
                left_s -= turn_s


@final
class _Use:
    """How much of the thread an address uses. Idle time makes up for it."""

    __slots__ = ("__weakref__", "_at_s", "used_s")

    def __init__(self) -> None:
        self.used_s = self._at_s = 0.0

    def add(self, spent_s: float) -> None:
        now_s = time.monotonic()
        idle_s = now_s - self._at_s
        self._at_s = now_s
        self.used_s = min(max(0.0, self.used_s - idle_s * _LIGHT_SHARE) + spent_s, _USED_MAX_S)


@final
class Load:
    """How much of the thread a connection uses, and its address."""

    __slots__ = ("_tasks", "_turn_s", "_turns", "_use")

    def __init__(self, turns: Turns, use: _Use) -> None:
        self._turns, self._use = turns, use
        self._turn_s = 0.0
        """The length of a turn: the longest of late, which is forgotten little by little."""
        self._tasks = 0

    @property
    def is_busy(self) -> bool:
        """Return whether the connection has to wait for its turns."""
        return self._turn_s > _SHORT_S or self._use.used_s > _BURST_S

    def begin(self) -> float:
        """Return the time at which a turn begins, for `spent_s` and `end`."""
        self._tasks = 0
        return self._turns.thread_s()

    def task_started(self) -> None:
        """Note a handler that needs a task."""
        self._tasks += 1

    def connection_ended(self) -> None:
        """Note the end of the connection, which is work as well: a thousand may end at once."""
        begin_s = self.begin()
        self.task_started()
        self.end(begin_s)

    def spent_s(self, begin_s: float) -> float:
        """Return how much of the thread a turn has used that began at a time."""
        return self._turns.thread_s() - begin_s + self._tasks * _TASK_S

    async def wait(self) -> None:
        """Wait for a turn, if the connection is busy."""
        if self.is_busy:
            await self._turns.wait(self._use.used_s, self._turn_s)

    def end(self, begin_s: float) -> None:
        """Note the end of a turn that began at a time."""
        spent_s = self.spent_s(begin_s)
        fading_s = self._turn_s + (spent_s - self._turn_s) * _SMOOTHING
        self._turn_s = max(spent_s, fading_s)
        self._use.add(spent_s)
        if self.is_busy:
            self._turns.spend(spent_s)
