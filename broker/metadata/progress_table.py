"""The progress of every group in every queue, kept in memory and safe from `kill -9`.

    change --> journal + memory (2 us, before the call returns)
                    |
                    +--> every 100 ms: rows that changed --> progress.db, one transaction;
                    |    the journal's room up to there is given back
                    +--> every 5 s: committed offsets --> config/consumerOffset.json

A save notes the journal's end first and packs the rows after that, while changes go on. So a row
may already hold changes that the journal will replay; it says with its `sequence` up to which
entry it knows, and the replay of earlier ones passes it by.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, final

from sqlite_utils import Database

from commitbus.broker.metadata import progress_store
from commitbus.broker.metadata.errors import StateFileError, StateWriteError
from commitbus.broker.metadata.offset_mirror import OffsetMirror
from commitbus.broker.metadata.progress import Lease, QueueProgress
from commitbus.broker.metadata.progress_entries import (
    Definition,
    EntryError,
    EntryKind,
    apply_entry,
    decode_definition,
    encode_acknowledgement,
    encode_change,
    encode_definition,
    encode_delivery,
    encode_hold,
    encode_offset,
    encode_redelivery,
)
from commitbus.broker.metadata.progress_journal import (
    JOURNAL_BYTES_DEFAULT,
    JournalEntry,
    JournalMark,
    ProgressJournal,
)
from commitbus.broker.metadata.progress_store import Key
from commitbus.broker.metadata.rocketmq_config import OWN_DIRECTORY, make_own_directory
from commitbus.broker.metadata.sqlite_thread import SqliteThread
from commitbus.commitlog.clock import Clock
from commitbus.commitlog.errors import ReadFailedError, StoreClosedError, StoreError
from commitbus.commitlog.file_system import FileSystem

IN_FLIGHT_MAX_DEFAULT: Final = 10_000
"""RocketMQ's popInflightMessageThreshold."""

EARLY_SAVE_FILLED: Final = 0.5
"""A journal fuller than that is saved at once, not at the next interval."""

