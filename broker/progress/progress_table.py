"""The progress of every group in every queue, kept in memory and safe from `kill -9`.

change --> journal + memory (2 us, before the call returns)
                |
                +--> every 100 ms: rows that changed --> progress.db, one transaction;
                |    the journal's room up to there is given back
                +--> every 5 s: committed offsets --> config/consumerOffset.json
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, final

from sqlite_utils import Database

from commitbus.broker.metadata.errors import StateWriteError
from commitbus.broker.metadata.rocketmq_config import OWN_DIRECTORY, make_own_directory
from commitbus.broker.metadata.sqlite_thread import SqliteThread
from commitbus.broker.progress import progress_rows
from commitbus.broker.progress.changes import (
    Definition,
    EntryKind,
    encode_acknowledgement,
    encode_change,
    encode_definition,
    encode_delivery,
    encode_extension,
    encode_hold,
    encode_offset,
    encode_redelivery,
)
from commitbus.broker.progress.holdings import Holdings
from commitbus.broker.progress.journal import JOURNAL_BYTES_DEFAULT, ProgressJournal
from commitbus.broker.progress.journal_flush import ProgressFlush
from commitbus.broker.progress.loader import ProgressLoader
from commitbus.broker.progress.offset_mirror import OffsetMirror
from commitbus.broker.progress.progress_index import Item, ProgressIndex
from commitbus.broker.progress.progress_rows import Key
from commitbus.broker.progress.queue_progress import (
    IN_FLIGHT_MAX_DEFAULT,
    InFlight,
    Lease,
    QueueProgress,
)
from commitbus.broker.progress.saver import ProgressSaver
from commitbus.commitlog.clock import Clock
from commitbus.commitlog.errors import StoreClosedError, StoreError
from commitbus.commitlog.file_system import FileSystem

EARLY_SAVE_FILLED: Final = 0.5
"""A journal fuller than that is saved at once, not at the next interval."""

STEP_QUEUES: Final = 200
"""Of a deletion, until others go on: 1 ms."""

FREED_AT_ONCE_MAX: Final = 1_000
"""Messages in flight of a queue that is deleted. More are freed one by one beside the changes."""

_log = logging.getLogger(__name__)


@final
class ProgressTable:
    """All progress of a store. Changes are for one thread, the trio thread; none of them waits.

    The one exception: when the journal is full because saving does not keep up (or fails), a
    change saves first. So nothing is lost and nothing grows.

    Args:
        store_directory: The store.
        clock: For the mirror's times.
        file_system: What the journal and the mirror are kept through.
        save_interval_ms: How often changed rows are saved to SQLite; less often, up to
            three seconds, where that takes more than a fiftieth of the interval.
        mirror_interval_ms: How often `config/consumerOffset.json` is written, when it changed.
        journal_bytes: The size of `commitbus/progress.journal`.
        in_flight_max: How many messages of a queue may be in flight for a group. For the caller
            of `deliver` to keep to.
        sync: Whether `flush` makes changes durable for whoever waits; each save costs an fsync.
    """

    def __init__(
        self,
        store_directory: Path,
        *,
        clock: Clock,
        file_system: FileSystem,
        save_interval_ms: int = 100,
        mirror_interval_ms: int = 5_000,
        journal_bytes: int = JOURNAL_BYTES_DEFAULT,
        in_flight_max: int = IN_FLIGHT_MAX_DEFAULT,
        sync: bool = False,
    ) -> None:
        self.in_flight_max: Final = in_flight_max
        self._store_directory = store_directory
        self._clock, self._file_system = clock, file_system
        self._save_interval_ms, self._sync = save_interval_ms, sync
        self._index, self.holdings = ProgressIndex(), Holdings()
        """The second: what is in flight with automatic renewal."""
        # What the SQLite thread shares with the trio thread.
        self._lock = threading.Lock()
        self._mirror = OffsetMirror(
            store_directory,
            self._index,
            clock=clock,
            file_system=file_system,
            interval_ms=mirror_interval_ms,
            lock=self._lock,
        )
        self._journal = ProgressJournal(
            store_directory / OWN_DIRECTORY / "progress.journal",
            journal_bytes,
            file_system=file_system,
        )
        self._saver = ProgressSaver(
            self._index, self._journal, self._mirror, clock=clock, lock=self._lock
        )
        self._thread: SqliteThread | None = None
        self.flush: ProgressFlush | None = None
        """Makes changes durable, from `open` on; None without `sync`."""
        self._journal_fails = False

    def open(self) -> None:
        """Read what was saved, apply the journal, and import offsets that RocketMQ wrote.

        Raises:
            StateFileError: A file is not what it should be.
            StateVersionError: A file was written by a newer commitbus.
            StateWriteError: The disk does not take what was read back.
        """
        thread = SqliteThread(
            make_own_directory(self._store_directory, self._file_system) / "progress.db",
            schema=progress_rows.SCHEMA,
            sync_commits=self._sync,
            tick=self._tick,
            tick_interval_s=self._save_interval_ms / 1000,
        )
        parts = self._index, self.holdings, self._journal, self._saver, self._mirror
        loader = ProgressLoader(*parts, clock=self._clock)
        try:
            thread.run_sync(lambda database: loader.load(database, thread.path))
        except BaseException:
            thread.close()
            self._journal.close()
            raise
        self._thread = thread
        self.flush = ProgressFlush(self._journal, self.save) if self._sync else None

    def add_failure_listener(self, listener: Callable[[StoreError], None]) -> None:
        """Call `listener`, once, on another thread, should the database's thread die."""
        assert self._thread is not None, "it is open"
        self._thread.add_failure_listener(listener)
        if self.flush is not None:
            self.flush.add_failure_listener(listener)

    def close(self) -> None:
        """Save everything, write the mirror, close the files. A second call does nothing.

        Raises:
            StateWriteError: The save failed; what was answered is still in the journal.
        """
        if self._thread is None:
            return
        if self.flush is not None:
            self.flush.stop()
        thread, self._thread = self._thread, None
        try:
            thread.close(last=self._saver.finish)
        finally:
            self._journal.close()

    @property
    def sequence(self) -> int:
        """The number of the last change's journal entry."""
        return self._journal.sequence

    def get(self, group: str, topic: str, queue_id: int) -> QueueProgress | None:
        """Return the progress of a group in a queue, None where it has not begun."""
        return self._index.get(group, topic, queue_id)

    def create(self, group: str, topic: str, queue_id: int, initial_offset: int) -> QueueProgress:
        """Return the progress of a group in a queue, begun at `initial_offset` if it is new.

        Raises:
            StateWriteError: The journal cannot be written, or is full and cannot be saved; nothing
                changed.
        """
        key = group, topic, queue_id
        if (progress := self._index.get(group, topic, queue_id)) is not None:
            return progress
        payload = encode_definition(Definition(key, initial_offset))
        self._make_room(len(payload))
        with self._lock:
            progress = QueueProgress(
                initial_offset, key_id=self._index.next_key_id, holdings=self.holdings
            )
            self._record(EntryKind.DEFINE, progress, payload)
            self._index.add(key, progress)
        return progress

    def __len__(self) -> int:
        """Return how many queues of groups there are."""
        return len(self._index)

    def items(self) -> list[Item]:
        """Return everything, by (group, topic, queue id): never while anybody is served."""
        return self._index.items()

    def key_of(self, progress: QueueProgress) -> Key | None:
        """Return group, topic and queue id of a progress, None if it was deleted."""
        item = self._index.by_id(progress.key_id)
        return item[0] if item is not None else None

    # These copy one dict, which no other thread can interrupt.

    def groups(self) -> list[str]:
        """Return the groups that have progress. For any thread."""
        return self._index.groups()

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups that have progress in a topic, sorted. For any thread."""
        return sorted(self._index.groups_of(topic))

    def topics_of(self, group: str) -> list[str]:
        """Return the topics in which a group has progress, sorted. For any thread."""
        return sorted(self._index.topics_of(group))

    def queues_of(self, group: str, topic: str) -> list[tuple[int, QueueProgress]]:
        """Return a group's progress in a topic, by queue id. For any thread.

        Other threads may call `lag` of it and read `next_offset`, `in_flight_count` and
        `delivered_count`. For the rest they call `committed_offset` and `snapshot`.
        """
        return self._index.queues_of(group, topic)

    def committed_offset(self, progress: QueueProgress) -> int:
        """Return a committed offset. For any thread."""
        with self._lock:
            return progress.committed_offset

    def snapshot(self, progress: QueueProgress) -> tuple[int, list[InFlight]]:
        """Return the next offset and what is in flight, in order. For any thread.

        Which messages these are is as of one moment; what is said of each may change.
        """
        with self._lock:
            return progress.next_offset, progress.entries()

    def deliver(
        self,
        progress: QueueProgress,
        offsets: Sequence[int],
        lease: Lease,
        *,
        next_offset: int,
    ) -> None:
        """Put new offsets in flight, for the first time, and go on at `next_offset`.

        `offsets` ascend, lie in [`progress.next_offset`, `next_offset`) and are at most 1,024.
        Those between that are left out count as acknowledged.

        Raises:
            StateWriteError: The journal cannot be written, or is full and cannot be saved; nothing
                changed.
        """
        assert progress.next_offset <= next_offset
        assert not offsets or progress.next_offset <= offsets[0] <= offsets[-1] < next_offset
        payload = encode_delivery(offsets, lease, next_offset=next_offset)
        self._make_room(len(payload))
        with self._lock:
            self._record(EntryKind.DELIVER, progress, payload)
            progress.deliver(offsets, lease, next_offset=next_offset)

    def hold(self, progress: QueueProgress, offsets: Sequence[int], *, next_offset: int) -> None:
        """Keep new offsets back for their turn and go on at `next_offset`.

        `offsets` are as those of `deliver`. `redeliver` delivers one of them the first time.

        Raises:
            StateWriteError: The journal cannot be written, or is full and cannot be saved; nothing
                changed.
        """
        assert progress.next_offset <= next_offset
        assert not offsets or progress.next_offset <= offsets[0] <= offsets[-1] < next_offset
        payload = encode_hold(offsets, next_offset=next_offset)
        self._make_room(len(payload))
        with self._lock:
            self._record(EntryKind.HOLD, progress, payload)
            progress.hold(offsets, next_offset=next_offset)

    def redeliver(
        self,
        progress: QueueProgress,
        offset: int,
        lease: Lease,
        *,
        counts: bool = True,
    ) -> int:
        """Deliver an offset that is in flight once more; return which attempt this is.

        It is another one, unless it does not count or the offset is suspended.

        Raises:
            StateWriteError: The journal cannot be written, or is full and cannot be saved; nothing
                changed.
        """
        assert offset in progress.in_flight
        attempt = progress.next_attempt(offset, counts=counts)
        payload = encode_redelivery(offset, lease, counts=counts, attempt=attempt)
        self._make_room(len(payload))
        with self._lock:
            self._record(EntryKind.REDELIVER, progress, payload)
            return progress.redeliver(offset, lease, attempt=attempt)

    def acknowledge(self, progress: QueueProgress, *offsets: int) -> int:
        """Take up to 1,024 offsets out of flight for good; return how many of them were in flight.

        Raises:
            StateWriteError: The journal cannot be written, or is full and cannot be saved; nothing
                changed.
        """
        in_flight = progress.in_flight
        done = [offset for offset in dict.fromkeys(offsets) if offset in in_flight]
        payload = encode_acknowledgement(done)
        self._make_room(len(payload))
        if not done:
            return 0
        with self._lock:
            self._record(EntryKind.ACKNOWLEDGE, progress, payload)
            for offset in done:
                progress.acknowledge(offset)
        return len(done)

    def change_invisible(
        self,
        progress: QueueProgress,
        offset: int,
        *,
        pop_time_ms: int,
        invisible_until_ms: int,
        suspend: bool,
    ) -> None:
        """Set anew when an offset that is in flight becomes visible again.

        A pop time other than the present one ends the automatic renewal. With `suspend` its next
        delivery does not count as another attempt.

        Raises:
            StateWriteError: The journal cannot be written, or is full and cannot be saved; nothing
                changed.
        """
        assert offset in progress.in_flight
        payload = encode_change(
            offset, pop_time_ms=pop_time_ms, invisible_until_ms=invisible_until_ms, suspend=suspend
        )
        self._make_room(len(payload))
        with self._lock:
            self._record(EntryKind.CHANGE, progress, payload)
            progress.change_invisible(
                offset,
                pop_time_ms=pop_time_ms,
                invisible_until_ms=invisible_until_ms,
                suspend=suspend,
            )

    def extend(
        self, progress: QueueProgress, offsets: Sequence[int], invisible_until_ms: int
    ) -> None:
        """Set anew when messages in flight of one client become visible again, and nothing else.

        `offsets` ascend and are 1 to 1,024. To do so costs little more for many than for one.

        Raises:
            StateWriteError: The journal cannot be written, or is full and cannot be saved; nothing
                changed.
        """
        payload = encode_extension(offsets, invisible_until_ms)
        self._make_room(len(payload))
        with self._lock:
            self._record(EntryKind.EXTEND, progress, payload)
            progress.extend(offsets, invisible_until_ms)

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> QueueProgress:
        """Have a group go on at `offset`, forgetting what is in flight; begin it if it is new.

        Raises:
            StateWriteError: The journal cannot be written, or is full and cannot be saved; nothing
                changed.
        """
        progress = self.create(group, topic, queue_id, offset)
        payload = encode_offset(offset)
        self._make_room(len(payload))
        with self._lock:
            self._record(EntryKind.RESET, progress, payload)
            self._saver.discarded.append(progress.reset(offset))
        return progress

    def clamp(self, max_offset: Callable[[str, int], int]) -> None:
        """Forget what lies at or beyond each queue's end, to be called once after recovery.

        A power cut may have taken the last messages of the log, and new ones take their offsets:
        were these offsets still acknowledged, a group would never see the new messages.

        Args:
            max_offset: Of a topic and queue id: one past its last message, 0 if there is none.

        Raises:
            StateWriteError: The journal cannot be written, or is full and cannot be saved.
        """
        for (group, topic, queue_id), progress in self.items():
            end = max_offset(topic, queue_id)
            if progress.next_offset <= end:
                continue
            _log.warning(
                "progress lies beyond the log",
                extra={
                    "group": group,
                    "topic": topic,
                    "queue_id": queue_id,
                    "next_offset": progress.next_offset,
                    "max_offset": end,
                },
            )
            payload = encode_offset(end)
            self._make_room(len(payload))
            with self._lock:
                self._record(EntryKind.CLAMP, progress, payload)
                progress.clamp(end)

    def delete_group(self, group: str) -> None:
        """Forget all progress of a group, as `deleting_group` in one step."""
        for _ in self.deleting_group(group):
            pass

    def deleting_group(self, group: str) -> Iterator[None]:
        """Forget the progress of a group, and let others go on after every `STEP_QUEUES` queues.

        Raises:
            StateWriteError: The journal cannot be written, or is full and cannot be saved; the
                rest is still there.
        """
        return self._deleting(self._index.items_of(group=group))

    def delete_topic(self, topic: str, *, group: str | None = None) -> None:
        """Forget all progress in a topic, or that of one group, as `deleting_topic` in one step."""
        for _ in self.deleting_topic(topic, group=group):
            pass

    def deleting_topic(self, topic: str, *, group: str | None = None) -> Iterator[None]:
        """Forget the progress in a topic, or that of one group in it, in steps as above.

        Raises:
            StateWriteError: The journal cannot be written, or is full and cannot be saved; the
                rest is still there.
        """
        return self._deleting(self._index.items_of(topic=topic, group=group))

    def _deleting(self, items: Sequence[Item]) -> Iterator[None]:
        for number, (key, progress) in enumerate(items, 1):
            if self._index.get(*key) is progress:
                self._make_room(0)
                with self._lock:
                    self._record(EntryKind.DELETE, progress, b"")
                    self._index.remove(key, progress)
                    if progress.in_flight_count > FREED_AT_ONCE_MAX:
                        self._saver.discarded.append(progress.reset(progress.next_offset))
                    self._mirror.note(*key[:2])
            if number % STEP_QUEUES == 0:
                yield

    def save(self) -> None:
        """Save to SQLite what has changed, and wait for it.

        Raises:
            StateWriteError: SQLite could not do it; the journal still has everything.
        """
        if self._thread is None:
            raise StoreClosedError
        self._thread.run_sync(self._saver.save)

    # Changing, on the trio thread

    def _make_room(self, payload_bytes: int) -> None:
        if self._thread is None:
            raise StoreClosedError
        if not self._journal.has_room(payload_bytes):
            self.save()
        elif self._journal.filled > EARLY_SAVE_FILLED and not self._saver.is_requested:
            self._saver.is_requested = True
            self._thread.wake()

    def _record(self, kind: EntryKind, progress: QueueProgress, payload: bytes) -> None:
        # Before the change is made in memory: when this fails, nothing has changed.
        try:
            progress.sequence = self._journal.append(kind, progress.key_id, payload)
        except StateWriteError as error:
            if not self._journal_fails:  # once, not for every acknowledgement
                _log.error("progress journal not written", extra={"reason": str(error)})
            self._journal_fails = True
            raise
        self._journal_fails = False
        self._saver.changed.add(progress.key_id)

    # On the SQLite thread

    def _tick(self, database: Database) -> None:
        # Not before it is read: the mirror would be overwritten with nothing.
        if self._thread is not None:
            self._saver.tick(database)
