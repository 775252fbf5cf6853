"""Threads and what they wait with, as the storage packages see them.

Like the clock and the file system they are a parameter, so that the simulation can run the same
code one step at a time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Protocol, final


class Lock(Protocol):
    """A mutex, as `threading.Lock`."""

    def __enter__(self) -> bool:
        """Take it."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        """Give it back."""


class Condition(Protocol):
    """A condition variable with a lock of its own, as `threading.Condition`."""

    def __enter__(self) -> bool:
        """Take the lock."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        """Give the lock back."""

    def wait(self, timeout: float | None = None) -> bool:
        """Give the lock back until a notification; return False at the time limit in seconds."""

    def wait_for(self, predicate: Callable[[], object], timeout: float | None = None) -> object:
        """Wait until `predicate` is true; return its last value."""

    def notify_all(self) -> None:
        """Wake everybody who waits."""


class Event(Protocol):
    """A flag to wait for, as `threading.Event`."""

    def set(self) -> None:
        """Set it, and wake everybody who waits."""

    def clear(self) -> None:
        """Clear it."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set; return False at the time limit in seconds."""


class Thread(Protocol):
    """A thread that is not started yet, as `threading.Thread`."""

    def start(self) -> None:
        """Start it. RuntimeError: the system allows no more threads."""

    def is_alive(self) -> bool:
        """Return whether it was started and has not ended."""

    def join(self) -> None:
        """Wait for its end."""


class Threads(Protocol):
    """Makes all of these."""

    def lock(self) -> Lock:
        """Return a new mutex."""

    def condition(self) -> Condition:
        """Return a new condition variable."""

    def event(self) -> Event:
        """Return a new event, not set."""

    def thread(self, target: Callable[[], None], name: str) -> Thread:
        """Return a new thread, which does not keep the process alive."""

    def sleep(self, seconds: float) -> None:
        """Let the calling thread sleep."""


@final
class SystemThreads:
    """The machine's."""

    def lock(self) -> Lock:
        """Return a `threading.Lock`."""
        return threading.Lock()

    def condition(self) -> Condition:
        """Return a `threading.Condition`."""
        return threading.Condition()

    def event(self) -> Event:
        """Return a `threading.Event`."""
        return threading.Event()

    def thread(self, target: Callable[[], None], name: str) -> Thread:
        """Return a daemon thread."""
        return threading.Thread(target=target, name=name, daemon=True)

    def sleep(self, seconds: float) -> None:
        """Sleep for real."""
        time.sleep(seconds)


SYSTEM_THREADS: Final = SystemThreads()
"""What a part uses that is told nothing else."""
