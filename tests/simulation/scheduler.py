"""Threads of the production store under a deterministic scheduler, in virtual time.

The storage packages take `Thread`, `Lock`, `Condition` and `Event` from the module `threading`.
While a `Scheduler` is installed, that name means `SimulatedThreading` in each of their modules:
threads are real ones, but exactly one runs at a time, and a seeded generator decides at every
*point* who goes on. A point lies before each lock, wait, ring and file operation, and, where a
scheduler was told to trace source files, before each of their lines: that finds races which lie
between two statements. Time moves only when nobody can run, or when an operation takes some.

Any point may be the last one: `die` ends all threads at once, as a kill or a power cut does.
"""

from __future__ import annotations

import random
import sys
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType, ModuleType, TracebackType
from typing import Any, Final, Self, final

PACKAGES: Final = ("commitbus.commitlog", "commitbus.consumequeue", "commitbus.indexfile",
                   "commitbus.flush", "commitbus.broker.store")  # fmt: skip
LEFT_ALONE: Final = "commitbus.commitlog.kernels"
"""Chosen once for a process, by a lock that no simulated thread waits for."""
START_MS: Final = 1_700_000_000_000


class Killed(BaseException):
    """The simulated process is dead: no `except Exception` of the store may hold this up."""


class SimulationError(Exception):
    """Something that no legal run of the store does."""


def repeatable(seed: int | str) -> random.Random:
    """Return a source of the same numbers each time."""
    return random.Random(seed)  # noqa: S311 - repeatable, not secret


@final
class Task:
    """A thread of the store, or of the workload."""

    def __init__(self, name: str, number: int, weight: float) -> None:
        self.name, self.number, self.weight = name, number, weight
        self.gate = threading.Lock()
        self.gate.acquire()
        self.wakes_at_s: float | None = None
        self.waits_in: deque[Task] | None = None
        self.waits_for = ""
        self.timed_out = False
        self.is_over = False
        self.joiners: deque[Task] = deque()
        self.thread: threading.Thread | None = None


