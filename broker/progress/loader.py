"""Reading progress back: the saved rows, the journal over them, and offsets that RocketMQ wrote."""

from __future__ import annotations

import logging
from typing import Final, final

from commitbus.broker.metadata.errors import StateFileError, StateWriteError
from commitbus.broker.progress.changes import Definition, EntryError, EntryKind, decode_change
from commitbus.broker.progress.holdings import Holdings
from commitbus.broker.progress.journal import JournalEntry, JournalMark, ProgressJournal
from commitbus.broker.progress.offset_mirror import OffsetMirror
from commitbus.broker.progress.progress_index import ProgressIndex
from commitbus.broker.progress.progress_rows import ProgressRow, ProgressRows, read_row
from commitbus.broker.progress.queue_progress import QueueProgress
from commitbus.broker.progress.saver import ProgressSaver
from commitbus.commitlog.clock import Clock
from commitbus.commitlog.errors import ReadFailedError

_log: Final = logging.getLogger(__name__)


@final
class ProgressLoader:
    """Fills the index and starts the journal. Used once, on the thread of the rows.

    Args:
        rows: What was saved.
        index: Empty; what is read is added to it.
        holdings: What is in flight with automatic renewal is added to it.
        journal: Replayed, then started.
        saver: Saves what the replay changed.
        mirror: Where RocketMQ's offsets are.
        clock: For the epoch of the journal.
    """

    def __init__(
        self,
        rows: ProgressRows,
        index: ProgressIndex,
        holdings: Holdings,
        *,
        journal: ProgressJournal,
        saver: ProgressSaver,
        mirror: OffsetMirror,
        clock: Clock,
    ) -> None:
        self._rows, self._index, self._holdings, self._journal = rows, index, holdings, journal
        self._saver, self._mirror, self._clock = saver, mirror, clock

    def load(self) -> None:
        """Read everything.

        Raises:
            StateFileError: A file is not what it should be.
            StateVersionError: A newer commitbus wrote a file.
            StateWriteError: The disk does not take what was read back.
        """
        saved = self._rows.load()
        # Each group and topic once in memory, not once for each queue.
        names: dict[str, str] = {}
        # A row may know of later entries than the mark, and they may be gone with the journal:
        # numbered like them, new entries would be passed by.
        last = saved.mark.sequence
        for row in saved.rows:
            last = max(last, self._add(row, names))
        self._index.skip_to(saved.next_key_id)
        last = self._replay_journal(saved.mark, last)
        imported = self._import_offsets(backup_too=not len(self._index))
        # From here on nothing in the old ring counts, so it may be overwritten.
        epoch = max(saved.mark.epoch + 1, self._clock.now_ms())
        mark = JournalMark(epoch, last, 0)
        self._saver.save_replayed(mark)
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

    def _add(self, row: ProgressRow, names: dict[str, str]) -> int:
        """Add the progress of a row; return the number of the entry that changed it last."""
        try:
            progress = read_row(row, self._holdings)
        except ValueError as error:
            what = f"group {row.consumer_group}, topic {row.topic}, queue {row.queue_id}"
            reason = f"the row of {what} is damaged: {error}"
            raise StateFileError(self._rows.path, reason) from error
        group, topic = (names.setdefault(name, name) for name in (row.consumer_group, row.topic))
        self._index.add((group, topic, row.queue_id), progress)
        return progress.sequence

    def _replay_journal(self, mark: JournalMark, last: int) -> int:
        """Apply what the journal has; return the number of the last entry that counts."""
        try:
            for entry in self._journal.replay(mark):
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
        return last

    def _replay(self, entry: JournalEntry) -> None:
        index = self._index
        if entry.kind == EntryKind.DEFINE and index.by_id(entry.key_id) is None:
            key, next_offset = Definition.decode(entry.payload)
            if index.get(*key) is not None:
                raise EntryError(f"{key} is defined twice")
            index.add(key, self._begun(next_offset, entry.key_id, entry.sequence))
            self._saver.note(entry.key_id)
            return
        item = index.by_id(entry.key_id)
        if item is None or entry.sequence <= item[1].sequence:
            return
        key, progress = item
        if entry.kind == EntryKind.DELETE:
            index.remove(key, progress)
        elif entry.kind != EntryKind.DEFINE:
            change = decode_change(entry.kind, entry.payload, progress)
            progress.apply(change, entry.sequence)
        self._saver.note(entry.key_id)

    def _begun(self, next_offset: int, key_id: int, sequence: int = 0) -> QueueProgress:
        return QueueProgress(next_offset, key_id=key_id, sequence=sequence, holdings=self._holdings)

    def _import_offsets(self, *, backup_too: bool) -> bool:
        offsets = self._mirror.load(backup_too=backup_too)
        if offsets is None:
            return False
        index = self._index
        for key, offset in offsets.items():
            progress = index.get(*key)
            if progress is None:
                progress = self._begun(offset, index.next_key_id)
                index.add(key, progress)
            elif progress.committed_offset != offset:
                progress.reset(offset)
            self._saver.note(progress.key_id)
        _log.info("offsets imported", extra={"file": str(self._mirror.path), "count": len(offsets)})
        return True
