"""Mistakes about what may go wrong around the store: each theme of the simulation has its own."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from commitbus.broker.store import ownership, salvage, start
from commitbus.broker.store.checkpoint_withdrawal import CheckpointWithdrawal
from commitbus.broker.store.message_store import MessageStore
from commitbus.broker.store.ownership import Ownership
from commitbus.commitlog import mapped_file
from commitbus.commitlog.commit_log import CommitLog
from commitbus.commitlog.errors import DiskFullError, FlushFailedError
from commitbus.commitlog.file_ages import FileAges
from commitbus.commitlog.file_system import File
from commitbus.commitlog.mapped_file import MappedFile
from commitbus.commitlog.mapped_file_queue import MappedFileQueue
from commitbus.commitlog.record_format import BLANK_MAGIC_CODE, SIZE_AND_MAGIC
from commitbus.commitlog.service_thread import ServiceThread
from commitbus.commitlog.types import PhysicalOffset
from commitbus.consumequeue.changed_queues import ChangedQueues
from commitbus.consumequeue.consume_queue import ConsumeQueue
from commitbus.consumequeue.consume_queue_store import ConsumeQueueStore
from commitbus.consumequeue.deleted_topics import DeletedTopics
from commitbus.consumequeue.queue_states import QueueStatesFile
from commitbus.consumequeue.queue_table import QueueTable
from commitbus.consumequeue.unit_format import UNIT_BYTES
from commitbus.flush.checkpoint import CheckpointFile
from tests.simulation.bugs import bug, with_themes
from tests.simulation.hunts import (
    cut_units_stay_cut,
    deletions_that_fail,
    stray_units_stay_cut,
    topics_come_and_go,
)
from tests.simulation.themes import Theme

# Topics that are deleted


@bug("the names of a deleted topic's files count as a failed flush", hunt=topics_come_and_go)
def _deletion_fails_the_flush(patch: pytest.MonkeyPatch) -> None:
    def sync_names(self: MappedFileQueue) -> None:
        if self._directory_dirty:
            self._directory_dirty = False
            try:
                self.file_system.sync_directory(self.directory)
            except OSError as error:
                raise FlushFailedError(self.directory, error) from error

    patch.setattr(MappedFileQueue, "_sync_names", sync_names)


@bug("the deletion of a topic is not noted", hunt=with_themes(Theme.DELETED_TOPICS))
def _deletion_not_noted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DeletedTopics, "write", lambda *_: None)


# Pages that cannot be read


@bug("an unreadable block is taken for zeros", hunt=with_themes(Theme.FAILING_READS))
def _unreadable_is_zero(patch: pytest.MonkeyPatch) -> None:
    def read_at(file: File, length: int, position: int) -> bytes:
        try:
            return file.pread(length, position)
        except OSError:
            return bytes(length)

    patch.setattr(mapped_file, "read_at", read_at)


@bug("a failed read is no error of the store's own", hunt=with_themes(Theme.FAILING_READS))
def _bare_read_error(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(mapped_file, "read_at", lambda file, length, at: file.pread(length, at))


@bug("the log is read through a mapping", hunt=with_themes(Theme.FAILING_READS))
def _mapped_read(patch: pytest.MonkeyPatch) -> None:
    def read(self: MappedFile, position: int, length: int) -> bytes:
        file = self._file_system.open(self.path, writable=False)
        mapping = file.map(self.size_bytes)
        data = bytes(mapping.buffer[position : position + length])
        mapping.close()
        file.close()
        return data

    patch.setattr(MappedFile, "read", read)


# Descriptors and memory


@bug("too few descriptors are a failed flush", hunt=with_themes(Theme.SHORTAGES))
def _shortage_fails_the_flush(patch: pytest.MonkeyPatch) -> None:
    def raise_refusal(error: OSError, path: Path, needed_bytes: int) -> None:
        if error.errno == errno.ENOSPC:
            raise DiskFullError(path, needed_bytes) from error

    patch.setattr(mapped_file, "raise_refusal", raise_refusal)


@bug("the next log file is one of the log before it is mapped", hunt=with_themes(Theme.SHORTAGES))
def _mapped_too_late(patch: pytest.MonkeyPatch) -> None:
    def roll(self: CommitLog) -> None:
        following = self._preparer.next_file(self._files.end_of_files)
        if self._file is not None:
            rest = self._files.file_size - self._position
            SIZE_AND_MAGIC.pack_into(self._buffer, self._position, rest, BLANK_MAGIC_CODE)
        self._files.add(following)
        following.map()
        self._write_to(following, 0)

    patch.setattr(CommitLog, "_roll", roll)


@bug("a file that is closed keeps its descriptor", hunt=with_themes(Theme.SHORTAGES))
def _descriptor_leak(patch: pytest.MonkeyPatch) -> None:
    original = MappedFile.close
    kept: list[File | None] = []

    def close(self: MappedFile) -> None:
        kept.append(self._file)
        original(self)

    patch.setattr(MappedFile, "close", close)


# Kills in a row


def _let_nothing_show(patch: pytest.MonkeyPatch) -> None:
    """Take away the second line of defence: a start sees that units are missing."""
    patch.setattr(start, "_has_lost_queues", lambda *_: False)
    patch.setattr(ConsumeQueueStore, "begins_late", lambda *_: False)


@bug(
    "the checkpoint still vouches for queues that are derived anew",
    hunt=with_themes(Theme.KILLED_STARTS),
)
def _promise_not_taken_back(patch: pytest.MonkeyPatch) -> None:
    _let_nothing_show(patch)
    patch.setattr(CheckpointWithdrawal, "withdraw_queues", lambda *_: None)
    patch.setattr(CheckpointWithdrawal, "withdraw_index", lambda *_: None)
    patch.setattr(CheckpointFile, "lower_offsets", lambda *_, **__: None)


@bug(
    "a start marks the store only when it is done",
    seed=46,
    hunt=with_themes(Theme.KILLED_STARTS),
)
def _marked_too_late(patch: pytest.MonkeyPatch) -> None:
    _let_nothing_show(patch)
    mark, original = Ownership.mark_in_use, MessageStore.__init__

    def init(self: MessageStore, *arguments: Any, **others: Any) -> None:
        mark(others["ownership"])
        original(self, *arguments, **others)

    patch.setattr(Ownership, "mark_in_use", lambda _: None)
    patch.setattr(MessageStore, "__init__", init)


@bug("the units that a killed start has cut are not flushed by the next", hunt=cut_units_stay_cut)
def _cut_not_flushed(patch: pytest.MonkeyPatch) -> None:
    original = ConsumeQueue._cut

    def cut(self: ConsumeQueue, end: int) -> None:
        flushed, changed = self._flushed_offset, self._files.truncate(end * UNIT_BYTES)
        original(self, end)
        if not changed:
            self._flushed_offset = flushed

    patch.setattr(ConsumeQueue, "_cut", cut)


# Queues whose files a start does not open


@bug("what is cut behind a start may be taken for durable by the next", hunt=stray_units_stay_cut)
def _cut_not_noted(patch: pytest.MonkeyPatch) -> None:
    def cut(self: ChangedQueues, strays: list[tuple[str, int]]) -> None:
        for key in strays:
            queue = self._table.get(*key)
            if queue is not None:
                queue.cut_stray_units()
                self.note(queue)

    patch.setattr(ChangedQueues, "_cut", cut)


@bug("a store is closed before it has looked behind the ends of all queues", seed=81)
def _closed_unsettled(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ChangedQueues, "settle", lambda *_: False)
    patch.setattr(ConsumeQueue, "cut_stray_units", lambda _: None)


@bug("the states of queues are saved as they are, not as they were flushed")
def _states_ahead(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(QueueTable, "saved", QueueTable.state)
    patch.setattr(QueueStatesFile, "needs_full", property(lambda _: True, lambda *_: None))


# Logs of which all has expired


@bug("each recovery drops the newest unit", hunt=with_themes(Theme.RETENTION))
def _newest_unit_dropped(patch: pytest.MonkeyPatch) -> None:
    original = ConsumeQueueStore.truncate

    def truncate(self: ConsumeQueueStore, end: PhysicalOffset) -> None:
        original(self, end)
        for key in list(self._table):
            queue = self._table.get(*key)
            if queue is not None and queue.max_offset > queue.min_offset:
                queue.open_files()
                queue._cut(queue.max_offset - 1)
                self.changes.note(queue)
                self._forget_if_empty(queue)
                break
        self._dispatched_to = self._table.dispatched_to()

    patch.setattr(ConsumeQueueStore, "truncate", truncate)


@bug(
    "nobody notes where the queues of an empty log end",
    hunt=with_themes(Theme.RETENTION, Theme.KILLED_STARTS),
)
def _queue_ends_not_noted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ConsumeQueueStore, "note_ends", lambda *_: None)


@bug("a deletion that failed forgets the files it had not come to", hunt=deletions_that_fail)
def _deletion_forgets_files(patch: pytest.MonkeyPatch) -> None:
    def delete_before(self: MappedFileQueue, offset: int) -> int:
        gone = [f for f in self.files[:-1] if f.base_offset + self.file_size <= offset]
        self.files = self.files[len(gone) :]
        for file in gone:
            file.delete()
            self.file_system.sync_directory(self.directory)
        return len(gone)

    patch.setattr(MappedFileQueue, "delete_before", delete_before)


# Clocks


@bug(
    "a file's age is what the wall clock makes of it",
    seed=5,
    hunt=with_themes(Theme.CLOCK_YEARS),
)
def _age_by_the_wall_clock(patch: pytest.MonkeyPatch) -> None:
    original = FileAges.look
    stored: dict[int, int] = {}

    def look(self: FileAges, base_offsets: Any, last_stored_at: Any) -> None:
        original(self, base_offsets, last_stored_at)
        stored.clear()
        stored.update({base: last_stored_at(base) or 0 for base in base_offsets})

    def age_ms(self: FileAges, base_offset: int) -> int | None:
        stored_at = stored.get(base_offset)
        return None if not stored_at else self._clock.now_ms() - stored_at

    patch.setattr(FileAges, "look", look)
    patch.setattr(FileAges, "age_ms", age_ms)


# Threads that die


@bug("a thread dies, and nobody is told", seed=4, hunt=with_themes(Theme.DYING_THREADS))
def _death_unnoticed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ServiceThread, "_run", lambda self: self._service())


# Full disks


@bug("a full disk is a failed flush of the start", hunt=with_themes(Theme.FULL_DISK_STARTS))
def _full_disk_fails_the_start(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ownership, "_FULL", ())
    patch.setattr(ownership, "raise_refusal", lambda *_: None)


# Salvage


@bug("a salvage makes the new store where it will be", hunt=with_themes(Theme.SALVAGE))
def _salvage_in_place(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(salvage, "UNFINISHED", Path())
    patch.setattr(salvage, "publish", lambda *_: None)
    patch.setattr(salvage, "remove_unpublished", lambda *_: None)
