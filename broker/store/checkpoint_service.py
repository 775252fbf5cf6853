"""The thread that flushes queues and index about every second and then says so in the checkpoint.

The queues are not flushed with the log: they can be derived from it. The checkpoint only bounds
how much has to be.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Protocol, final

from commitbus.broker.store.reput import DispatchedTo
from commitbus.commitlog.errors import (
    DiskFullError,
    FlushFailedError,
    OutOfResourcesError,
    StoreError,
)
from commitbus.commitlog.service_thread import ServiceThread
from commitbus.commitlog.threads import SYSTEM_THREADS, Threads
from commitbus.commitlog.types import PhysicalOffset
from commitbus.flush.checkpoint import CheckpointFile, StoreCheckpoint
from commitbus.flush.doorbell import Doorbell
from commitbus.flush.flushed_offsets import FlushedOffsets
from commitbus.flush.watermark import Watermark
from commitbus.flush.watermark_file import WatermarkFile

SETTLE_INTERVAL_S: Final = 1.0
_SETTLED_AT_ONCE: Final = 200
"""Queues that are looked at in a step, some 100 us each: 80,000 take seven minutes, and 2 % of a
core. All are looked at when the store is closed."""

_logger = logging.getLogger(__name__)


class Flushable(Protocol):
    """Consume queues or index."""

    def flush(self) -> None:
        """Make durable what was put before the call; FlushFailedError."""


class FlushableQueues(Flushable, Protocol):
    """The consume queues."""

    def save_states(self, queues_end: PhysicalOffset) -> None:
        """Save how the queues end, for a checkpoint up to an offset; FlushFailedError."""

    def settle(self, count: int) -> bool:
        """Look at some of the queues that nobody has used since an unclean stop.

        Return whether more are left. FlushFailedError; OutOfResourcesError: try again.
        """


class FlushableIndex(Flushable, Protocol):
    """The index."""

    @property
    def last_full_timestamp(self) -> int:
        """Store timestamp up to which full files were flushed."""

    @property
    def last_full_offset(self) -> PhysicalOffset:
        """Physical offset up to which full files were flushed."""


@final
class CheckpointService:
    """Saves checkpoints, each of which promises no more than was flushed before it."""

    def __init__(
        self,
        file: CheckpointFile,
        watermark_file: WatermarkFile,
        *,
        queues: FlushableQueues,
        index: FlushableIndex,
        dispatched_to: Callable[[], DispatchedTo],
        durable: Watermark,
        interval_ms: int,
        on_failure: Callable[[StoreError], None],
        threads: Threads = SYSTEM_THREADS,
    ) -> None:
        self._file, self._watermark_file = file, watermark_file
        self._queues, self._index = queues, index
        self._dispatched_to, self._durable = dispatched_to, durable
        self._interval_s, self._on_failure = interval_ms / 1000, on_failure
        self._bell = Doorbell(threads)
        self._stopped = threads.event()
        self._is_settled = False
        self._saving = threads.lock()
        self._failure: FlushFailedError | None = None
        self._thread = ServiceThread("commitbus-checkpoint", self._run, on_failure, threads)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def request(self) -> None:
        """Say that there is something new; saved within the interval. Returns at once."""
        self._bell.ring()

    def stop(self) -> None:
        """End the thread without a last checkpoint."""
        self._stopped.set()
        self._bell.ring()
        self._thread.join()

    def save_now(self) -> None:
        """Save on this thread, beside the service's own. Reports a failure as that does.

        Raises:
            FlushFailedError: As `save`.
        """
        try:
            self.save()
        except FlushFailedError as error:
            self._on_failure(error)
            raise

    def save(self) -> None:
        """Flush queues and index and save a checkpoint of it. One thread at a time does.

        Raises:
            FlushFailedError: A flush failed, of the log (it is waited for), of these, or of what
                says so.
            DiskFullError: There is no room for what has to be written first. Trying again is right.
            OutOfResourcesError: The process may open no more files. Likewise.
        """
        with self._saving:
            if self._failure is not None:
                raise self._failure
            try:
                self._save()
            except FlushFailedError as error:
                # Also if another thread flushes next: the kernel may mark a page clean that it
                # could not write.
                self._failure = error
                raise

    def save_last(self) -> None:
        """Save when the store is closed: no queue is left that a start would have to look at.

        Raises as `save`.
        """
        while not self._is_settled:
            self._settle()
        self.save()

    def _settle(self) -> None:
        with self._saving:
            try:
                self._is_settled = not self._queues.settle(_SETTLED_AT_ONCE)
            except FlushFailedError as error:
                self._failure = error
                raise

    def _save(self) -> None:
        # Taken before the flushes: what is put meanwhile may miss them.
        dispatched = self._dispatched_to()
        self._queues.flush()
        self._index.flush()
        self._durable.wait(dispatched.physical_offset)
        self._watermark_file.sync()
        # Before the checkpoint: a start takes the states that were saved for it, or none.
        self._queues.save_states(dispatched.physical_offset)
        indexed = self._index.last_full_timestamp
        checkpoint = StoreCheckpoint(
            physic_msg_timestamp=dispatched.store_timestamp,
            logics_msg_timestamp=dispatched.store_timestamp,
            # A later timestamp is one of deleted messages, stored while the clock was ahead. It
            # says nothing about the messages after them, whose timestamps are lower.
            index_msg_timestamp=indexed if indexed <= dispatched.store_timestamp else 0,
        )
        offsets = FlushedOffsets(dispatched.physical_offset, self._index.last_full_offset)
        self._file.save(checkpoint, offsets)

    def _run(self) -> None:
        try:
            while True:
                is_rung = self._bell.wait(None if self._is_settled else SETTLE_INTERVAL_S)
                if self._stopped.wait(self._interval_s if is_rung else 0):
                    return
                if is_rung:
                    self._save_or_put_off()
                if not self._is_settled:
                    self._settle_or_put_off()
        except FlushFailedError as error:
            self._on_failure(error)

    def _save_or_put_off(self) -> None:
        """Save; without room or descriptors, try again in the next interval."""
        try:
            self.save()
        except (DiskFullError, OutOfResourcesError) as error:
            _logger.warning("a checkpoint is put off: %s", error)
            self._bell.ring()

    def _settle_or_put_off(self) -> None:
        try:
            self._settle()
        except OutOfResourcesError as error:
            _logger.warning("a look at unused queues is put off: %s", error)
