"""Making durable what has changed since the last checkpoint, and noting the states of queues.

A flush looks at the queues that changed, not at all of them. The lock that the next messages need
is held for a few of them at a time, and not while a disk is waited for.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, final

from commitbus.commitlog.errors import FlushFailedError, OutOfResourcesError, StoreError
from commitbus.commitlog.file_system import FileSystem, data_chunks
from commitbus.commitlog.mapped_file import file_name
from commitbus.commitlog.threads import Lock, Threads
from commitbus.commitlog.types import PhysicalOffset
from commitbus.consumequeue.consume_queue import ConsumeQueue
from commitbus.consumequeue.queue_states import QueueState, QueueStatesFile, States
from commitbus.consumequeue.queue_table import QueueTable
from commitbus.consumequeue.unit_format import UNIT_BYTES

_STEP: Final = 64
"""Queues whose ends are taken with the lock held: some 20 us."""
_OTHERS_TURN_S: Final = 0.0002
"""Between two steps of all queues: handlers need the interpreter more."""

_logger = logging.getLogger(__name__)


@final
class ChangedQueues:
    """What of the queues the last checkpoint does not have.

    `lock` is the one under which queues change. `flush`, `save_states` and `settle` take it and
    run on one thread at a time; `note*` and `removed` are called with it held.
    """

    __slots__ = (
        "_directory",
        "_file",
        "_file_lock",
        "_file_size",
        "_file_system",
        "_lock",
        "_names",
        "_queues",
        "_removed",
        "_saved_end",
        "_sleep",
        "_table",
        "_unsaved",
        "_unsettled",
    )

    def __init__(
        self,
        directory: Path,
        file_size: int,
        table: QueueTable,
        lock: Lock,
        file_system: FileSystem,
        *,
        threads: Threads,
    ) -> None:
        """Begin with no change. The directory is that of the queues, of files of `file_size`."""
        self._directory, self._file_size = directory, file_size
        self._table, self._lock, self._file_system = table, lock, file_system
        self._file = QueueStatesFile(directory.parent, file_system)
        # Also taken with `lock` held, so that nothing may wait for `lock` while it holds this.
        self._file_lock = threads.lock()
        self._sleep = threads.sleep
        self._queues: list[ConsumeQueue] = []
        self._names: set[Path] = set()
        self._removed: set[tuple[str, int]] = set()
        # Flushed, but the file does not have their states yet.
        self._unsaved: dict[tuple[str, int], QueueState | None] = {}
        self._saved_end = PhysicalOffset(0)
        self._unsettled: list[str] = []

    # The start

    def read_states(self, queues_end: PhysicalOffset) -> States | None:
        """Return the states of all queues as of a checkpoint, None if they are not known. OSError.

        Args:
            queues_end: The offset up to which the checkpoint vouches for the queues.
        """
        self._saved_end = queues_end
        return self._file.read(queues_end)

    def unsettle(self, topics: Iterable[str]) -> None:
        """Note that after an unclean stop, the files of these topics' queues were not looked at."""
        self._unsettled = list(topics)

    # What changes

    def note(self, queue: ConsumeQueue) -> None:
        """Note that a queue has changed."""
        if not queue.is_changed:
            queue.is_changed = True
            self._queues.append(queue)

    def note_names(self, directories: Iterable[Path]) -> None:
        """Note that names in these directories are new."""
        self._names.update(directories)

    def removed(self, topic: str, queue_id: int) -> None:
        """Note that a queue is there no more."""
        self._removed.add((topic, queue_id))

    def forget_states(self) -> None:
        """Let no start rely on the states that are saved. OSError: the file cannot be removed."""
        with self._file_lock:
            self._file.remove()

    # The checkpoint

    def flush(self) -> None:
        """Make everything put before the call durable.

        Raises:
            FlushFailedError: It failed. Never try again.
            OutOfResourcesError: The process may open no more files. Trying again is right.
        """
        with self._lock:
            directories, self._names = self._names, set()
            queues, self._queues = self._queues, []
            removed, self._removed = self._removed, set()
        self._unsaved.update(dict.fromkeys(removed))
        try:
            for start in range(0, len(queues), _STEP):
                self._flush(queues[start : start + _STEP])
            for directory in sorted(directories):
                # The topic may have been deleted meanwhile.
                with suppress(FileNotFoundError):
                    sync_names(directory, self._file_system)
        except OutOfResourcesError:
            with self._lock:
                self._names |= directories
                # By hand, as those that this flush did not come to still say that they are noted.
                noted = set(self._queues)
                for queue in queues:
                    if queue not in noted:
                        queue.is_changed = True
                        self._queues.append(queue)
            raise

    def _flush(self, queues: list[ConsumeQueue]) -> None:
        with self._lock:
            states = [queue.state() for queue in queues]
            for queue in queues:
                # What is put from here on is for the next flush.
                queue.is_changed = False
        for queue, state in zip(queues, states, strict=True):
            queue.flush(state)
            key = queue.topic, queue.queue_id
            if self._table.awake.get(key) is queue:
                self._unsaved[key] = queue.saved if state.dispatched_to else None

    def save_states(self, queues_end: PhysicalOffset) -> None:
        """Save the states of what was flushed, durably, for the checkpoint that follows.

        Without room they are not saved: the next start looks at all queues then.

        Args:
            queues_end: The offset up to which the checkpoint will vouch for the queues.

        Raises:
            FlushFailedError: They could not be made durable. Never try again.
        """
        with self._file_lock:
            if self._file.needs_full or self._file.is_long:
                self._file.replace(queues_end, self._all_states())
            elif self._unsaved or queues_end != self._saved_end:
                self._file.append(queues_end, self._unsaved)
            if not self._file.needs_full:
                self._unsaved.clear()
            self._saved_end = queues_end

    def _all_states(self) -> Iterator[tuple[tuple[str, int], QueueState]]:
        for number, key in enumerate(self._table):
            state = self._table.saved(*key)
            if state is not None and state.dispatched_to:
                yield key, state
            if number % _STEP == 0:
                self._sleep(_OTHERS_TURN_S)

    # After an unclean stop

    def settle(self, count: int) -> bool:
        """Look behind the ends of some queues that nobody has used since; return if more are left.

        A power cut may have taken the end of the log and left units of its messages.

        Args:
            count: How many queues are enough for one step, about.

        Raises:
            FlushFailedError: What is found could not be noted, durably.
            OutOfResourcesError: The process may open no more files. Trying again is right.
        """
        strays: list[tuple[str, int]] = []
        topics: list[str] = []
        try:
            while count > 0 and self._unsettled:
                topics.append(topic := self._unsettled.pop())
                for queue_id in self._table.ids(topic):
                    count -= 1
                    if self._is_astray(topic, queue_id):
                        strays.append((topic, queue_id))
            if strays:
                self._cut(strays)
        except (StoreError, OSError) as error:
            self._unsettled += topics
            raise _out_of_resources(error, self._directory) or error from None
        if not self._unsettled:
            self._table.is_doubtful = False
        return bool(self._unsettled)

    def _is_astray(self, topic: str, queue_id: int) -> bool:
        """Return whether bytes may lie behind the end of a queue. Without the lock.

        A unit that is put meanwhile may pass for one: `_cut` then finds that nothing is in doubt.
        """
        try:
            queue = self._table.awake.get((topic, queue_id))
            if queue is not None:
                return queue.has_stray_units()
            state = self._table.state(topic, queue_id)
            return state is not None and self._look_behind(topic, queue_id, state.max_offset)
        except (StoreError, OSError) as error:
            if _out_of_resources(error, self._directory) is not None:
                raise
            _logger.warning(
                "a queue cannot be looked at",
                extra={"topic": topic, "queue_id": queue_id, "reason": str(error)},
            )
            self._distrust(topic, queue_id)
            return False

    def _look_behind(self, topic: str, queue_id: int, end: int) -> bool:
        """Look into the file where a queue's next unit goes: its directory has no later one."""
        position = end * UNIT_BYTES % self._file_size
        base_offset = end * UNIT_BYTES - position
        path = Path(f"{self._directory}/{topic}/{queue_id}/{file_name(base_offset)}")
        try:
            file = self._file_system.open(path, writable=False)
        except FileNotFoundError:
            if position:
                raise
            return False
        try:
            return next(data_chunks(file, position, self._file_size), None) is not None
        finally:
            file.close()

    def _distrust(self, topic: str, queue_id: int) -> None:
        """Let the next start look at the files of all queues, those after it at this one's."""
        self.forget_states()
        with self._lock:
            queue = self._table.get(topic, queue_id)
            if queue is not None:
                queue.saved = None

    def _cut(self, strays: list[tuple[str, int]]) -> None:
        """Remove what lies behind the ends of queues.

        First their states are removed, durably: what is cut is not durable before the next flush,
        and a start that finds it cut already must flush it nevertheless.
        """
        with self._file_lock:
            if not self._file.needs_full:
                self._file.append(self._saved_end, dict.fromkeys(strays))
            if self._file.needs_full:
                self._file.remove()
        for key in strays:
            with self._lock:
                queue = self._table.get(*key)
                if queue is not None:
                    queue.saved = None
                    queue.cut_stray_units()
                    self.note(queue)


def sync_names(directory: Path, file_system: FileSystem) -> None:
    """Make the names in a directory durable.

    Raises:
        FileNotFoundError: It is not there.
        OutOfResourcesError: The process may open no more files.
        FlushFailedError: It failed otherwise.
    """
    try:
        file_system.sync_directory(directory)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise (_out_of_resources(error, directory) or FlushFailedError(directory, error)) from error


def _out_of_resources(error: StoreError | OSError, path: Path) -> OutOfResourcesError | None:
    """Return the error as what it is if the process may open no more files, else None."""
    if isinstance(error, OutOfResourcesError):
        return error
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return OutOfResourcesError(path, error)
    return None
