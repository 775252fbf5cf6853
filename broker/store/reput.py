"""The thread that follows the log and fills consume queues and index from it.

The queues come first: when the index is behind (its files were lost, or a power cut took them),
new messages are dispatched to the queues as they come and the index catches up in between, so that
rebuilding it delays no consumer. Retention does not wait for the index either: messages that are
deleted before it has them need no entry, and it goes on where the log begins then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol, final

from commitbus.commitlog.clock import Clock
from commitbus.commitlog.errors import (
    CorruptRecordError,
    DiskFullError,
    OutOfResourcesError,
    ReadFailedError,
    StoreError,
    ThreadDiedError,
)
from commitbus.commitlog.kernels import DispatchBatch, DispatchColumns
from commitbus.commitlog.record_format import (
    TRANSACTION_FLAGS,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLED_BACK,
)
from commitbus.commitlog.service_thread import ServiceThread
from commitbus.commitlog.threads import SYSTEM_THREADS, Threads
from commitbus.commitlog.types import PhysicalOffset, QueueOffset
from commitbus.flush.doorbell import Doorbell
from commitbus.flush.listeners import tell
from commitbus.flush.watermark import LogPoint, Watermark

BATCH_RECORDS: Final = 8192
"""Records per step. What a step costs besides is shared among them: lock, wake-up, numpy calls, and
behind a thread that computes without pause 5 ms each time that a kernel wants the interpreter back:
with 2048 records reput could not follow 150,000 messages a second."""
GATHER_S: Final = 0.003
"""How long a batch is let grow while messages come fast. Alone a message takes 20 us of an
interpreter that the senders need, among many a tenth of it, and waking a thread as much again."""
GATHERED_RECORDS: Final = 6
"""Fewer than this in that time do not pay for the delay: they are dispatched as they come."""
MANY_RECORDS: Final = 256
"""A batch of so many says that the appending threads need the interpreter more still."""
GATHER_MANY_S: Final = 0.005
FULL_DISK_RETRY_S: Final = 1.0
LEFT_UNINDEXED_BYTES: Final = 64 << 20
"""A stop waits for an index that is behind by no more than this: about a second."""
_NOT_QUEUED: Final = (TRANSACTION_PREPARED, TRANSACTION_ROLLED_BACK)
"""Such messages get no consume queue unit."""

_logger = logging.getLogger(__name__)


@final
class Arrival(NamedTuple):
    """A queue that has new messages."""

    topic: str
    queue_id: int
    max_offset: QueueOffset
    """First queue offset after the newest one."""


@final
class ReputFailedError(StoreError):
    """Messages can no longer be dispatched: what is acknowledged would not be delivered."""

    def __init__(self, physical_offset: int, cause: BaseException) -> None:
        self.physical_offset, self.cause = physical_offset, cause
        super().__init__(f"dispatching from physical offset {physical_offset} failed: {cause!r}")


@final
class DispatchedTo(NamedTuple):
    """How far the queues are filled: the end of the last message, and when it was stored."""

    physical_offset: PhysicalOffset
    store_timestamp: int


class DispatchSource(Protocol):
    """The log, as far as reput reads it."""

    def read(
        self, start: PhysicalOffset, end: PhysicalOffset, max_count: int
    ) -> tuple[DispatchBatch, PhysicalOffset]:
        """Return whole records from `start` on, and where to go on.

        Raises:
            ReadFailedError: The disk does not give them back.
            CorruptRecordError: No record begins at `start`.
            OutOfResourcesError: The process may open no more files.
        """

    def end_of_file(self, offset: PhysicalOffset) -> PhysicalOffset:
        """Return where the log file behind that of `offset` begins."""


class DispatchTarget(Protocol):
    """Consume queues or index: takes records in log order, skips those it has."""

    def put(self, requests: DispatchBatch) -> None:
        """Take a batch."""


class IndexTarget(DispatchTarget, Protocol):
    """The index."""

    @property
    def dispatched_to(self) -> PhysicalOffset:
        """Where to go on, should a file be lost."""


@final
class Reput:
    """Follows the confirm point through the log on a thread of its own."""

    def __init__(
        self,
        log: DispatchSource,
        queues: DispatchTarget,
        index: IndexTarget,
        confirm_point: LogPoint,
        *,
        log_begin: Callable[[], PhysicalOffset],
        dispatched_to: DispatchedTo,
        index_from: PhysicalOffset,
        clock: Clock,
        threads: Threads = SYSTEM_THREADS,
    ) -> None:
        self._log, self._queues, self._index = log, queues, index
        self._confirm_point, self._log_begin = confirm_point, log_begin
        self._dispatched = dispatched_to
        self.dispatched: Final = Watermark(dispatched_to.physical_offset, threads)
        """How far the consume queues are filled. It fails when dispatching does, and beyond the
        confirm point when that will move no more."""
        self._indexed_to = index_from
        self._clock = clock
        # Monotonic time before which a full disk is not tried again; 0 while there is room.
        self._index_resumes_s = 0.0
        self._bell = Doorbell(threads)
        self._sleep = threads.sleep
        self.wake: Final = self._bell.ring
        """Says that the confirm offset may have moved. Returns at once, from any thread."""
        self._stopping = False
        self._batch_count = 0
        self._more_waits = False
        # Messages since when, on the monotonic clock, within `GATHER_S`.
        self._recent_count, self._recent_since_s = 0, 0.0
        self.full_disk: DiskFullError | OutOfResourcesError | None = None
        """Why the queues stand still until there is room on the disk, or for descriptors; None
        while they do not."""
        self._arrival_listeners: tuple[Callable[[Sequence[Arrival]], None], ...] = ()
        confirm_point.listen(None, self._confirm_no_more)
        self._thread = ServiceThread("commitbus-reput", self._run, self._fail, threads)

    @property
    def dispatched_to(self) -> DispatchedTo:
        """How far the consume queues are filled, and when that was stored: a snapshot of both."""
        return self._dispatched

    @property
    def indexed_to(self) -> PhysicalOffset:
        """How far the index is filled."""
        return self._indexed_to

    def add_arrival_listener(self, listener: Callable[[Sequence[Arrival]], None]) -> None:
        """Call `listener` on the reput thread, once per batch. What it raises is logged."""
        self._arrival_listeners = (*self._arrival_listeners, listener)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()
        self._bell.ring()

    def _confirm_no_more(self, failure: StoreError) -> None:
        """Note why the confirm point will move no more. Messages below it are dispatched."""
        self.dispatched.fail(failure, reachable=self._confirm_point.offset)

    def stop(self) -> None:
        """Fill the queues up to the confirm offset and end the thread.

        An index that is still far behind goes on at the next start; so does everything when the
        disk is full.
        """
        self._stopping = True
        self._bell.ring()
        self._thread.join()

    def _run(self) -> None:
        while True:
            waits_for_room = self.full_disk is not None or self._index_resumes_s > 0
            self._bell.wait(FULL_DISK_RETRY_S if waits_for_room else None)
            # Read before the work, so that messages confirmed before stop() are still dispatched.
            last = self._stopping
            while self._fill_queues() or self._fill_index():
                self._gather()
            if last:
                return

    def _gather(self) -> None:
        """Let messages that come fast add up, unless more of them wait already.

        Without this, a reput that keeps up would take a step for every message or two.
        """
        now_s = self._clock.monotonic_s()
        if now_s - self._recent_since_s > GATHER_S:
            self._recent_count, self._recent_since_s = 0, now_s
        self._recent_count += self._batch_count
        is_fast = self._recent_count >= GATHERED_RECORDS
        if is_fast and not self._more_waits and not self._stopping:
            self._sleep(GATHER_S if self._batch_count < MANY_RECORDS else GATHER_MANY_S)

    def _fill_queues(self) -> bool:
        """Take one batch to the queues, to the index too if that is as far. False: none was due."""
        start, confirmed = self._dispatched.physical_offset, self._confirm_point.offset
        if start >= confirmed:
            return False
        try:
            requests, end = self._next_batch(start, confirmed)
            self._queues.put(requests)
        except (DiskFullError, OutOfResourcesError) as error:
            if self.full_disk is None:
                _logger.warning("consume queues wait: %s", error)
            self.full_disk = error
            return False
        self.full_disk = None
        if self._indexed_to >= start:
            self._put_index(requests, end)
        timestamp = last_store_timestamp(requests) or self._dispatched.store_timestamp
        self._dispatched = DispatchedTo(end, timestamp)
        self.dispatched.advance(end)
        if arrivals := arrivals_of(requests):
            tell(self._arrival_listeners, arrivals)
        return True

    def _fill_index(self) -> bool:
        """Take one batch to an index that is behind the queues. False: it is not, or must wait."""
        # Messages that retention has deleted meanwhile need no entry.
        start = self._indexed_to = max(self._indexed_to, self._log_begin())
        end = self._dispatched.physical_offset
        if self._stopping and end - start > LEFT_UNINDEXED_BYTES:
            return False
        if start >= end or self._clock.monotonic_s() < self._index_resumes_s:
            return False
        try:
            requests, reached = self._next_batch(start, end)
        except OutOfResourcesError:
            self._index_resumes_s = self._clock.monotonic_s() + FULL_DISK_RETRY_S
            return False
        except StoreError as error:
            if self._log_begin() > start:
                return True  # Retention deletes these messages now: go on with the rest.
            if not isinstance(error, ReadFailedError | CorruptRecordError):
                raise
            self._indexed_to = min(self._log.end_of_file(start), end)
            _logger.error(  # noqa: TRY400 - the text says all of it
                "messages are not indexed: %s", error, extra={"to": self._indexed_to}
            )
            return True
        self._put_index(requests, reached)
        return True

    def _next_batch(
        self, start: PhysicalOffset, end: PhysicalOffset
    ) -> tuple[DispatchBatch, PhysicalOffset]:
        requests, reached = self._log.read(start, end, BATCH_RECORDS)
        assert reached > start, f"the log gave nothing between {start} and {end}"
        self._batch_count, self._more_waits = len(requests), reached < end
        return requests, reached

    def _put_index(self, requests: DispatchBatch, end: PhysicalOffset) -> None:
        """Index a batch, or let the index fall behind while the disk or the process has no room.

        The next file may take 420 MB, so an attempt that fails is not repeated with every message.
        """
        try:
            self._index.put(requests)
        except ReadFailedError as error:
            # The index has removed the file: its entries are put again.
            _logger.warning("the index goes back: %s", error)
            self._indexed_to = min(self._index.dispatched_to, self._indexed_to)
        except (DiskFullError, OutOfResourcesError) as error:
            if self._index_resumes_s == 0:
                _logger.warning("the index waits: %s", error)
            self._index_resumes_s = self._clock.monotonic_s() + FULL_DISK_RETRY_S
        else:
            self._index_resumes_s = 0.0
            self._indexed_to = end

    def _fail(self, death: ThreadDiedError) -> None:
        failure = ReputFailedError(self._dispatched.physical_offset, death.cause)
        failure.__cause__ = death.cause
        self.dispatched.fail(failure)


def last_store_timestamp(requests: DispatchBatch) -> int:
    """Return when the last message of a batch was stored, 0 without any."""
    if not len(requests):
        return 0
    if isinstance(requests, DispatchColumns):
        return int(requests.store_timestamps[-1])
    return requests[-1].store_timestamp


def arrivals_of(requests: DispatchBatch) -> list[Arrival]:
    """Return each queue that a batch has messages for, with its new end."""
    if isinstance(requests, DispatchColumns):
        return [
            Arrival(topic, queue_id, QueueOffset(queue_offsets[-1] + 1))
            for topic, queue_id, queue_offsets, _ in requests.queues
        ]
    ends = {
        (request.topic, request.queue_id): request.queue_offset + 1
        for request in requests
        if request.sys_flag & TRANSACTION_FLAGS not in _NOT_QUEUED
    }
    return [Arrival(topic, queue_id, QueueOffset(end)) for (topic, queue_id), end in ends.items()]
