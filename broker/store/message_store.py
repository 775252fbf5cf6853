"""The store that is written to: log, queues and index, with the threads that keep them in step.

```
   put ──> CommitLog ──(flush thread)──> durable watermark ──> durable listeners
              │                                 │
              └── ASYNC_FLUSH: appended end     └── SYNC_FLUSH: durable watermark
                                  │
                            confirm offset ──(reput thread)──> queues, index ──> arrival listeners
                                                                  │
                                             (checkpoint thread: flushed about every second)
```
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self, final

from commitbus.broker.store.checkpoint_service import CheckpointService
from commitbus.broker.store.config import StoreConfig
from commitbus.broker.store.housekeeping import Housekeeping
from commitbus.broker.store.layout import (
    INDEX,
    LOG,
    check_directory,
    make_directory,
    tree_bytes,
)
from commitbus.broker.store.ownership import Ownership, take_over
from commitbus.broker.store.reput import Arrival, Reput
from commitbus.broker.store.start import Recovery, StoreParts, open_parts, recover
from commitbus.broker.store.store_reader import (
    DEFAULT_CONFIG,
    FetchedUnit,
    FetchResult,
    StoreReader,
)
from commitbus.commitlog.clock import Clock, SystemClock
from commitbus.commitlog.dispatch_reader import DispatchReader
from commitbus.commitlog.errors import (
    DiskFullError,
    DiskRatioError,
    FlushFailedError,
    OutOfResourcesError,
    StoreClosedError,
    StoreError,
    StoreReadOnlyError,
)
from commitbus.commitlog.file_system import FileSystem, RealFileSystem
from commitbus.commitlog.framed import FramedBatch
from commitbus.commitlog.mapped_file import raise_refusal
from commitbus.commitlog.recovery import Progress, no_progress
from commitbus.commitlog.threads import SYSTEM_THREADS, Threads
from commitbus.commitlog.types import AppendResult, OutgoingMessage, PhysicalOffset, QueueOffset
from commitbus.consumequeue.consume_queue import ConsumeQueue
from commitbus.flush.checkpoint import CHECKPOINT_NAME, CheckpointFile
from commitbus.flush.flush_service import FlushService
from commitbus.flush.flush_target import LocalDisk
from commitbus.flush.listeners import tell
from commitbus.flush.policy import FlushMode
from commitbus.flush.sealed import SealedSegment
from commitbus.flush.watermark import AppendedEnd, Watermark
from commitbus.flush.watermark_file import WATERMARK_PATH, WatermarkFile

__all__ = ["Arrival", "FetchResult", "FetchedUnit", "MessageStore", "StoreReader"]


@final
class MessageStore(StoreReader):
    """A store open for writing. Thread-safe. `open` it, `close` it, or use it in a `with` block.

    Attributes:
        directory: Where it lies.
        durable_watermark: Up to where the log survives a power cut.
        confirm_point: Up to where messages count as acknowledged, and may be shown. In SYNC_FLUSH
            it is the durable watermark, in ASYNC_FLUSH the end of what is appended.
        dispatched: Up to where messages are in their queues, and can be fetched.
        recovery_summary: What the start found and did, one line.
    """

    def __init__(
        self,
        directory: Path,
        parts: StoreParts,
        recovery: Recovery,
        config: StoreConfig,
        *,
        ownership: Ownership,
        watermark_file: WatermarkFile,
        checkpoint_file: CheckpointFile,
        clock: Clock,
        file_system: FileSystem,
        threads: Threads,
    ) -> None:
        """Wire the parts; `open` is how to get a store."""
        super().__init__(parts.log, parts.queues, parts.index)
        self.directory = directory
        self.recovery_summary = recovery.summary
        self._ownership, self._file_system = ownership, file_system
        self._watermark_file, self._checkpoint_file = watermark_file, checkpoint_file
        self._closed = self._is_settled = False
        self._failure_listeners: tuple[Callable[[StoreError], None], ...] = ()
        self._failure: StoreError | None = None
        self._failure_guard = threads.lock()
        self.durable_watermark = Watermark(parts.log.flushed_where, threads)
        target = LocalDisk(parts.log, watermark_file)
        self._flush = FlushService(target, config.flush, self.durable_watermark, threads)
        self.confirm_point = self._choose_confirm_point(config.flush.mode)
        self._reput = Reput(
            DispatchReader(parts.log),
            parts.queues,
            parts.index,
            self.confirm_point,
            log_begin=lambda: parts.log.min_offset,
            dispatched_to=recovery.dispatched_to,
            index_from=recovery.index_from,
            clock=clock,
            threads=threads,
        )
        self._checkpoints = CheckpointService(
            checkpoint_file,
            watermark_file,
            queues=parts.queues.changes,
            index=parts.index,
            dispatched_to=lambda: self._reput.dispatched_to,
            durable=self.durable_watermark,
            interval_ms=config.checkpoint_interval_ms,
            on_failure=self._on_failure,
            threads=threads,
        )
        self._housekeeping = self._new_housekeeping(parts, config, clock, threads)
        self.dispatched = self._reput.dispatched
        self._request_flush, self._wake_reput = self._flush.request, self._reput.wake
        self._connect()
        self._start()

    def _choose_confirm_point(self, mode: FlushMode) -> Watermark | AppendedEnd:
        """Decide, here and nowhere else, when a message is acknowledged and may be shown."""
        if mode is FlushMode.SYNC_FLUSH:
            self._appended = self._flush.request
            return self.durable_watermark
        self._appended = self._appended_and_confirmed
        return AppendedEnd(lambda: self._log.end_offset)

    def _new_housekeeping(
        self, parts: StoreParts, config: StoreConfig, clock: Clock, threads: Threads
    ) -> Housekeeping:
        return Housekeeping(
            self.directory,
            parts.log,
            parts.queues,
            parts.index,
            retention=config.retention,
            seal_after_s=config.seal_after_s,
            durable=self.durable_watermark,
            dispatched=self._reput.dispatched,
            before_deletion=self._checkpoints.save_now,
            on_roll=self._rolled,
            on_failure=self._on_failure,
            clock=clock,
            file_system=self._file_system,
            threads=threads,
        )

    def _connect(self) -> None:
        """Connect the services' listeners, and the store's listener for their failures."""
        self.durable_watermark.listen(self._housekeeping.flushed, self._on_failure)
        self.confirm_point.listen(lambda _: self._reput.wake())
        self._reput.add_arrival_listener(lambda _: self._checkpoints.request())
        self.dispatched.listen(None, self._on_failure)
        self._log.on_failure = self._on_failure

    def _start(self) -> None:
        """Start the threads, all or none.

        Raises:
            RuntimeError: The system allows no more threads.
        """
        with ExitStack() as started:
            for service in (self._flush, self._reput, self._checkpoints, self._housekeeping):
                # If the system allows no further thread, those that run must end.
                service.start()
                started.callback(service.stop)
            started.pop_all()
        # Covers what was just recovered: the start does not wait for a sync of the queues.
        self._checkpoints.request()

    @classmethod
    def open(
        cls,
        directory: Path,
        config: StoreConfig = DEFAULT_CONFIG,
        *,
        clock: Clock | None = None,
        file_system: FileSystem | None = None,
        threads: Threads = SYSTEM_THREADS,
        on_progress: Progress = no_progress,
    ) -> Self:
        """Open a store, making it if the directory is empty or missing, and start its threads.

        Args:
            directory: The store.
            config: Sizes count for a new store only; a store that exists keeps its own.
            clock: Default: the machine's.
            file_system: Default: the machine's.
            threads: Default: the machine's.
            on_progress: Hears how far recovery is.

        Raises:
            NotAStoreError: The directory holds something else.
            StoreLockedError: Somebody has the store open, in this or another process.
            StoreDamagedError: Durable bytes of the log are damaged.
            FlushFailedError: What was recovered could not be made durable.
            DiskFullError: There is no room for what a start needs.
            OSError: A file cannot be read or written.
        """
        clock, file_system = clock or SystemClock(), file_system or RealFileSystem()
        check_directory(directory, file_system, may_be_new=True)
        make_directory(directory, file_system)
        with ExitStack() as undo:
            ownership, is_clean = take_over(directory, file_system, undo)
            parts = open_parts(
                directory, config,
                clock=clock, file_system=file_system, threads=threads, clean=is_clean, undo=undo,
            )  # fmt: skip
            with _refusal_named(directory / CHECKPOINT_NAME):
                checkpoint_file = CheckpointFile(directory, file_system)
            undo.callback(checkpoint_file.close)
            recovery = recover(
                parts, directory, checkpoint_file,
                is_clean=is_clean, clock=clock, file_system=file_system, on_progress=on_progress,
            )  # fmt: skip
            _warm(parts, config, on_progress)
            with _refusal_named(directory / WATERMARK_PATH):
                watermark_file = WatermarkFile(directory, file_system)
            undo.callback(watermark_file.close)
            watermark_file.publish(parts.log.flushed_where)
            store = cls(
                directory, parts, recovery, config,
                ownership=ownership, watermark_file=watermark_file, checkpoint_file=checkpoint_file,
                clock=clock, file_system=file_system, threads=threads,
            )  # fmt: skip
            undo.pop_all()
        return store

    # Writing

    def put(self, message: OutgoingMessage) -> AppendResult:
        """Append a message. In SYNC_FLUSH it counts once the watermark reaches `end_offset`.

        Raises:
            MessageRefusedError: It breaks a limit of the format.
            DiskFullError: There is no room for it, or for its place in a queue.
            OutOfResourcesError: The process may open no more files. Likewise.
            DiskRatioError: The disk is fuller than the configured limit.
            StoreReadOnlyError: A flush failed before, messages can no longer be dispatched, or a
                thread of the store died.
            ThreadDiedError: The thread that prepares files died just now; nothing was appended.
            StoreClosedError: The store was closed.
        """
        if self._closed or self._failure or self._reput.full_disk or self._housekeeping.refusal:
            self._refuse()
        result = self._log.append(message)
        self._appended(result[0] + result[1])
        return result

    def put_batch(self, messages: Sequence[OutgoingMessage]) -> list[AppendResult]:
        """Append all of these messages or none, next to each other. Raises as `put`."""
        if self._closed or self._failure or self._reput.full_disk or self._housekeeping.refusal:
            self._refuse()
        results = self._log.append_batch(messages)
        if results:
            self._appended(results[-1].end_offset)
        return results

    def put_framed(self, batch: FramedBatch) -> AppendResult:
        """Append the records of a batch, all or none; return where they lie together.

        The queue offset is the first record's. Raises as `put`, and `ValueError` for a batch
        without a record or with lengths that are not its buffer's.
        """
        if self._closed or self._failure or self._reput.full_disk or self._housekeeping.refusal:
            self._refuse()
        result = self._log.append_framed(batch)
        self._appended(result.end_offset)
        return result

    def _appended_and_confirmed(self, end: int) -> None:
        """Have what was appended up to `end` flushed some time, and dispatched now."""
        self._request_flush(end)
        self._wake_reput()

    def _refuse(self) -> None:
        if self._closed:
            raise StoreClosedError
        if self._failure is not None:
            raise StoreReadOnlyError(str(self._failure)) from self._failure
        refusal = self._reput.full_disk or self._housekeeping.refusal
        if refusal is not None:
            raise refusal

    def _rolled(self) -> None:
        self._flush.request(self._log.end_offset)
        self._reput.wake()

    def seal_segment(self) -> SealedSegment | None:
        """End the log file that is written, make it durable, and write its manifest.

        None if it holds no message. Takes as long as reading the file does.

        Raises:
            DiskFullError: There is no room for the next file.
            DiskRatioError: The disk is fuller than the configured limit.
            FlushFailedError: It could not be made durable.
            StoreClosedError: The store was closed.
            OSError: The manifest could not be written; housekeeping tries again.
        """
        if self._closed or self._housekeeping.refusal:
            self._refuse()
        base_offset = self._log.roll()
        if base_offset is None:
            return None
        self._rolled()
        self.durable_watermark.wait(PhysicalOffset(base_offset + self._log.file_size))
        return self._housekeeping.seal(base_offset)

    def keep_house(self) -> None:
        """Do now what otherwise happens every ten seconds: seal, delete, look at the disk."""
        self._housekeeping.run_once()

    def save_checkpoint(self) -> None:
        """Do now what otherwise happens every second: make queues and index durable.

        Raises:
            FlushFailedError: It failed; the store takes no more messages.
            DiskFullError: There is no room. It is tried again with the next message.
            OutOfResourcesError: The process may open no more files. Likewise.
        """
        self._checkpoints.save_now()

    def delete_topic(self, topic: str) -> None:
        """Remove the consume queues of a topic. Its messages stay in the log until it is cut.

        A new topic of the same name goes on at the queue offsets where this one ends.

        Raises:
            DiskFullError: There is no room to note it; nothing is changed.
            OutOfResourcesError: The process may open no more files. Likewise.
            FlushFailedError: The note could not be made durable. The store takes no more messages;
                whether the topic is deleted, the next start tells.
            OSError: A file cannot be written or removed.
        """
        try:
            self._queues.delete_topic(topic, lambda: self._log.topic_ends(topic))
        except FlushFailedError as error:
            self._on_failure(error)
            raise

    # Watching

    @property
    def confirm_offset(self) -> PhysicalOffset:
        """End of what may be shown: where the confirm point is."""
        return self.confirm_point.offset

    @property
    def failure(self) -> StoreError | None:
        """The error that ended the store's work for good; None while there is none."""
        return self._failure

    @property
    def full_disk(self) -> DiskFullError | DiskRatioError | OutOfResourcesError | None:
        """Why messages are refused until there is room, None while they are not."""
        return self._reput.full_disk or self._housekeeping.refusal

    @property
    def dispatch_behind_bytes(self) -> int:
        """How much of what may be shown is not in the queues yet."""
        return max(0, self.confirm_offset - self.dispatched.offset)

    @property
    def indexed_to(self) -> PhysicalOffset:
        """Up to where messages are found by key."""
        return self._reput.indexed_to

    @property
    def flush_behind_bytes(self) -> int:
        """How much of what is appended is not durable yet."""
        return max(0, self._log.end_offset - self.durable_watermark.offset)

    @property
    def storage_bytes(self) -> int:
        """Summed sizes of the files of log, queues and index. Looks at no file of a queue."""
        others = (tree_bytes(self.directory / name, self._file_system) for name in (LOG, INDEX))
        return sum(others) + self._queues.file_bytes()

    def max_offset(self, topic: str, queue_id: int) -> QueueOffset:
        """Return as for a reader. Reput puts nothing into a queue that may not be shown."""
        bounds = self._queues.bounds(topic, queue_id)
        return bounds[1] if bounds and bounds[1] else self._queues.noted_end(topic, queue_id)

    def queue_end(self, topic: str, queue_id: int) -> QueueOffset:
        """Return the queue offset that the next message of a queue gets.

        Ahead of `max_offset` by what is appended and not dispatched yet. Consumer progress beyond
        it after a start was lost with the messages that it followed.
        """
        return self._log.queue_end(topic, queue_id)

    def add_arrival_listener(self, listener: Callable[[Sequence[Arrival]], None]) -> None:
        """Call `listener` on the reput thread, once per batch, with the queues that have news."""
        self._reput.add_arrival_listener(listener)

    def add_failure_listener(self, listener: Callable[[StoreError], None]) -> None:
        """Call `listener`, once, on the thread that failed, when the store cannot go on.

        At once if that has happened already.
        """
        with self._failure_guard:
            failure = self._failure
            self._failure_listeners = (*self._failure_listeners, listener)
        if failure is not None:
            tell((listener,), failure)

    def _on_failure(self, failure: StoreError) -> None:
        with self._failure_guard:
            # Failures of other threads that follow from the first one are not reported.
            if self._failure is not None:
                return
            self._failure = failure
            listeners = self._failure_listeners
        tell(listeners, failure)

    def _visible_end(self, queue: ConsumeQueue) -> QueueOffset:
        """Return the queue's end: reput puts nothing into it that may not be shown."""
        return queue.max_offset

    # The end

    def close(self) -> None:
        """Make everything durable and dispatched, save the checkpoint, give the store up.

        After a failure nothing more is promised: the abort file stays and the next start recovers.

        Raises:
            StoreError: A flush failed now; the store is closed nevertheless.
        """
        if self._closed:
            return
        self._closed = True
        with ExitStack() as last:
            last.callback(self._ownership.release)
            # After everything that may change a file.
            last.callback(self._mark_closed)
            last.callback(self._checkpoint_file.close)
            last.callback(self._watermark_file.close)
            last.callback(super().close)
            self._housekeeping.stop()
            # An append must not come after the last flush: it would never become durable.
            self._log.stop_appending()
            # In this order: reput dispatches what the last flush confirms.
            self._flush.stop()
            self._reput.stop()
            self._checkpoints.stop()
            if self._failure is None and self._reput.full_disk is None:
                self._checkpoints.save_last()
                self._is_settled = True

    def _mark_closed(self) -> None:
        if self._is_settled:
            self._ownership.mark_closed()


def _warm(parts: StoreParts, config: StoreConfig, on_progress: Progress) -> None:
    if config.warm_queue_files:
        for done in parts.queues.warm():
            on_progress("warming consume queues", done, len(parts.queues.queues()))


@contextmanager
def _refusal_named(path: Path) -> Iterator[None]:
    """Name the file for which there is no room: the system's own error does not."""
    try:
        yield
    except OSError as error:
        raise_refusal(error, path, 1)
        raise