@final
class Scheduler:
    """Runs tasks one at a time. The thread that makes it is the task `main`."""

    def __init__(
        self,
        seed: int | str,
        *,
        switch_probability: float = 0.15,
        traced_files: frozenset[str] = frozenset(),
        points_max: int = 400_000,
        seconds_max: float = 3_600.0,
    ) -> None:
        self.rng = repeatable(seed)
        self.now_s = 0.0
        self.points = 0
        self.is_dead = False
        self.failure: BaseException | None = None
        self.on_point: Callable[[str], None] | None = None
        self.on_death: Callable[[], None] | None = None
        """Called once, at the moment of death, before any thread cleans up."""
        self.dies_at: int | None = None
        self.trail: deque[str] = deque(maxlen=60)
        """The last points, for the report of a failure."""
        self.digest = 0
        """Of all points: two runs of one seed must have the same."""
        self._switch_probability = switch_probability
        self._traced_files = traced_files
        self._points_max, self._seconds_max = points_max, seconds_max
        self._main = Task("main", 0, 1.0)
        self._tasks = [self._main]
        self._runnable = [self._main]
        self.current = self._main

    # What tasks call

    def point(self, label: str) -> None:
        """Perhaps let another task go on, perhaps end it all."""
        if self.is_dead:
            raise Killed
        self.points += 1
        self.trail.append(label)
        self.digest = zlib.crc32(label.encode(), self.digest ^ self.current.number)
        if self.on_point is not None:
            self.on_point(label)
        if self.dies_at is not None and self.points >= self.dies_at:
            self.die()
        if self.points > self._points_max:
            self.fail(SimulationError(f"no end after {self.points} points"))
        if len(self._runnable) > 1 and self.rng.random() < self._switch_probability:
            self._hand_over()

    def sleep(self, seconds: float) -> None:
        """Let virtual time pass for this task."""
        self.block(deque(), seconds, "sleep")

    def block(self, waiters: deque[Task], timeout_s: float | None, what: str) -> bool:
        """Wait in a queue until somebody wakes us; return False at the time limit."""
        if self.is_dead:
            raise Killed
        task = self.current
        waiters.append(task)
        task.waits_in, task.waits_for = waiters, what
        task.wakes_at_s = None if timeout_s is None else self.now_s + max(timeout_s, 0.0)
        task.timed_out = False
        self._runnable.remove(task)
        self._hand_over()
        return not task.timed_out

    def wake(self, waiters: deque[Task]) -> None:
        """Let the first of the waiters go on."""
        if waiters:
            task = waiters.popleft()
            task.waits_in, task.wakes_at_s = None, None
            self._runnable.append(task)

    def spawn(self, function: Callable[[], None], name: str) -> Task:
        """Make a task that runs `function`; it begins at one of the next points."""
        weight = self.rng.choice((0.1, 1.0, 1.0, 1.0, 4.0))
        task = Task(name, len(self._tasks), weight)
        self._tasks.append(task)

        def run() -> None:
            task.gate.acquire()
            try:
                if self.is_dead:
                    return
                if self._traced_files:
                    sys.settrace(self._trace)
                function()
            except Killed:
                pass
            except BaseException as error:  # noqa: BLE001 - it is handed to the main task
                self._note(error)
            finally:
                sys.settrace(None)
                self._end(task)

        task.thread = threading.Thread(target=run, name=f"simulated-{name}", daemon=True)
        task.thread.start()
        self._runnable.append(task)
        self.point(f"spawn {name}")
        return task

    def join(self, task: Task, timeout_s: float | None = None) -> None:
        """Wait for a task to end."""
        if not task.is_over:
            self.block(task.joiners, timeout_s, f"the end of {task.name}")

    def fail(self, error: BaseException) -> None:
        """End everything because of an error, which `run` raises."""
        self._note(error)
        raise Killed

    def die(self) -> None:
        """End everything here and now."""
        self._end_all()
        raise Killed

    # Who calls tasks

    def run(self, function: Callable[[], None]) -> bool:
        """Run `function` as the main task; return whether it ended without dying.

        Whatever it or another task raised is raised here, once all threads are gone.
        """
        ended = False
        with installed(self):
            tracing = sys.gettrace()
            try:
                if self._traced_files:
                    sys.settrace(self._trace)
                function()
                ended = not self.is_dead
            except Killed:
                pass
            except BaseException as error:  # noqa: BLE001 - raised below
                self._note(error)
            finally:
                sys.settrace(tracing)
                self._reap()
        if self.failure is not None:
            raise self.failure
        return ended

    def _note(self, error: BaseException) -> None:
        if self.failure is None:
            self.failure = error
        self._end_all()

    def _end_all(self) -> None:
        if self.is_dead:
            return
        self.is_dead = True
        if self.on_death is not None:
            try:
                self.on_death()
            except Exception as error:  # noqa: BLE001 - raised by `run`
                self.failure = self.failure or error

    def _reap(self) -> None:
        """Let every thread see that it is dead, one after the other."""
        self._end_all()
        for task in self._tasks[1:]:
            if task.thread is not None and task.thread.is_alive():
                task.gate.release()
                task.thread.join()

    def _end(self, task: Task) -> None:
        task.is_over = True
        if self.is_dead:
            if self.current is task and not self._main.is_over:
                self._main.is_over = True
                self._main.gate.release()
            return
        self._runnable.remove(task)
        while task.joiners:
            self.wake(task.joiners)
        try:
            self._give_way(None)
        except Killed:
            self._main.is_over = True
            self._main.gate.release()

    def _hand_over(self) -> None:
        """Let a task of the generator's choice go on, possibly this one."""
        self._give_way(self.current)
        if self.is_dead:
            raise Killed

    def _give_way(self, current: Task | None) -> None:
        if not self._runnable:
            self._let_time_pass()
        runnable = self._runnable
        if len(runnable) == 1:
            following = runnable[0]
        else:
            following = self.rng.choices(runnable, [task.weight for task in runnable])[0]
        if following is current:
            return
        self.current = following
        following.gate.release()
        if current is not None:
            current.gate.acquire()

    def _let_time_pass(self) -> None:
        timed = [task for task in self._tasks if task.waits_in is not None]
        timed = [task for task in timed if task.wakes_at_s is not None]
        if not timed:
            waits = ", ".join(
                f"{task.name} for {task.waits_for}"
                for task in self._tasks
                if task.waits_in is not None
            )
            self.fail(SimulationError(f"everybody waits for ever: {waits}"))
        task = min(timed, key=lambda task: (task.wakes_at_s or 0.0, task.number))
        self.now_s = max(self.now_s, task.wakes_at_s or 0.0)
        if self.now_s > self._seconds_max:
            self.fail(SimulationError(f"no end after {self.now_s:.0f} s"))
        assert task.waits_in is not None
        task.waits_in.remove(task)
        task.waits_in, task.wakes_at_s, task.timed_out = None, None, True
        self._runnable.append(task)

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code.co_filename not in self._traced_files:
            return None
        return self._trace_line

    def _trace_line(self, frame: FrameType, event: str, argument: object) -> Any:
        # A point may switch to another thread, which traces for itself; a dying one must not be
        # interrupted in what it cleans up.
        if event == "line" and not self.is_dead:
            self.point("line")
        return self._trace_line


