"""The thread that seals full log files, and lets old ones go.

Every ten seconds, as in RocketMQ, and when a file has become full and durable:

1. A file whose first record is older than `sealAfter` is ended.
2. Retention: a full disk or old messages cost log files, and with them the queue and index files
   that lead into them. Who reads such a file keeps it until done: it is only unlinked.
3. Full, durable files without a manifest get one, each in one step, the oldest first.

What the disk refuses does not fail the store: it is logged, and tried again in the next round. An
unexpected exception does, as on every thread of the store.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Final, final

from commitbus.broker.store.layout import LOG
from commitbus.broker.store.sealing import Sealing
from commitbus.commitlog.clock import Clock
from commitbus.commitlog.commit_log import CommitLog
from commitbus.commitlog.errors import (
    DiskFullError,
    DiskRatioError,
    StoreError,
)
from commitbus.commitlog.file_ages import FileAges
from commitbus.commitlog.file_system import FileSystem
from commitbus.commitlog.retention import (
    DiskUsage,
    RetentionPolicy,
    StoredFile,
    files_to_delete,
    is_too_full,
)
from commitbus.commitlog.service_thread import ServiceThread
from commitbus.commitlog.threads import SYSTEM_THREADS, Threads
from commitbus.commitlog.types import PhysicalOffset
from commitbus.consumequeue.consume_queue_store import ConsumeQueueStore
from commitbus.flush.doorbell import Doorbell
from commitbus.flush.sealed import SealedSegment
from commitbus.flush.watermark import Watermark
from commitbus.indexfile.index_service import IndexService

INTERVAL_S: Final = 10.0
_OTHERS_TURN_S: Final = 0.001
"""Between two MiB of a file that is being sealed: handlers need the interpreter more."""

_logger = logging.getLogger(__name__)


@final
class Housekeeping:
    """Keeps a store's files within bounds. `refusal` and `seal` are for any thread."""

    def __init__(
        self,
        store: Path,
        log: CommitLog,
        queues: ConsumeQueueStore,
        index: IndexService,
        *,
        retention: RetentionPolicy | None,
        seal_after_s: int,
        durable: Watermark,
        dispatched: Watermark,
        before_deletion: Callable[[], None],
        on_roll: Callable[[], None],
        on_failure: Callable[[StoreError], None],
        clock: Clock,
        file_system: FileSystem,
        threads: Threads = SYSTEM_THREADS,
    ) -> None:
        """Look at the disk, so that a full one refuses the first message already.

        Args:
            store: The store's directory.
            log: What is sealed and deleted.
            queues: They lose what leads into deleted files.
            index: Likewise.
            retention: What goes; None keeps everything and refuses nothing.
            seal_after_s: Age at which a log file is ended, 0 for never.
            durable: The durable watermark. What lies behind it is neither sealed nor deleted.
            dispatched: What lies behind it is yet to come into the queues, and stays.
            before_deletion: Makes durable what is dispatched: where the log has no message of a
                queue any more, its last unit alone tells the queue's end. StoreError.
            on_roll: Called when a file was ended before it was full.
            on_failure: Called on the thread, once, should it die.
            clock: For the ages of files.
            file_system: What holds the store.
            threads: For the thread and its locks.
        """
        self._store, self._log, self._queues, self._index = store, log, queues, index
        self._retention, self._seal_after_ms = retention, seal_after_s * 1000
        self._durable, self._dispatched, self._on_roll = durable, dispatched, on_roll
        self._before_deletion = before_deletion
        self._clock, self._file_system = clock, file_system
        self._sealing = Sealing(store, log, durable, clock, file_system)
        self._ages = FileAges(store, clock, file_system)
        self.refusal: DiskRatioError | None = None
        """Why messages are refused until there is room, None while they are not. No property:
        every message asks."""
        # Where the log began when queues and index were last cut to it: the start has done so.
        self._trimmed_to = log.min_offset
        # Held for one file that is sealed, or for one round of deletions.
        self._guard = threads.lock()
        self._bell = Doorbell(threads)
        self._sleep = threads.sleep
        self._stopping = False
        self._thread = ServiceThread("commitbus-housekeeping", self._run, on_failure, threads)
        self._look_at_disk()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def flushed(self, durable: PhysicalOffset) -> None:
        """Hear how far the log is durable. Returns at once."""
        if durable - self._sealing.looked_to >= self._log.file_size:
            self._bell.ring()

    def stop(self) -> None:
        """End the thread; a file that is being sealed is left for the next start."""
        self._stopping = True
        self._bell.ring()
        self._thread.join()

    def run_once(self) -> None:
        """Do a whole round now, on this thread."""
        try:
            self._round()
            while not self._stopping and (base_offset := self._sealing.next_unsealed()) is not None:
                self.seal(base_offset)
                self._retain()
        except (StoreError, OSError) as error:
            _logger.warning("housekeeping is put off", extra={"reason": str(error)})

    def seal(self, base_offset: PhysicalOffset) -> SealedSegment | None:
        """Write the manifest of a full, durable file, and return it.

        None if the file is gone or damaged, or the store is being closed.

        Raises:
            OSError: The manifest could not be written.
        """
        with self._guard:
            return self._sealing.seal(base_offset, self._let_others_work)

    def _run(self) -> None:
        while not self._stopping:
            self.run_once()
            self._bell.wait(INTERVAL_S)

    def _round(self) -> None:
        with self._guard:
            self._sealing.forget_lost()
        self._retain()
        if self._is_seal_due() and self._log.roll() is not None:
            self._on_roll()

    def _is_seal_due(self) -> bool:
        """Return whether the file that is written is to be ended. Never where room is short."""
        if not self._seal_after_ms or self.refusal is not None:
            return False
        age_ms = self._sealing.age_of_last_ms()
        return age_ms is not None and age_ms >= self._seal_after_ms

    def _let_others_work(self) -> bool:
        self._sleep(_OTHERS_TURN_S)
        return not self._stopping

    # Retention

    def _retain(self) -> None:
        """Delete what may go; then see whether there is room for messages."""
        policy, usage = self._retention, self._look_at_disk()
        if policy is None or usage is None:
            return
        now_s = self._clock.now_ms() / 1000
        with self._guard:
            files = self._deletable_files()
            local_hour = datetime.fromtimestamp(now_s).astimezone().hour
            count = files_to_delete(policy, files, usage, local_hour=local_hour)
            try:
                if count:
                    last = files[count - 1]
                    self._delete_before(PhysicalOffset(last.base_offset + last.size_bytes))
            finally:
                self._trim()
        if count:
            self._look_at_disk()

    def _delete_before(self, offset: PhysicalOffset) -> None:
        self._before_deletion()
        try:
            self._queues.note_ends(offset)
        except DiskFullError as error:
            # It is to get room that files go. The units tell the same.
            _logger.warning("queue ends are not noted", extra={"reason": str(error)})
        # The manifest first: one of a file that is gone would be a lie.
        self._sealing.delete_before(offset)
        count = self._log.delete_before(offset)
        _logger.info(
            "log files deleted", extra={"count": count, "min_offset": self._log.min_offset}
        )

    def _trim(self) -> None:
        """Remove from queues and index what leads to deleted files."""
        begin = self._log.min_offset
        if begin == self._trimmed_to:
            return
        try:
            try:
                self._queues.delete_before(begin)
            finally:
                self._index.delete_before(begin)
        except (StoreError, OSError) as error:
            # A page that cannot be read must not keep all else from being done.
            _logger.warning("queues are not trimmed", extra={"reason": str(error)})
        else:
            self._trimmed_to = begin

    def _deletable_files(self) -> list[StoredFile]:
        """Return every file that at most readers still use, oldest first."""
        ended = self._log.local_files[:-1]
        self._ages.look([file.base_offset for file in ended], self._sealing.last_store_timestamp)
        needed_from = min(self._dispatched.offset, self._durable.offset)
        return [
            StoredFile(
                PhysicalOffset(file.base_offset),
                file.size_bytes,
                self._ages.age_ms(file.base_offset),
            )
            for file in ended
            if file.base_offset + file.size_bytes <= needed_from
        ]

    def _look_at_disk(self) -> DiskUsage | None:
        """Set whether messages are refused; return how full the disk is, None if unlimited."""
        policy = self._retention
        if policy is None:
            return None
        usage = DiskUsage(*self._file_system.disk_usage(self._store / LOG))
        before, refusal = self.refusal, None
        if is_too_full(policy, usage):
            refusal = DiskRatioError(self._store, usage.used_percent, policy.refuse_percent)
        self.refusal = refusal
        if (before is None) != (refusal is None):
            what = "messages are taken again" if refusal is None else "messages are refused"
            _logger.warning(what, extra={"disk_used_percent": round(usage.used_percent, 1)})
        return usage
