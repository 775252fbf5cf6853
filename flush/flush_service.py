"""The thread that makes appended bytes durable, for both flush modes.

SYNC_FLUSH is group commit: a request wakes the thread, it flushes everything appended so far, and
the requests that arrive meanwhile are covered by the next round. ASYNC_FLUSH is the same loop with
a pause before each round, cut short when too many bytes wait. An idle store does not wake.

A failed fsync ends it for good. The kernel may have dropped the dirty pages and would report
success the next time, so a second attempt proves nothing. Any other exception on the thread ends
it as well, and is a failure of the store too.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final, Protocol, final

from commitbus.commitlog.errors import FlushFailedError, OutOfResourcesError, StoreError
from commitbus.commitlog.service_thread import ServiceThread
from commitbus.commitlog.types import PhysicalOffset
from commitbus.flush.doorbell import Doorbell
from commitbus.flush.listeners import tell
from commitbus.flush.policy import FlushMode, FlushPolicy

RETRY_S: Final = 0.1
"""Until a flush that lacked a descriptor is tried again."""

_logger = logging.getLogger(__name__)


class FlushTarget(Protocol):
    """The log, or a simulation of it."""

    @property
    def flushed_where(self) -> PhysicalOffset:
        """The durable end."""

    def flush(self) -> PhysicalOffset:
        """Make durable what was appended before the call; return the new durable end.

        Raises:
            FlushFailedError: It failed, for good; appends are refused from then on.
            OutOfResourcesError: The process may open no more files. Trying again is right.
        """


@final
class FlushService:
    """Flushes a target on a thread of its own, and tells who waits for it.

    Listeners run on the flush thread: the next round starts only when they have returned, so they
    do no more than pass the number on. What they raise is logged, except a MemoryError, which ends
    the thread: a waiter may have missed its notification.
    """

    def __init__(
        self,
        target: FlushTarget,
        policy: FlushPolicy,
        publish: Callable[[PhysicalOffset], None],
    ) -> None:
        """Call `publish` to store the watermark, before any listener of a flush.

        A FlushFailedError of `publish` is a failed flush.
        """
        self._target, self._policy, self._publish = target, policy, publish
        self._pending_bytes_max = policy.pending_bytes_max
        self._requested, self._hurry = Doorbell(), Doorbell()
        self._stopping = False
        self._advanced = threading.Condition()
        self._durable = target.flushed_where
        self._failure: StoreError | None = None
        self._listeners: tuple[Callable[[PhysicalOffset], None], ...] = ()
        self._failure_listeners: tuple[Callable[[StoreError], None], ...] = ()
        self._thread = ServiceThread("commitbus-flush", self._run, self._fail)

    @property
    def durable(self) -> PhysicalOffset:
        """The durable end, as last told to the listeners or about to be."""
        return self._durable

    @property
    def failure(self) -> StoreError | None:
        """The failure that ended flushing, if one did."""
        return self._failure

    def add_listener(self, listener: Callable[[PhysicalOffset], None]) -> None:
        """Call `listener` with the durable end after each successful flush that moved it."""
        self._listeners = (*self._listeners, listener)

    def add_failure_listener(self, listener: Callable[[StoreError], None]) -> None:
        """Call `listener`, once, should a flush fail or the thread die."""
        self._failure_listeners = (*self._failure_listeners, listener)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def request(self, end: int) -> None:
        """Ask for everything up to the offset `end` to become durable, in the time the mode allows.

        Returns at once; called with every append, from any thread.
        """
        if not self._requested.rung:
            self._requested.ring()
        if end - self._durable >= self._pending_bytes_max and not self._hurry.rung:
            self._hurry.ring()

    def wait_durable(self, end: PhysicalOffset, timeout_s: float | None = None) -> bool:
        """Block until the durable end reaches `end`; return False at the time limit.

        Raises:
            FlushFailedError: It never will, because a flush failed.
            ThreadDiedError: It never will, because the thread died.
        """
        with self._advanced:
            self._advanced.wait_for(lambda: self._durable >= end or self._failure, timeout_s)
        if self._durable >= end:
            return True
        if self._failure is not None:
            raise self._failure
        return False

    def stop(self) -> None:
        """Flush what is left and end the thread. May be called more than once."""
        self._stopping = True
        self._requested.ring()
        self._hurry.ring()
        self._thread.join()

    def _run(self) -> None:
        pause_s = (
            None if self._policy.mode is FlushMode.SYNC_FLUSH else self._policy.interval_ms / 1000
        )
        while self._failure is None:
            self._requested.wait()
            if pause_s is not None and not self._stopping:
                self._hurry.wait(pause_s)
            # Read before the flush: what was appended before stop() is then flushed once more.
            last = self._stopping
            self._flush()
            if last:
                return

    def _flush(self) -> None:
        try:
            durable = self._target.flush()
            if durable != self._durable:
                self._publish(durable)
        except FlushFailedError as error:
            self._fail(error)
            return
        except OutOfResourcesError as error:
            if self._stopping:
                self._fail(error)
                return
            # The flush did not begin, so no byte is lost: its waiters go on waiting.
            _logger.warning("a flush is put off: %s", error)
            self._hurry.wait(RETRY_S)
            self._requested.ring()
            return
        if durable == self._durable:
            return
        with self._advanced:
            self._durable = durable
            self._advanced.notify_all()
        tell(self._listeners, durable)

    def _fail(self, failure: StoreError) -> None:
        with self._advanced:
            if self._failure is not None:
                return
            self._failure = failure
            self._advanced.notify_all()
        tell(self._failure_listeners, failure)