@final
class SimulatedClock:
    """The scheduler's time, and a wall clock that can be set wrong."""

    def __init__(self, scheduler: Scheduler, start_ms: int = START_MS) -> None:
        self._scheduler, self._start_ms = scheduler, start_ms
        self.error_ms = 0

    def now_ms(self) -> int:
        return self._start_ms + int(self._scheduler.now_s * 1000) + self.error_ms

    def monotonic_s(self) -> float:
        return self._scheduler.now_s


@final
class SimulatedThreading:
    """What the store's modules find under the name `threading` while a scheduler is installed."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def Lock(self) -> SimulatedLock:  # noqa: N802 - stands in for threading.Lock
        return SimulatedLock(self._scheduler)

    def Condition(self) -> SimulatedCondition:  # noqa: N802 - stands in for threading.Condition
        return SimulatedCondition(self._scheduler)

    def Event(self) -> SimulatedEvent:  # noqa: N802 - stands in for threading.Event
        return SimulatedEvent(self._scheduler)

    def Thread(  # noqa: N802 - stands in for threading.Thread
        self, *, target: Callable[..., None], name: str = "thread", daemon: bool = False,
        args: Sequence[Any] = (),
    ) -> SimulatedThread:  # fmt: skip
        return SimulatedThread(self._scheduler, lambda: target(*args), name)


@final
class SimulatedLock:
    """A mutex."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._owner: Task | None = None
        self._waiters: deque[Task] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:  # noqa: FBT001, FBT002 - the signature of threading.Lock
        scheduler = self._scheduler
        scheduler.point("lock")
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()


@final
class SimulatedCondition:
    """A condition variable with a lock of its own."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._lock = SimulatedLock(scheduler)
        self._waiters: deque[Task] = deque()

    def __enter__(self) -> Self:
        self._lock.acquire()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        self._lock.release()
        was_woken = self._scheduler.block(self._waiters, timeout, "a condition")
        self._lock.acquire()
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


@final
class SimulatedTime:
    """What they find under the name `time`: anything but `sleep` should be asked of the clock."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.sleep = scheduler.sleep


@contextmanager
def installed(scheduler: Scheduler) -> Iterator[None]:
    """Make `threading` and `time` mean the simulated ones in the storage packages."""
    modules = [
        module
        for name, module in sorted(sys.modules.copy().items())
        if name.startswith(PACKAGES) and not name.startswith(LEFT_ALONE)
    ]
    simulated: dict[str, tuple[ModuleType, object]] = {
        "threading": (threading, SimulatedThreading(scheduler)),
        "time": (time, SimulatedTime(scheduler)),
    }
    replaced = [
        (module, name, real, stand_in)
        for module in modules
        for name, (real, stand_in) in simulated.items()
        if getattr(module, name, None) is real
    ]
    for module, name, _, stand_in in replaced:
        module.__dict__[name] = stand_in
    try:
        yield
    finally:
        for module, name, real, _ in replaced:
            module.__dict__[name] = real
