"""The clock and the threads that a store gets in the simulation."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, final

from commitbus.commitlog.file_ages import SETTLE_S
from tests.simulation.scheduler import START_MS, Scheduler, SimulationError, Task


@final
class SimulatedClock:
    """The scheduler's time, and a wall clock that can be set wrong."""

    def __init__(self, scheduler: Scheduler, start_ms: int = START_MS) -> None:
        self._scheduler, self._start_ms = scheduler, start_ms
        self.error_ms = 0
        self.first_error_ms = 0
        """An error from before the start, which is mended before the store believes the clock."""

    def true_ms(self) -> int:
        """Return what a clock that is right would say."""
        return self._start_ms + int(self._scheduler.now_s * 1000)

    def now_ms(self) -> int:
        first_error_ms = self.first_error_ms if self._scheduler.now_s < SETTLE_S / 2 else 0
        return self.true_ms() + self.error_ms + first_error_ms

    def monotonic_s(self) -> float:
        return self._scheduler.now_s


@final
class SimulatedThreads:
    """The store's threads, of which the scheduler lets one run at a time."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.sleep = scheduler.sleep

    def lock(self) -> SimulatedLock:
        return SimulatedLock(self._scheduler)

    def condition(self) -> SimulatedCondition:
        return SimulatedCondition(self._scheduler)

    def event(self) -> SimulatedEvent:
        return SimulatedEvent(self._scheduler)

    def thread(self, target: Callable[[], None], name: str) -> SimulatedThread:
        return SimulatedThread(self._scheduler, target, name)


@final
class SimulatedLock:
    """A mutex."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._owner: Task | None = None
        self._waiters: deque[Task] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:  # noqa: FBT001, FBT002 - the signature of threading.Lock
        self._scheduler.point("lock")
        return self.take(blocking=blocking, timeout=timeout)

    def take(self, *, blocking: bool = True, timeout: float = -1) -> bool:
        """Acquire, without a point before."""
        scheduler = self._scheduler
        while self._owner is not None:
            if not blocking:
                return False
            if self._owner is scheduler.current:
                scheduler.fail(SimulationError(f"{self._owner.name} locks itself out"))
            if not scheduler.block(self._waiters, None if timeout < 0 else timeout, "a lock"):
                return False
        self._owner = scheduler.current
        return True

    def release(self) -> None:
        self._owner = None
        self._scheduler.wake(self._waiters)

    def locked(self) -> bool:
        return self._owner is not None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()


@final
class SimulatedCondition:
    """A condition variable with a lock of its own."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._lock = SimulatedLock(scheduler)
        self._waiters: deque[Task] = deque()

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        self._lock.release()
        was_woken = self._scheduler.block(self._waiters, timeout, "a condition")
        # Memory is never short here: a thread always gets back the lock that it gave up.
        self._scheduler.point("lock", may_fail=False)
        self._lock.take()
        return was_woken

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        end_s = None if timeout is None else self._scheduler.now_s + timeout
        while not (result := predicate()):
            rest = None if end_s is None else end_s - self._scheduler.now_s
            if rest is not None and rest <= 0:
                return result
            self.wait(rest)
        return result

    def notify(self, n: int = 1) -> None:
        for _ in range(min(n, len(self._waiters))):
            self._scheduler.wake(self._waiters)

    def notify_all(self) -> None:
        self.notify(len(self._waiters))


@final
class SimulatedEvent:
    """An event."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._is_set = False
        self._waiters: deque[Task] = deque()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._scheduler.point("ring")
        self._is_set = True
        for _ in range(len(self._waiters)):
            self._scheduler.wake(self._waiters)

    def clear(self) -> None:
        self._scheduler.point("clear")
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        scheduler = self._scheduler
        scheduler.point("wait")
        if self._is_set:
            return True
        return scheduler.block(self._waiters, timeout, "an event") or self._is_set


@final
class SimulatedThread:
    """A thread."""

    def __init__(self, scheduler: Scheduler, function: Callable[[], None], name: str) -> None:
        self._scheduler, self._function, self.name = scheduler, function, name
        self._task: Task | None = None

    def start(self) -> None:
        self._task = self._scheduler.spawn(self._function, self.name)

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.is_over

    def join(self, timeout: float | None = None) -> None:
        assert self._task is not None, "it was started"
        self._scheduler.join(self._task, timeout)
