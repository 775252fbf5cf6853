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
from typing import Final, final

from commitbus.commitlog.errors import FlushFailedError, OutOfResourcesError
from commitbus.commitlog.service_thread import ServiceThread
from commitbus.commitlog.threads import SYSTEM_THREADS, Threads
from commitbus.flush.doorbell import Doorbell
from commitbus.flush.flush_target import FlushTarget
from commitbus.flush.policy import FlushMode, FlushPolicy
from commitbus.flush.watermark import Watermark

RETRY_S: Final = 0.1
"""Until a flush that lacked a descriptor is tried again."""

_logger = logging.getLogger(__name__)


@final
class FlushService:
    """Flushes a target on a thread of its own, and moves the durable watermark.

    The watermark's listeners run on the flush thread: the next round starts only when they have
    returned, so they do no more than pass the number on.

    Attributes:
        durable: The durable watermark. It fails when a flush does, or the thread dies.
    """

    def __init__(
        self,
        target: FlushTarget,
        policy: FlushPolicy,
        durable: Watermark,
        threads: Threads = SYSTEM_THREADS,
    ) -> None:
        self.durable = durable
        self._target, self._policy = target, policy
        self._pending_bytes_max = policy.pending_bytes_max
        self._requested, self._hurry = Doorbell(threads), Doorbell(threads)
        self._stopping = False
        self._thread = ServiceThread("commitbus-flush", self._run, durable.fail, threads)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def request(self, end: int) -> None:
        """Ask for everything up to the offset `end` to become durable, in the time the mode allows.

        Returns at once; called with every append, from any thread.
        """
        if not self._requested.rung:
            self._requested.ring()
        if end - self.durable.offset >= self._pending_bytes_max and not self._hurry.rung:
            self._hurry.ring()

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
        while self.durable.failure is None:
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
            end = self._target.flush()
        except FlushFailedError as error:
            self.durable.fail(error)
            return
        except OutOfResourcesError as error:
            if self._stopping:
                self.durable.fail(error)
                return
            # The flush did not begin, so no byte is lost: its waiters go on waiting.
            _logger.warning("a flush is put off: %s", error)
            self._hurry.wait(RETRY_S)
            self._requested.ring()
            return
        if end != self.durable.offset:
            self.durable.advance(end)