SAVE_PAUSE_FACTOR: Final = 50
SAVE_PAUSE_S_MAX: Final = 3.0
"""Many queues, or much in flight, take long to save. That is not repeated before this many times as
long has passed, or three seconds: the journal holds what changed, and packing rows takes the
interpreter from the handlers."""

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
            `SAVE_PAUSE_S_MAX`, where that takes more than a fiftieth of the interval.
        mirror_interval_ms: How often `config/consumerOffset.json` is written, when it changed.
        journal_bytes: The size of `commitbus/progress.journal`.
        in_flight_max: How many messages of a queue may be in flight for a group. For the caller
            of `deliver` to keep to.
        sync_saves: Whether saves reach stable storage: a power cut then costs the acknowledgements
            since the last one, and each save an fsync.
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
        sync_saves: bool = False,
    ) -> None:
        self.in_flight_max: Final = in_flight_max
        self._store_directory = store_directory
        self._clock, self._file_system = clock, file_system
        self._save_interval_ms, self._sync_saves = save_interval_ms, sync_saves
        self._mirror = OffsetMirror(
            store_directory,
            clock=clock,
            file_system=file_system,
            interval_ms=mirror_interval_ms,
            offsets=self._committed_offsets,
        )
        self._journal = ProgressJournal(
            store_directory / OWN_DIRECTORY / "progress.journal",
            journal_bytes,
            file_system=file_system,
        )
        self._thread: SqliteThread | None = None
        self._by_key: dict[Key, QueueProgress] = {}
        self._by_id: dict[int, tuple[Key, QueueProgress]] = {}
        self._next_key_id = 1
        # What the SQLite thread shares with the trio thread: held for one change, and for the
        # packing of one row.
        self._lock = threading.Lock()
        self._changed: set[int] = set()
        self._early_save_requested = False
        self._save_fails = self._journal_fails = False
        self._next_save_s = 0.0

    def open(self) -> None:
        """Read what was saved, apply the journal, and import offsets that RocketMQ wrote.

        Raises:
            StateFileError: A file is not what it should be.
            StateVersionError: A file was written by a newer commitbus.
            StateWriteError: The disk does not take what was read back.
        """
        thread = SqliteThread(
            make_own_directory(self._store_directory, self._file_system) / "progress.db",
            schema=progress_store.SCHEMA,
            sync_commits=self._sync_saves,
            tick=self._tick,
            tick_interval_s=self._save_interval_ms / 1000,
        )
        try:
            thread.run_sync(lambda database: self._load(database, thread.path))
        except BaseException:
            thread.close()
            self._journal.close()
            raise
        self._thread = thread

    def add_failure_listener(self, listener: Callable[[StoreError], None]) -> None:
        """Call `listener`, once, on another thread, should the database's thread die."""
        assert self._thread is not None, "it is open"
        self._thread.add_failure_listener(listener)

    def close(self) -> None:
        """Save everything, write the mirror, close the files. A second call does nothing.

        Raises:
            StateWriteError: The save failed; what was answered is still in the journal.
        """
        if self._thread is None:
            return
        thread, self._thread = self._thread, None
        try:
            thread.close(last=self._finish)
        finally:
            self._journal.close()

    def get(self, group: str, topic: str, queue_id: int) -> QueueProgress | None:
        """Return the progress of a group in a queue, None where it has not begun."""
        return self._by_key.get((group, topic, queue_id))

    def create(self, group: str, topic: str, queue_id: int, initial_offset: int) -> QueueProgress:
        """Return the progress of a group in a queue, begun at `initial_offset` if it is new.

        Raises:
            StateWriteError: The journal cannot be written, or is full and cannot be saved; nothing
                changed.
        """
        key = group, topic, queue_id
        if (progress := self._by_key.get(key)) is not None:
            return progress
        payload = encode_definition(Definition(key, initial_offset))
        self._make_room(len(payload))
        with self._lock:
            progress = QueueProgress(initial_offset, key_id=self._next_key_id)
            self._record(EntryKind.DEFINE, progress, payload)
            self._add(key, progress)
        return progress

    def __len__(self) -> int:
        """Return how many queues of groups there are."""
        return len(self._by_key)

    def items(self) -> list[tuple[Key, QueueProgress]]:
        """Return everything, by (group, topic, queue id)."""
        return list(self._by_key.items())

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups that have progress in a topic, sorted."""
        return sorted({group for group, known, _ in self._by_key if known == topic})

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
        payload = encode_redelivery(offset, lease, counts=counts)
        self._make_room(len(payload))
        with self._lock:
            self._record(EntryKind.REDELIVER, progress, payload)
            return progress.redeliver(offset, lease, counts=counts)

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
            progress.reset(offset)
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
        """Forget all progress of a group.

        Raises:
            StateWriteError: The journal cannot be written, or is full and cannot be saved; the
                rest is still there.
        """
        self._delete([item for item in self.items() if item[0][0] == group])

    def delete_topic(self, topic: str, *, group: str | None = None) -> None:
        """Forget all progress in a topic, or that of one group.

        Raises:
            StateWriteError: The journal cannot be written, or is full and cannot be saved; the
                rest is still there.
        """
        items = [item for item in self.items() if item[0][1] == topic]
        self._delete([item for item in items if group in (None, item[0][0])])

    def save(self) -> None:
        """Save to SQLite what has changed, and wait for it.

        Raises:
            StateWriteError: SQLite could not do it; the journal still has everything.
        """
        if self._thread is None:
            raise StoreClosedError
        self._thread.run_sync(self._save)

    # Changing, on the trio thread

    def _make_room(self, payload_bytes: int) -> None:
        if self._thread is None:
            raise StoreClosedError
        if not self._journal.has_room(payload_bytes):
            self.save()
        elif self._journal.filled > EARLY_SAVE_FILLED and not self._early_save_requested:
            self._early_save_requested = True
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
        self._changed.add(progress.key_id)

    def _add(self, key: Key, progress: QueueProgress) -> None:
        self._by_key[key] = progress
        self._by_id[progress.key_id] = key, progress
        self._next_key_id = max(self._next_key_id, progress.key_id + 1)

    def _delete(self, items: Sequence[tuple[Key, QueueProgress]]) -> None:
        for key, progress in items:
            self._make_room(0)
            with self._lock:
                self._record(EntryKind.DELETE, progress, b"")
                del self._by_key[key], self._by_id[progress.key_id]

    # Saving, on the SQLite thread

    def _save(self, database: Database) -> None:
        with self._lock:
            changed, self._changed = self._changed, set()
            mark, next_key_id = self._journal.mark, self._next_key_id
        try:
            self._save_rows(database, changed, mark, next_key_id)
        except BaseException:
            with self._lock:
                self._changed |= changed
            raise
        self._journal.release(mark)
        self._early_save_requested = False

    def _save_rows(
        self, database: Database, changed: set[int], mark: JournalMark, next_key_id: int
    ) -> None:
        rows, deleted = [], []
        for key_id in changed:
            with self._lock:
                item = self._by_id.get(key_id)
                if item is None:
                    deleted.append(key_id)
                else:
                    rows.append(progress_store.make_row(*item))
        progress_store.save(database, rows, deleted, mark=mark, next_key_id=next_key_id)

    def _tick(self, database: Database) -> None:
        if self._thread is None:
            return  # not read yet: the mirror would be overwritten with nothing
        begin_s = self._clock.monotonic_s()
        if self._changed and (begin_s >= self._next_save_s or self._early_save_requested):
            try:
                self._save(database)
                self._save_fails = False
            except sqlite3.Error as error:
                if not self._save_fails:  # once, not ten times a second
                    _log.warning("progress not saved", extra={"reason": str(error)})
                self._save_fails = True
            took_s = self._clock.monotonic_s() - begin_s
            self._next_save_s = begin_s + min(took_s * SAVE_PAUSE_FACTOR, SAVE_PAUSE_S_MAX)
        self._mirror.write(self._journal.sequence, len(self._by_key))

    def _finish(self, database: Database) -> None:
        try:
            self._save(database)
        finally:
            self._mirror.write(self._journal.sequence, len(self._by_key), at_once=True)

    def _committed_offsets(self) -> list[tuple[Key, int]]:
        with self._lock:
            items = self.items()
        offsets: list[tuple[Key, int]] = []
        for key, progress in items:
            with self._lock:
                offsets.append((key, progress.committed_offset))
        return offsets

    # Opening, on the SQLite thread

    def _load(self, database: Database, path: Path) -> None:
        saved = progress_store.load(database, path)
        for key, progress in saved.items:
            self._add(key, progress)
        self._next_key_id = max(self._next_key_id, saved.next_key_id)
        # A row may know of later entries than the mark, and they may be gone with the journal:
        # numbered like them, new entries would be passed by.
        last = max([saved.mark.sequence, *(progress.sequence for _, progress in saved.items)])
        try:
            for entry in self._journal.replay(saved.mark):
                self._replay(entry)
                last = max(last, entry.sequence)
        except EntryError as error:
            _log.warning("progress journal ends early", extra={"reason": str(error)})
        except OSError as error:
            raise StateFileError(self._journal.path, f"it cannot be read: {error}") from error
        except ReadFailedError as error:
            raise StateFileError(
                error.path,
                f"position {error.position} cannot be read: {error.cause.strerror}. The file holds "
                "what was delivered and acknowledged in the last seconds before the stop. To open "
                "the store without it, move it away: those messages are delivered again",
            ) from error
        imported = self._import_offsets(backup_too=not self._by_key)
        # From here on nothing in the old ring counts, so it may be overwritten.
        epoch = max(saved.mark.epoch + 1, self._clock.now_ms())
        mark = JournalMark(epoch, last, 0)
        self._save_rows(database, self._changed, mark, self._next_key_id)
        self._changed = set()
        try:
            self._journal.start(mark)
        except OSError as error:
            raise StateWriteError(self._journal.path, str(error)) from error
        if imported:
            # At once, or not at all: found without our mark again, the file would undo what is
            # acknowledged from now on.
            try:
                self._mirror.save(last)
            except OSError as error:
                raise StateWriteError(self._mirror.path, str(error)) from error

    def _replay(self, entry: JournalEntry) -> None:
        if entry.kind == EntryKind.DEFINE and entry.key_id not in self._by_id:
            key, next_offset = decode_definition(entry.payload)
            if key in self._by_key:
                raise EntryError(f"{key} is defined twice")
            self._add(key, QueueProgress(next_offset, key_id=entry.key_id))
        item = self._by_id.get(entry.key_id)
        if item is None or entry.sequence <= item[1].sequence:
            return
        key, progress = item
        if entry.kind == EntryKind.DELETE:
            del self._by_key[key], self._by_id[entry.key_id]
        elif entry.kind != EntryKind.DEFINE:
            apply_entry(progress, entry.kind, entry.payload)
        progress.sequence = entry.sequence
        self._changed.add(entry.key_id)

    def _import_offsets(self, *, backup_too: bool) -> bool:
        offsets = self._mirror.load(backup_too=backup_too)
        if offsets is None:
            return False
        for key, offset in offsets.items():
            progress = self._by_key.get(key)
            if progress is None:
                progress = QueueProgress(offset, key_id=self._next_key_id)
                self._add(key, progress)
            elif progress.committed_offset != offset:
                progress.reset(offset)
            self._changed.add(progress.key_id)
        _log.info("offsets imported", extra={"file": str(self._mirror.path), "count": len(offsets)})
        return True
