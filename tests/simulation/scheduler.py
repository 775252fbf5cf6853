"""A deterministic scheduler: real threads, of which exactly one runs at a time, in virtual time.

A seeded generator decides at every *point* who goes on. A point lies before each lock, wait, ring
and file operation, and, where a scheduler was told to trace source files, before each of their
lines: that finds races which lie between two statements. Time moves only when nobody can run, or
when an operation takes some.

Any point may be the last one: `die` ends all threads at once, as a kill or a power cut does. And
at any point of a chosen thread memory may be short: `MemoryError`, once.
"""

from __future__ import annotations

import random
import sys
import threading
import traceback
import zlib
from collections import deque
from collections.abc import Callable
from linecache import getline
from types import FrameType
from typing import Any, Final, NamedTuple, final

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
        self.died_of: BaseException | None = None
        """What a shortage of memory ended it with."""
        self.joiners: deque[Task] = deque()
        self.thread: threading.Thread | None = None


@final
class Shortage(NamedTuple):
    """Memory that is short, once, at the first point of a thread from a number of points on."""

    from_point: int
    thread: str
    """How the name of the thread begins."""


def _let_frames_go(error: BaseException) -> None:
    """Clear the frames that an error and those before it went through.

    They may be in a cycle with the store, and hold views of memory: CPython 3.11's garbage
    collector crashes in a cycle with a view of which another object has a part.
    """
    chain: BaseException | None = error
    while chain is not None:
        traceback.clear_frames(chain.__traceback__)
        chain = chain.__cause__ or chain.__context__


def _begins_block(frame: FrameType) -> bool:
    return getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith("with ")


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
        seconds_max: float = 86_400.0,
    ) -> None:
        self.seed = seed
        self.rng = repeatable(seed)
        self.now_s = 0.0
        self.points = 0
        self.is_dead = False
        self.failure: BaseException | None = None
        self.on_point: Callable[[str], None] | None = None
        self.on_death: Callable[[], None] | None = None
        """Called once, at the moment of death, before any thread cleans up."""
        self.dies_at: int | None = None
        self.dies_with: tuple[str, int] | None = None
        """A text, and at which of the points that have it in their label everything ends."""
        self.shortage: Shortage | None = None
        self.was_short_in: Task | None = None
        """The task that got the `MemoryError`."""
        self._memory_error: MemoryError | None = None
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

    def point(self, label: str, *, may_fail: bool = True) -> None:
        """Perhaps let another task go on, perhaps end it all.

        Raises:
            MemoryError: It is short here, which only happens where it `may_fail`.
        """
        if self.is_dead:
            raise Killed
        self.points += 1
        self.trail.append(label)
        self.digest = zlib.crc32(label.encode(), self.digest ^ self.current.number)
        if self.on_point is not None:
            self.on_point(label)
        if self.dies_at is not None and self.points >= self.dies_at:
            self.die()
        if self.dies_with is not None and self.dies_with[0] in label:
            self.dies_with = (self.dies_with[0], self.dies_with[1] - 1)
            if self.dies_with[1] <= 0:
                self.die()
        if self.points > self._points_max:
            self.fail(SimulationError(f"no end after {self.points} points"))
        if len(self._runnable) > 1 and self.rng.random() < self._switch_probability:
            self._hand_over()
        if self.shortage is not None and may_fail:
            self._perhaps_be_short(self.shortage)

    def _perhaps_be_short(self, shortage: Shortage) -> None:
        if self.points < shortage.from_point:
            return
        if self.current.name.startswith(shortage.thread):
            self.shortage, self.was_short_in = None, self.current
            self._memory_error = MemoryError("simulated")
            raise self._memory_error

    def dead_threads(self) -> list[str]:
        """Return the names of the threads that a shortage of memory ended."""
        return [task.name for task in self._tasks if task.died_of is not None]

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
            except Killed as killed:
                _let_frames_go(killed)
            except BaseException as error:  # noqa: BLE001 - it is handed to the main task
                if self.was_short_in is task and not self.is_dead:
                    task.died_of = error
                else:
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
        tracing = sys.gettrace()
        try:
            if self._traced_files:
                sys.settrace(self._trace)
            function()
            ended = not self.is_dead
        except Killed as killed:
            _let_frames_go(killed)
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
        if self._memory_error is not None:
            _let_frames_go(self._memory_error)

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
            # A `with` line is traced once more when its block is left. Raised there, an error would
            # keep the lock; a lock is given back without a need for memory.
            self.point("line", may_fail=not _begins_block(frame))
        return self._trace_line
