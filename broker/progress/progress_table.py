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

from commitbus.broker.metadata.errors import StateWriteError
from commitbus.broker.metadata.rocketmq_config import OWN_DIRECTORY, make_own_directory
from commitbus.broker.progress.changes import (
    Acknowledgement,
    Change,
    Clamp,
    Definition,
    Delivery,
    EntryKind,
    Extension,
    Hold,
    Redelivery,
    Reset,
    VisibilityChange,
)
from commitbus.broker.progress.holdings import Holdings
from commitbus.broker.progress.journal import JOURNAL_BYTES_DEFAULT, ProgressJournal
from commitbus.broker.progress.journal_flush import ProgressFlush
from commitbus.broker.progress.loader import ProgressLoader
from commitbus.broker.progress.offset_mirror import OffsetMirror
from commitbus.broker.progress.progress_index import Item, ProgressIndex
from commitbus.broker.progress.progress_rows import Key, ProgressRows
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

STEP_QUEUES: Final = 200
"""Queues that a deletion handles before other tasks run: 1 ms."""

FREED_AT_ONCE_MAX: Final = 1_000
"""A deleted queue with more messages in flight has them freed one by one by the saver."""

_log = logging.getLogger(__name__)


@final
class ProgressTable:
    """All progress of a store. Changes are for one thread, the trio thread; none of them waits.

    The one exception: when the journal is full because saving does not keep up (or fails), a
    change saves first. So nothing is lost and nothing grows.

    Args:
        store_directory: The store, for the journal and the mirror.
        rows: Where changed rows are saved. Started and closed by the table.
        clock: For the mirror's times.
        file_system: What the journal and the mirror are kept through.
        save_interval_ms: How often changed rows are saved; less often, up to
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
        rows: ProgressRows,
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
        # Between the thread of the rows and the trio thread.
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
        self._rows, self._is_open = rows, False
        self._saver = ProgressSaver(
            rows, self._index, self._journal, self._mirror, clock=clock, lock=self._lock
        )
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
        make_own_directory(self._store_directory, self._file_system)
        self._rows.start(self._tick, self._save_interval_ms / 1000, sync=self._sync)
        loader = ProgressLoader(
            self._rows,
            self._index,
            self.holdings,
            journal=self._journal,
            saver=self._saver,
            mirror=self._mirror,
            clock=self._clock,
        )
        try:
            self._rows.run(loader.load)
        except BaseException:
            self._rows.close()
            self._journal.close()
            raise
        self._is_open = True
        self.flush = ProgressFlush(self._journal, self.save) if self._sync else None

    def add_failure_listener(self, listener: Callable[[StoreError], None]) -> None:
        """Call `listener`, once, on another thread, should a thread of the table die."""
        self._rows.add_failure_listener(listener)
        if self.flush is not None:
            self.flush.add_failure_listener(listener)

    def close(self) -> None:
        """Save everything, write the mirror, close the files. A second call does nothing.

        Raises:
            StateWriteError: The save failed; what was answered is still in the journal.
        """
        if not self._is_open:
            return
        if self.flush is not None:
            self.flush.stop()
        self._is_open = False
        try:
            self._rows.close(last=self._saver.finish)
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
        kind, payload = Definition(key, initial_offset).encode()
        self._make_room(len(payload))
        with self._lock:
            key_id = self._index.next_key_id
            sequence = self._record(kind, key_id, payload)
            progress = QueueProgress(
                initial_offset, key_id=key_id, sequence=sequence, holdings=self.holdings
            )
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

    # Each of these raises StateWriteError when the journal cannot be written, or is full and cannot
    # be saved; nothing has changed then. `changes` says what each does.

    def deliver(
        self,
        progress: QueueProgress,
        offsets: Sequence[int],
        lease: Lease,
        *,
        next_offset: int,
    ) -> None:
        """Make a `Delivery`."""
        assert _are_new(progress, offsets, next_offset)
        self._change(progress, Delivery(offsets, lease, next_offset))

    def hold(self, progress: QueueProgress, offsets: Sequence[int], *, next_offset: int) -> None:
        """Make a `Hold`. `redeliver` delivers one of the offsets the first time."""
        assert _are_new(progress, offsets, next_offset)
        self._change(progress, Hold(offsets, next_offset))

    def redeliver(
        self,
        progress: QueueProgress,
        offset: int,
        lease: Lease,
        *,
        counts: bool = True,
    ) -> int:
        """Make a `Redelivery`; return the number of the attempt."""
        attempt = progress.next_attempt(offset, counts=counts)
        self._change(progress, Redelivery(offset, lease, counts, attempt))
        return attempt

    def acknowledge(self, progress: QueueProgress, *offsets: int) -> int:
        """Make an `Acknowledgement` of the offsets that are in flight; return their number."""
        in_flight = progress.in_flight
        done = [offset for offset in dict.fromkeys(offsets) if offset in in_flight]
        if not done:
            self._make_room(0)  # a closed table refuses this as well
            return 0
        self._change(progress, Acknowledgement(done))
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
        """Make a `VisibilityChange`."""
        assert offset in progress.in_flight
        change = VisibilityChange(offset, pop_time_ms, invisible_until_ms, suspend)
        self._change(progress, change)

    def extend(
        self, progress: QueueProgress, offsets: Sequence[int], invisible_until_ms: int
    ) -> None:
        """Make an `Extension`: it costs little more for many offsets than for one."""
        self._change(progress, Extension(offsets, invisible_until_ms))

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> QueueProgress:
        """Have a group go on at `offset`, forgetting what is in flight; begin it if it is new.

        Raises:
            StateWriteError: The journal cannot be written, or is full and cannot be saved; nothing
                changed.
        """
        progress = self.create(group, topic, queue_id, offset)
        forgotten = progress.entries_to_free()
        self._change(progress, Reset(offset))
        self._saver.discard(forgotten)
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
            self._change(progress, Clamp(end))

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
                    self._record(EntryKind.DELETE, progress.key_id, b"")
                    self._index.remove(key, progress)
                    if progress.in_flight_count > FREED_AT_ONCE_MAX:
                        forgotten = progress.entries_to_free()
                        progress.reset(progress.next_offset)
                        self._saver.discard(forgotten)
                    self._mirror.note(*key[:2])
            if number % STEP_QUEUES == 0:
                yield

    def save(self) -> None:
        """Save what has changed, and wait for it.

        Raises:
            StateWriteError: It could not be saved; the journal still has everything.
        """
        if not self._is_open:
            raise StoreClosedError
        self._rows.run(self._saver.save)

    # Changing, on the trio thread

    def _change(self, progress: QueueProgress, change: Change) -> None:
        kind, payload = change.encode()
        self._make_room(len(payload))
        with self._lock:
            progress.apply(change, self._record(kind, progress.key_id, payload))

    def _make_room(self, payload_bytes: int) -> None:
        if not self._is_open:
            raise StoreClosedError
        if self._journal.has_half_free(payload_bytes):
            return
        if not self._journal.has_room(payload_bytes):
            self.save()
        elif self._saver.request():
            # At once, not at the next interval: no change has to wait for a save then.
            self._rows.wake()

    def _record(self, kind: EntryKind, key_id: int, payload: bytes) -> int:
        """Write an entry, before the change is made in memory: if this fails, nothing changed."""
        try:
            sequence = self._journal.append(kind, key_id, payload)
        except StateWriteError as error:
            if not self._journal_fails:  # once, not for every acknowledgement
                _log.error("progress journal not written", extra={"reason": str(error)})
            self._journal_fails = True
            raise
        self._journal_fails = False
        self._saver.note(key_id)
        return sequence

    # On the thread of the rows

    def _tick(self) -> None:
        # Not before everything is read: the mirror would be overwritten with nothing.
        if self._is_open:
            self._saver.tick()


def _are_new(progress: QueueProgress, offsets: Sequence[int], next_offset: int) -> bool:
    first, last = (offsets[0], offsets[-1]) if offsets else (next_offset, progress.next_offset - 1)
    return progress.next_offset <= first and last < next_offset
