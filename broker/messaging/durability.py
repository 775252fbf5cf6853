"""Waiting until appended bytes are durable, without a task switch per flush and message."""

from __future__ import annotations

import threading
from bisect import insort
from collections import deque
from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import Final, final

import trio

from commitbus.broker.core.errors import TooManyRequestsError
from commitbus.commitlog.errors import StoreError
from commitbus.commitlog.types import PhysicalOffset

WAITING_MAX: Final = 10_000
"""Messages that wait for the disk; RocketMQ's bound for its queue of sends."""


@final
class Durability:
    """Lets handlers wait for the durable watermark.

    Lives on the trio thread, but for `on_durable` and `on_failure`.
    """

    def __init__(self, watermark: Callable[[], PhysicalOffset], *, needed: bool) -> None:
        """Begin without waiters.

        Args:
            watermark: returns the durable watermark, from any thread.
            needed: False where an append counts as stored at once (ASYNC_FLUSH).
        """
        self._watermark, self._needed = watermark, needed
        # By end offset: it, and what wakes who waits, until that is cancelled.
        self._waiting: deque[tuple[PhysicalOffset, list[Callable[[], None]]]] = deque()
        self._failure: StoreError | None = None
        self._lock = threading.Lock()
        self._token: trio.lowlevel.TrioToken | None = None

    def attach(self, token: trio.lowlevel.TrioToken) -> None:
        """Name the trio run whose tasks wait."""
        self._token = token

    def detach(self) -> None:
        """Ignore flushes from now on."""
        with self._lock:
            self._token = None

    def check_room(self) -> None:
        """Refuse work whose durability could not be waited for.

        Raises:
            TooManyRequestsError: too many messages wait for the disk already.
        """
        if len(self._waiting) >= WAITING_MAX:
            raise TooManyRequestsError(f"{len(self._waiting)} messages wait for the disk")

    def reached(self, end_offset: PhysicalOffset) -> bool:
        """Return whether everything before `end_offset` is as durable as the flush mode says."""
        return not self._needed or self._watermark() >= end_offset

    async def wait(self, end_offset: PhysicalOffset) -> None:
        """Return when everything before `end_offset` is as durable as the flush mode promises.

        Raises:
            FlushFailedError: the flush failed; whether the bytes survive is unknown.
        """
        if self.reached(end_offset):
            return
        if self._failure is None:
            # The task itself instead of an event for it: half the cost of being woken.
            task = trio.lowlevel.current_task()
            wake = self.call_when_over(end_offset, partial(trio.lowlevel.reschedule, task))

            def give_up(_: object) -> trio.lowlevel.Abort:
                wake.clear()
                return trio.lowlevel.Abort.SUCCEEDED

            await trio.lowlevel.wait_task_rescheduled(give_up)
        self.check(end_offset)

    def call_when_over(
        self, end_offset: PhysicalOffset, function: Callable[[], None]
    ) -> list[Callable[[], None]]:
        """Call a function once `check` knows; return a list that forgets it when it is cleared.

        What a task each would cost more than the rest of the work for.
        """
        wake, waiting = [function], self._waiting
        # Appended last, waits last; only tasks that waited for something else first come late.
        if not waiting or waiting[-1][0] <= end_offset:
            waiting.append((end_offset, wake))
        else:
            insort(waiting, (end_offset, wake), key=itemgetter(0))
        if self._failure is not None:
            self._soon(self._release_all)
        return wake

    def check(self, end_offset: PhysicalOffset) -> None:
        """Return if everything before `end_offset` is durable, after the wait for it.

        Raises:
            FlushFailedError: the flush failed; whether the bytes survive is unknown.
        """
        if self._failure is not None and not self.reached(end_offset):
            raise self._failure.with_traceback(None)

    def on_durable(self, _watermark: PhysicalOffset) -> None:
        """Release those whose bytes are durable. Called on the store's flush thread."""
        self._soon(self._release)

    def on_failure(self, error: StoreError) -> None:
        """Fail everybody who waits or will. Called on the store's flush thread."""
        self._failure = error
        self._soon(self._release_all)

    def _soon(self, release: Callable[[], None]) -> None:
        with self._lock:
            if self._token is not None:
                self._token.run_sync_soon(release, idempotent=True)

    def _release(self) -> None:
        self._wake(self._watermark())

    def _release_all(self) -> None:
        if self._waiting:
            self._wake(self._waiting[-1][0])

    def _wake(self, end_offset: PhysicalOffset) -> None:
        """Wake all who wait for no more than `end_offset`."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= end_offset:
            for function in waiting.popleft()[1]:
                function()
