"""Offsets of the log that only move forward: durable watermark, confirm point, dispatched end.

Each such number is one object. Everyone reads it there, waits for it there, and is told there when
it moves, or why it will move no more.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final, Protocol, final

from commitbus.commitlog.errors import StoreError
from commitbus.commitlog.threads import SYSTEM_THREADS, Threads
from commitbus.commitlog.types import PhysicalOffset
from commitbus.flush.listeners import tell

MoveListener = Callable[[PhysicalOffset], None]
FailureListener = Callable[[StoreError], None]


class LogPoint(Protocol):
    """An offset of the log that others read and wait for."""

    @property
    def offset(self) -> PhysicalOffset:
        """Where it is now. Any thread may ask; it costs no lock."""

    @property
    def failure(self) -> StoreError | None:
        """Why it will move no more, None while it may."""

    def listen(self, moved: MoveListener | None, failed: FailureListener | None = None) -> None:
        """Call `moved` with each new offset, and `failed` once it can move no more.

        `failed` is called at once if that is known already. Both run on the thread that moves the
        offset, which goes on only when they have returned. What they raise is logged, except a
        MemoryError of `moved`: somebody may have missed the new offset, so that thread ends.
        """


@final
class Watermark:
    """A log point that one thread moves and any thread may wait for."""

    __slots__ = (
        "_failure_listeners",
        "_move_listeners",
        "_moved",
        "_reachable",
        "failure",
        "offset",
    )

    def __init__(self, offset: PhysicalOffset, threads: Threads = SYSTEM_THREADS) -> None:
        self.offset = offset
        """Where it is now. A plain attribute, as every message asks."""
        self.failure: StoreError | None = None
        """Why it will not get beyond some offset; None while it may."""
        self._reachable = PhysicalOffset(sys.maxsize)
        self._moved = threads.condition()
        self._move_listeners: tuple[MoveListener, ...] = ()
        self._failure_listeners: tuple[FailureListener, ...] = ()

    def listen(self, moved: MoveListener | None, failed: FailureListener | None = None) -> None:
        """Call `moved` and `failed` as `LogPoint` says."""
        with self._moved:
            if moved is not None:
                self._move_listeners = (*self._move_listeners, moved)
            if failed is not None:
                self._failure_listeners = (*self._failure_listeners, failed)
            failure = self.failure
        if failure is not None and failed is not None:
            tell((failed,), failure)

    def wait(self, end: PhysicalOffset, timeout_s: float | None = None) -> bool:
        """Block until the offset is at least `end`; return False at the time limit.

        Raises:
            StoreError: It never will be: the failure.
        """
        with self._moved:
            self._moved.wait_for(
                lambda: self.offset >= end or self._is_out_of_reach(end), timeout_s
            )
            if self.offset >= end:
                return True
            if self.failure is not None and self._is_out_of_reach(end):
                raise self.failure
        return False

    def _is_out_of_reach(self, end: PhysicalOffset) -> bool:
        return self.failure is not None and end > self._reachable

    def advance(self, offset: PhysicalOffset) -> None:
        """Move to an offset, wake all who wait for no more, and tell the listeners.

        Raises:
            MemoryError: A listener had too little memory.
        """
        with self._moved:
            self.offset = offset
            self._moved.notify_all()
        tell(self._move_listeners, offset)

    def fail(self, failure: StoreError, reachable: PhysicalOffset | None = None) -> None:
        """Say that the offset will not get beyond `reachable`, which is where it is by default.

        Of two failures the one that ends it earlier counts.
        """
        with self._moved:
            end = self.offset if reachable is None else reachable
            if self.failure is not None and end >= self._reachable:
                return
            self.failure, self._reachable = failure, end
            self._moved.notify_all()
        tell(self._failure_listeners, failure)


@final
class AppendedEnd:
    """The end of what is appended, as the log itself knows it. It is never waited for."""

    __slots__ = ("_log_end",)

    failure: Final = None

    def __init__(self, log_end: Callable[[], PhysicalOffset]) -> None:
        self._log_end = log_end

    @property
    def offset(self) -> PhysicalOffset:
        """Where the log ends now."""
        return self._log_end()

    def listen(self, moved: MoveListener | None, failed: FailureListener | None = None) -> None:
        """Register nothing: what an append returned is reached already, and stays so."""
