"""Waiting on the trio thread for a point of the log, without a task switch per flush."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Final, final

import trio

from commitbus.broker.common.errors import TooManyRequestsError
from commitbus.broker.common.trio_thread import TrioThread
from commitbus.commitlog.errors import StoreError
from commitbus.commitlog.types import PhysicalOffset
from commitbus.flush.watermark import LogPoint

WAITING_MAX: Final = 10_000
"""Messages that wait for the disk; RocketMQ's bound for its queue of sends."""
_end_offset = attrgetter("end_offset")


def _nothing() -> None:
    """Do nothing: the waiter has given up."""


@final
class Waiter:
    """A function to be called when a log point has reached an offset, or never will."""

    __slots__ = ("end_offset", "wake")

    def __init__(self, end_offset: PhysicalOffset, wake: Callable[[], None]) -> None:
        self.end_offset, self.wake = end_offset, wake

    def cancel(self) -> None:
        """Do not call it."""
        self.wake = _nothing


@final
class Durability:
    """Lets handlers wait for a log point, such as the confirm point. Lives on the trio thread.

    Attributes:
        point: The log point.
    """

    def __init__(self, point: LogPoint, trio_thread: TrioThread) -> None:
        self.point, self._trio_thread = point, trio_thread
        self._waiting: deque[Waiter] = deque()
        """In the order of their offsets."""
        point.listen(self._moved, self._failed)

    def check_room(self) -> None:
        """Refuse work whose durability could not be waited for.

        Raises:
            TooManyRequestsError: too many messages wait for the disk already.
        """
        if len(self._waiting) >= WAITING_MAX:
            raise TooManyRequestsError(f"{len(self._waiting)} messages wait for the disk")

    def reached(self, end_offset: PhysicalOffset) -> bool:
        """Return whether the log point has reached an offset."""
        return self.point.offset >= end_offset

    async def wait(self, end_offset: PhysicalOffset) -> None:
        """Return when the log point has reached an offset.

        Raises:
            StoreError: it never will, for instance because a flush failed: whether the bytes
                survive is unknown.
        """
        if self.reached(end_offset):
            return
        # The task itself instead of an event for it: half the cost of being woken.
        task = trio.lowlevel.current_task()
        waiter = self.call_when_over(end_offset, partial(trio.lowlevel.reschedule, task))

        def give_up(_: object) -> trio.lowlevel.Abort:
            waiter.cancel()
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(give_up)
        self.check(end_offset)

    def call_when_over(self, end_offset: PhysicalOffset, function: Callable[[], None]) -> Waiter:
        """Call a function once `check` can tell; return what cancels that.

        A task per waiter would cost more than the send itself.
        """
        waiter, waiting = Waiter(end_offset, function), self._waiting
        # Appended last, waits last; only tasks that waited for something else first come late.
        if not waiting or waiting[-1].end_offset <= end_offset:
            waiting.append(waiter)
        else:
            insort(waiting, waiter, key=_end_offset)
        if self.point.failure is not None or self.reached(end_offset):
            # It moved, or failed, before anybody was seen to wait.
            self._trio_thread.call_soon(self._release)
        return waiter

    def check(self, end_offset: PhysicalOffset) -> None:
        """Return if the log point has reached an offset, after the wait for it.

        Raises:
            StoreError: it never will.
        """
        if not self.reached(end_offset) and (failure := self.point.failure) is not None:
            raise failure.with_traceback(None)

    def _moved(self, _: PhysicalOffset) -> None:
        """Release those whose offset is reached. Called on the thread that moves the point."""
        if self._waiting:
            self._trio_thread.call_soon(self._release)

    def _failed(self, _: StoreError) -> None:
        """Fail everybody who waits. Called on the thread that failed."""
        self._trio_thread.call_soon(self._release)

    def _release(self) -> None:
        waiting, failure, reached = self._waiting, self.point.failure, self.point.offset
        while waiting and (failure is not None or waiting[0].end_offset <= reached):
            waiting.popleft().wake()
