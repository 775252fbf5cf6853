"""Saving progress to its rows and to the mirror, while changes go on.

A save notes the journal's end first and packs the rows after that, while changes go on. So a row
may already hold changes that the journal will replay; it says with its `sequence` up to which
entry it knows, and the replay of earlier ones passes it by. A row with much in flight is packed
without the lock: which messages are in flight is as of its `sequence`, what is said of each may be
as of a later entry, and the replay says it again.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import MutableMapping
from typing import Final, final

from commitbus.broker.metadata.errors import StateWriteError
from commitbus.broker.progress.journal import JournalMark, ProgressJournal
from commitbus.broker.progress.offset_mirror import OffsetMirror
from commitbus.broker.progress.progress_index import Item, ProgressIndex
from commitbus.broker.progress.progress_rows import (
    ProgressRow,
    ProgressRows,
    make_row,
    pack_in_flight,
)
from commitbus.broker.progress.queue_progress import InFlight
from commitbus.commitlog.clock import Clock

SAVE_PAUSE_FACTOR: Final = 50
SAVE_PAUSE_S_MAX: Final = 3.0
"""Many queues, or much in flight, take long to save. That is not repeated before this many times as
long has passed, or three seconds: the journal holds what changed, and packing rows takes the
interpreter from the handlers."""

LOCKED_ENTRIES_MAX: Final = 256
"""Messages in flight that are packed while no change can be made: 100 us."""

_log: Final = logging.getLogger(__name__)


@final
class ProgressSaver:
    """Saves progress that changed since the last save. Used on the thread of the rows.

    Args:
        rows: Where rows are saved.
        index: All progress.
        journal: Where each change is before it is saved.
        mirror: What RocketMQ goes on from.
        clock: For the pauses between saves.
        lock: Held for one change, and while one row with little in flight is packed.
    """

    def __init__(
        self,
        rows: ProgressRows,
        index: ProgressIndex,
        journal: ProgressJournal,
        mirror: OffsetMirror,
        *,
        clock: Clock,
        lock: threading.Lock,
    ) -> None:
        self._index, self._journal, self._mirror, self._clock = index, journal, mirror, clock
        self._rows, self._lock = rows, lock
        # Ids of the progress that changed since the last save. Under the lock.
        self._changed: set[int] = set()
        # In flight before a reset or deletion: to free a million takes a tenth of a second.
        self._discarded: deque[MutableMapping[int, InFlight]] = deque()
        self._is_requested = False
        self._fails = False
        self._next_save_s = 0.0

    def note(self, key_id: int) -> None:
        """Note that a progress has changed. Under the lock, or while nothing else runs."""
        self._changed.add(key_id)

    def discard(self, entries: MutableMapping[int, InFlight]) -> None:
        """Free what was in flight before a reset or deletion, step by step. For any thread."""
        self._discarded.append(entries)

    def request(self) -> bool:
        """Ask for a save before the next interval; return whether it was not asked for yet."""
        is_new, self._is_requested = not self._is_requested, True
        return is_new

    def save(self) -> None:
        """Save what has changed.

        Raises:
            StateWriteError: Nothing is saved; the journal still has everything.
        """
        with self._lock:
            changed, self._changed = self._changed, set()
            mark, next_key_id = self._journal.mark, self._index.next_key_id
        try:
            self._save_rows(changed, mark, next_key_id)
        except BaseException:
            with self._lock:
                self._changed |= changed
            raise
        self._journal.release(mark)
        self._is_requested = False

    def save_replayed(self, mark: JournalMark) -> None:
        """Save what a replay changed, before the journal starts again at `mark`.

        Raises:
            StateWriteError: Nothing is saved.
        """
        self._save_rows(self._changed, mark, self._index.next_key_id)
        self._changed = set()

    def _save_rows(self, changed: set[int], mark: JournalMark, next_key_id: int) -> None:
        rows, deleted = [], []
        for key_id in changed:
            row = self._row(key_id)
            if row is None:
                deleted.append(key_id)
            else:
                rows.append(row)
        self._rows.save(rows, deleted, mark=mark, next_key_id=next_key_id)
        for row in rows:
            self._mirror.note(row.consumer_group, row.topic)

    def _row(self, key_id: int) -> ProgressRow | None:
        with self._lock:
            item = self._index.by_id(key_id)
            if item is None:
                return None
            if item[1].in_flight_count <= LOCKED_ENTRIES_MAX:
                return make_row(*item)
            row, entries = _head(item), item[1].entries()
        return row._replace(in_flight=pack_in_flight(entries))

    def tick(self) -> None:
        """Save and mirror what is due; log what cannot be."""
        self._free_discarded()
        begin_s = self._clock.monotonic_s()
        if self._changed and (begin_s >= self._next_save_s or self._is_requested):
            try:
                self.save()
                self._fails = False
            except StateWriteError as error:
                if not self._fails:  # once, not ten times a second
                    _log.warning("progress not saved", extra={"reason": str(error)})
                self._fails = True
            took_s = self._clock.monotonic_s() - begin_s
            self._next_save_s = begin_s + min(took_s * SAVE_PAUSE_FACTOR, SAVE_PAUSE_S_MAX)
        self._mirror.write(self._journal.sequence)

    def finish(self) -> None:
        """Save everything and write the mirror at once.

        Raises:
            StateWriteError: Nothing is saved; the journal still has everything.
        """
        try:
            self.save()
        finally:
            self._mirror.write(self._journal.sequence, at_once=True)

    def _free_discarded(self) -> None:
        # One by one: to free a dict as a whole would keep the interpreter from everybody.
        while self._discarded:
            entries = self._discarded.popleft()
            for offset in list(entries):
                entries.pop(offset)


def _head(item: Item) -> ProgressRow:
    """Return the row of a progress without what is in flight."""
    key, progress = item
    return ProgressRow(
        progress.key_id,
        *key,
        progress.committed_offset,
        progress.next_offset,
        progress.sequence,
        b"",
    )
