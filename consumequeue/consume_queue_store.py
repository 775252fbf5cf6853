"""All consume queues of a store: filled by reput, read by receivers, derived from the log."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import final

from commitbus.commitlog.descriptor_cache import DescriptorCache
from commitbus.commitlog.errors import (
    DiskFullError,
    NotAStoreError,
    StoreClosedError,
    StoreError,
)
from commitbus.commitlog.file_system import FileSystem
from commitbus.commitlog.kernels import DispatchBatch, DispatchColumns
from commitbus.commitlog.mapped_file import FilePolicy, raise_refusal
from commitbus.commitlog.record_format import (
    TRANSACTION_FLAGS,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLED_BACK,
)
from commitbus.commitlog.threads import SYSTEM_THREADS, Threads
from commitbus.commitlog.types import DispatchRequest, PhysicalOffset, QueueOffset
from commitbus.consumequeue.changed_queues import ChangedQueues, sync_names
from commitbus.consumequeue.consume_queue import ConsumeQueue
from commitbus.consumequeue.deleted_topics import DeletedTopics
from commitbus.consumequeue.errors import DispatchError
from commitbus.consumequeue.known_queues import FoundIds, ids_on_disk, is_plain_name, split_known
from commitbus.consumequeue.queue_ends import QueueEnds
from commitbus.consumequeue.queue_table import QueueTable
from commitbus.consumequeue.removed_queues import RemovedQueues
from commitbus.consumequeue.unit_format import UNIT, UNIT_BYTES

_NOT_QUEUED = frozenset((TRANSACTION_PREPARED, TRANSACTION_ROLLED_BACK))


@final
class ConsumeQueueStore:
    """The folder of consume queues, `<topic>/<queue id>/` for each.

    Reading methods are safe on any thread, of the others one runs at a time (a lock sees to it).
    """

    def __init__(
        self,
        directory: Path,
        file_size: int,
        *,
        file_system: FileSystem,
        threads: Threads = SYSTEM_THREADS,
        writable: bool = True,
        open_files_max: int = 1024,
    ) -> None:
        """Name the folder; nothing is touched before `load` or the first message.

        Args:
            directory: The store's `consumequeue` folder.
            file_size: Of each file, in bytes; a multiple of 20.
            file_system: What holds the folder.
            threads: For locks.
            writable: Whether the files may be changed.
            open_files_max: How many are open at a time. Opening one beyond costs about 10 us, and
                closes another one.
        """
        self._directory, self._file_size = directory, file_size
        self._file_system, self._writable = file_system, writable
        self._policy = FilePolicy(
            writable=writable,
            grow=True,
            descriptors=DescriptorCache(open_files_max, threads),
            threads=threads,
        )
        self._table = QueueTable(self._new_queue, threads)
        self._deleted: DeletedTopics | None = None
        self._noted_ends: QueueEnds | None = None
        self._dispatched_to = PhysicalOffset(0)
        # A checkpoint vouched for the queues up to here, and its states were taken over.
        self._known_to = PhysicalOffset(0)
        self._lock = threads.lock()
        self.changes = ChangedQueues(
            directory, file_size, self._table, self._lock, file_system, threads=threads
        )
        """For checkpoints: makes durable what has changed."""
        self._removed = RemovedQueues(
            directory, self._table, self.changes, self._lock, file_system, writable=writable
        )
        self.begun: list[tuple[str, int]] = []
        """Queues that `put` has begun, in order; for the start, which clears it."""
        # While a note changes, of queue ends or of deleted topics; taken before `_lock`.
        self._ends_lock = threads.lock()
        self._closed = False

    def load(self, checkpoint_end: PhysicalOffset | None = None, *, is_clean: bool = False) -> None:
        """Find every queue that is there. Call it once, before anything else.

        The files of a queue are not looked at where the checkpoint has noted how it ends.

        Args:
            checkpoint_end: The offset up to which the checkpoint vouches for the queues. None: all
                files are looked at.
            is_clean: Whether the last writer closed the store. Else `truncate` must follow.

        Raises:
            NotAStoreError: A file has an alien name or another size, or the size cannot be one; or
                the note of deleted topics, or of queue ends, is damaged.
            StoreDamagedError: A file between two others is missing.
        """
        if self._file_size <= 0 or self._file_size % UNIT_BYTES:
            raise NotAStoreError(
                self._directory,
                f"{self._file_size} bytes, the size of its files, is no multiple of {UNIT_BYTES}",
            )
        self._deleted = DeletedTopics(self._directory.parent, self._file_system)
        self._noted_ends = QueueEnds(self._directory.parent, self._file_system)
        try:
            found = ids_on_disk(self._directory, self._file_system)
            is_known = checkpoint_end is not None and self._rest(
                found, checkpoint_end, is_clean=is_clean
            )
            if not is_known:
                self._open_all(found)
        except BaseException:
            self.close()
            raise
        self._dispatched_to = max(self._table.dispatched_to(), self._known_to)

    def _rest(self, found: FoundIds, checkpoint_end: PhysicalOffset, *, is_clean: bool) -> bool:
        """Take over what a checkpoint says of queues, and open the others; False if none may be."""
        states = self.changes.read_states(checkpoint_end)
        split = states and split_known(
            found,
            states,
            deleted_before=self.deleted.before,
            flushed_to=None if is_clean else checkpoint_end,
        )
        if not split:
            return False
        self._open_all(split.others)
        bounds = ((self._table.bounds(*key), end) for key, end in split.ends.items())
        if any(bound is None or bound[1] < end for bound, end in bounds):
            # Somebody has removed units that the checkpoint vouches for.
            for queue in self._table.clear():
                queue.close()
            return False
        for topic, queues in split.known.items():
            self._table.rest(topic, queues)
        self._known_to = checkpoint_end
        if not is_clean:
            self._table.is_doubtful = True
            self.changes.unsettle(split.known)
        return True

    def _open_all(self, found: FoundIds) -> None:
        for topic, ids in found.items():
            for queue_id in ids:
                queue = self._new_queue(topic, queue_id)
                queue.load()
                self._table.add(queue)
                self._forget_if_empty(queue)

    @property
    def deleted(self) -> DeletedTopics:
        """Which messages count no more because their topic was deleted."""
        assert self._deleted is not None, "it is read by load"
        return self._deleted

    def queue_ends(self) -> dict[tuple[str, int], QueueOffset]:
        """Return the next queue offset of each queue, as units and notes tell it."""
        ends = self.deleted.queue_ends()
        for key, end in self._ends.ends.items():
            ends[key] = max(ends.get(key, end), end)
        for key in self._table:
            begin, end = self._table.bounds(*key) or (QueueOffset(0), QueueOffset(0))
            if begin < end:
                # RocketMQ begins at 0 again after it deletes a topic, and does not know the note.
                ends[key] = max(self.deleted.queue_end(*key), end)
            else:
                ends[key] = max(ends.get(key, end), end)
        return ends

    def begins_late(self, topic: str, queue_id: int) -> bool:
        """Return whether a queue that `put` has begun lacks units of earlier messages.

        It should begin at 0, or where a note says that an earlier one ended. It begins later if
        retention has removed the file with its older units, and `truncate` the rest.
        """
        bounds = self._table.bounds(topic, queue_id)
        assert bounds is not None, "it has begun"
        return bounds[0] > self.noted_end(topic, queue_id)

    def noted_end(self, topic: str, queue_id: int) -> QueueOffset:
        """Return the next offset of a queue of which no message is left; 0 without a note."""
        noted = self._ends.ends.get((topic, queue_id), QueueOffset(0))
        return max(noted, self.deleted.queue_end(topic, queue_id))

    @property
    def _ends(self) -> QueueEnds:
        assert self._noted_ends is not None, "it is read by load"
        return self._noted_ends

    @property
    def dispatched_to(self) -> PhysicalOffset:
        """End of the last message that was put: none before it is missing.

        After `load` the end of the last message that is in a queue. After a kill some before it
        may be missing, as a batch is stored queue by queue, and a unit be half written: `truncate`
        first.
        """
        return self._dispatched_to

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return a queue, None when no message was put into it."""
        return self._table.get(topic, queue_id)

    def bounds(self, topic: str, queue_id: int) -> tuple[QueueOffset, QueueOffset] | None:
        """Return `min_offset` and `max_offset` of a queue, None as `queue`. Waits for no disk."""
        return self._table.bounds(topic, queue_id)

    def queues(self) -> list[tuple[str, int]]:
        """Return (topic, queue id) of every queue, in order. Walks over all of them."""
        return list(self._table)

    def file_bytes(self) -> int:
        """Return the sizes of all files together, as the bounds of the queues tell them."""
        in_file = self._file_size // UNIT_BYTES
        files = sum(
            (end - 1) // in_file - begin // in_file + 1
            for begin, end in self._table.units_by_queue()
            if end
        )
        return files * self._file_size

    def put(self, requests: DispatchBatch) -> None:
        """Enter messages, given in log order; what a queue already holds is passed over.

        Visible at once, durable after `flush`. Half messages and rolled-back ones have no place
        in a queue, nor have those of a topic that was deleted since.

        Raises:
            DispatchError: A message does not fit into its queue. Those before it are in theirs;
                of columns, which are entered queue by queue, any may be.
            DiskFullError: There is no room. Likewise; putting all again goes on from there.
            StoreClosedError: The store was closed.
        """
        assert self._writable
        with self._lock:
            if self._closed:
                raise StoreClosedError
            try:
                if isinstance(requests, DispatchColumns):
                    self._put_columns(requests)
                else:
                    self._put(requests)
            except OSError as error:
                raise_refusal(error, self._directory, self._file_size)
                raise

    def truncate(self, end: PhysicalOffset) -> None:
        """After an unclean stop: drop the units of messages that reach beyond `end`.

        Where to cut: the place up to which the queues were flushed, from which on any unit may be
        missing or half written. Units before it stay, all of them: the log may have lost their
        messages to retention, and then nothing else tells where their queues end.
        """
        assert self._writable
        with self._lock:
            # Nor may the process that died have synced the names that lead to its queues.
            # Those of topics without a queue as well: a start that was killed may have removed it.
            names = self._file_system.list_names(self._directory)
            paths = {self._directory / name for name in names}
            self.changes.note_names(path for path in paths if self._file_system.is_directory(path))
            self.changes.note_names((self._directory, self._directory.parent))
            for key in list(self._table):
                state = self._table.state(*key)
                if self._table.rests(*key) and state and state.dispatched_to <= end:
                    # A checkpoint has flushed all of it. `settle` looks at what lies behind.
                    continue
                queue = self._table.get(*key)
                if queue is not None:
                    queue.truncate(end)
                    self.changes.note(queue)
                    self._forget_if_empty(queue)
            self._dispatched_to = max(self._table.dispatched_to(), min(self._known_to, end))

    def note_ends(self, min_physical_offset: PhysicalOffset) -> None:
        """Note, durably, the ends of the queues that have no message from an offset on.

        Called before the log begins there. The units of the messages before it must be durable.

        Raises:
            DiskFullError: There is no room. Their units tell the same, as long as they are there.
            OSError: The note cannot be written.
        """
        with self._ends_lock:
            ends = dict(self._ends.ends)
            for key in self._table:
                # As in `delete_before`.
                with self._lock:
                    state, queue = self._table.state(*key), self._table.awake.get(key)
                    # One without a file has not begun: there was no room for its first unit.
                    if state is not None and not (queue and queue.is_empty):
                        ends.pop(key, None)
                        if state.dispatched_to <= min_physical_offset:
                            ends[key] = state.max_offset
            self._ends.save(ends)

    def delete_before(self, min_physical_offset: PhysicalOffset) -> None:
        """Hide units of messages before the log's first, and remove files that hold only such.

        A store that was opened for reading keeps the files.

        Raises:
            StoreError: A queue could not be read, or a file not be opened. The others are done.
            OSError: A file could not be removed. Likewise.
        """
        failure: StoreError | OSError | None = None
        for key in self._table.beginning_before(min_physical_offset):
            # Queue by queue: with 10,000 of them the writer would otherwise stand still for long.
            with self._lock:
                queue = self._table.get(*key)
                try:
                    if queue is not None and queue.delete_before(min_physical_offset):
                        self.changes.note(queue)
                except (StoreError, OSError) as error:
                    failure = failure or error
        if failure is not None:
            raise failure

    def delete_topic(
        self, topic: str, log_end: Callable[[], tuple[PhysicalOffset, Mapping[int, QueueOffset]]]
    ) -> None:
        """Remove all queues of a topic and their files, for all messages before the log's end.

        Args:
            topic: Any name.
            log_end: Returns the log's end, and the queue ends of the topic at that moment.

        Raises:
            DiskFullError: There is no room for the note of it; nothing is changed.
            OutOfResourcesError: The process may open no more files. Likewise.
            FlushFailedError: The note could not be made durable: the next start tells whether the
                topic is deleted. Or the removal of a file could not.
            StoreError: The files of a queue are not as they should be. As for a file.
            OSError: The note cannot be written; nothing is changed. Or a file cannot be removed:
                the topic is deleted nevertheless, and the file is removed later.
        """
        assert self._writable
        with self._ends_lock:
            end, queue_ends = log_end()
            # First the note: what a crash leaves of the queues is then removed at the next start.
            # It waits for the disk, so without the lock that the next messages need.
            deletion = self.deleted.write(topic, end, queue_ends)
            with self._lock:
                # From here on reput passes over what is before it: a message behind must not meet
                # a queue that lacks those. No disk is waited for: nothing can fail half-way.
                if deletion is not None:
                    self.deleted.count(topic, deletion)
                for queue_id in self._table.ids(topic):
                    self._removed.hide(topic, queue_id, end, queue_ends)
            failure = self._removed.remove_topic(topic, end)
            with suppress(DiskFullError):
                self._ends.forget(topic)
        if failure is not None:
            raise failure

    def settle_deleted(self, begin: PhysicalOffset, end: PhysicalOffset) -> None:
        """After a start: remove what a crash left of deleted topics, given the log's bounds.

        Raises:
            DiskFullError: There is no room for a note that the next messages need.
            FlushFailedError: A removal could not be made durable.
            OSError: A note cannot be written, or a file not be removed.
        """
        with self._lock:
            deleted = self.deleted
            # Includes topics that are forgotten below: their files would not be removed later.
            forgotten: list[str] = []
            for topic in deleted.topics():
                before = min(deleted.before(topic), end)
                for queue_id in self._table.ids(topic):
                    self._removed.hide(topic, queue_id, before, None)
                    self._removed.remove_files(topic, queue_id)
                if self._writable and before <= begin:
                    forgotten.append(topic)
            self._sync_removals(forgotten)
            is_needed = deleted.settle(begin, end)
            if self._writable and not deleted.is_new:
                try:
                    deleted.save_if_changed()
                except DiskFullError:
                    # A topic that is only forgotten is forgotten again at the next start.
                    if is_needed:
                        raise

    def flush(self) -> None:
        """Make everything put before the call durable. Raises as `ChangedQueues.flush`."""
        self.changes.flush()

    def warm(self) -> Iterator[int]:
        """Read the newest file of each queue into memory; yield how many are done, one by one."""
        for done, key in enumerate(self._table, 1):
            queue = self._table.get(*key)
            if queue is not None:
                queue.warm()
            yield done

    def close(self) -> None:
        """Close every file. Does not flush. Idempotent."""
        with self._lock:
            self._closed = True
            for queue in self._table.clear():
                queue.close()
            self._removed.close()

    def _put(self, requests: Sequence[DispatchRequest]) -> None:
        queues, deleted = self._table.awake, self.deleted
        if deleted:
            requests = [request for request in requests if not deleted.hides(request)]
        for request in requests:
            (
                physical_offset, size_bytes, topic, queue_id, queue_offset, tags_code,
                _, sys_flag, _, _, _,
            ) = request  # fmt: skip
            if sys_flag & TRANSACTION_FLAGS not in _NOT_QUEUED:
                queue = queues.get((topic, queue_id)) or self._queue_for(
                    topic, queue_id, physical_offset
                )
                if not queue.is_changed:
                    self.changes.note(queue)
                queue.put(queue_offset, physical_offset, size_bytes, tags_code)
            end = physical_offset + size_bytes
            if end > self._dispatched_to:
                self._dispatched_to = PhysicalOffset(end)

    def _put_columns(self, columns: DispatchColumns) -> None:
        deleted = self.deleted or None
        for topic, queue_id, queue_offsets, units in columns.queues:
            if deleted is not None and (before := deleted.before(topic)):
                hidden = sum(offset < before for offset, *_ in UNIT.iter_unpack(units))
                queue_offsets, units = queue_offsets[hidden:], units[UNIT_BYTES * hidden :]  # noqa: PLW2901 - what is left of them
                if not queue_offsets:
                    continue
            queue = self._table.awake.get((topic, queue_id)) or self._queue_for(
                topic, queue_id, UNIT.unpack_from(units)[0]
            )
            if not queue.is_changed:
                self.changes.note(queue)
            queue.put_many(queue_offsets, units)
        self._dispatched_to = max(self._dispatched_to, columns.end_offset)

    def _new_queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        return ConsumeQueue(
            topic,
            queue_id,
            self._directory / topic / str(queue_id),
            self._file_size,
            file_system=self._file_system,
            policy=self._policy,
            forget_states=self.changes.forget_states,
            note_begun=self._note_begun,
        )

    def _note_begun(self, topic: str) -> None:
        # A file is not durable before the names that lead to it are.
        self.changes.note_names((self._directory / topic, self._directory, self._directory.parent))

    def _queue_for(
        self, topic: str, queue_id: int, physical_offset: PhysicalOffset
    ) -> ConsumeQueue:
        queue = self._table.get(topic, queue_id)
        if queue is not None:
            return queue
        # The broker checks names, but the log of another broker, or a damaged one, may hold any.
        if not is_plain_name(topic) or queue_id < 0:
            raise DispatchError(
                topic, queue_id, physical_offset, "these cannot be names of directories"
            )
        # Files that a deletion could not remove would lie beside the new ones.
        self._removed.remove_files(topic, queue_id)
        queue = self._new_queue(topic, queue_id)
        self._table.add(queue)
        self.begun.append((topic, queue_id))
        return queue

    def _sync_removals(self, topics: Sequence[str]) -> None:
        """Make it durable that queues of topics were removed. FlushFailedError."""
        paths = [self._directory / topic for topic in topics if is_plain_name(topic)]
        for path in (self._directory, *paths) if paths else ():
            if self._file_system.is_directory(path):
                sync_names(path, self._file_system)

    def _forget_if_empty(self, queue: ConsumeQueue) -> None:
        if queue.is_empty:
            self._table.remove(queue.topic, queue.queue_id)
            self.changes.removed(queue.topic, queue.queue_id)
            queue.close()
