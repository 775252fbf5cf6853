"""Queues of deleted topics, from the moment when they count no more until their files are gone.

A deletion counts at once for all queues of its topic, and takes no look at the disk for that: reput
passes over the messages from before it, and the next message must not meet a queue that lacks
those. The files go afterwards. What cannot be removed is tried again by the next deletion of the
topic, by the first message of a new queue of that name, and by the next start.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, final

from commitbus.commitlog.errors import FlushFailedError, StoreError
from commitbus.commitlog.file_system import FileSystem
from commitbus.commitlog.threads import Lock
from commitbus.commitlog.types import PhysicalOffset, QueueOffset
from commitbus.consumequeue.changed_queues import ChangedQueues
from commitbus.consumequeue.consume_queue import ConsumeQueue
from commitbus.consumequeue.known_queues import is_plain_name
from commitbus.consumequeue.queue_table import QueueTable


@final
class RemovedQueues:
    """Queues that have left the table, and whose files are still there.

    `lock` is the one under which queues change. `remove_topic` takes it; the other methods are
    called with it held.
    """

    __slots__ = (
        "_changes",
        "_directory",
        "_file_system",
        "_lock",
        "_queues",
        "_table",
        "_writable",
    )

    def __init__(
        self,
        directory: Path,
        table: QueueTable,
        changes: ChangedQueues,
        lock: Lock,
        file_system: FileSystem,
        *,
        writable: bool,
    ) -> None:
        """Begin without any. A store that is not writable keeps the files."""
        self._directory, self._file_system, self._lock = directory, file_system, lock
        self._table, self._changes, self._writable = table, changes, writable
        self._queues: Final[dict[tuple[str, int], ConsumeQueue]] = {}

    def hide(
        self,
        topic: str,
        queue_id: int,
        before: PhysicalOffset,
        ends: Mapping[int, QueueOffset] | None,
    ) -> None:
        """Let the messages of a queue before an offset of the log count no more.

        Args:
            topic: Whose queue it is.
            queue_id: Which of them; it need not be there.
            before: A log's end.
            ends: By queue id, the end of each queue at that moment: then no disk is waited for.
                None if nobody knows any more.

        Raises:
            ReadFailedError: Without `ends`: where the messages behind begin cannot be read.
            OSError: Without `ends`: a file cannot be opened or removed.
        """
        queue = self._table.get(topic, queue_id)
        if queue is None:
            return
        if queue.dispatched_to > before:
            # Messages have come since.
            if ends is None:
                is_changed = queue.delete_before(before)
            else:
                is_changed = queue.hide_before(before, ends.get(queue_id, queue.min_offset))
            if is_changed:
                self._changes.note(queue)
            if queue.min_offset < queue.max_offset:
                return
        self._table.remove(topic, queue_id)
        self._changes.removed(topic, queue_id)
        if self._writable:
            self._queues[topic, queue_id] = queue
        else:
            queue.close()

    def remove_files(self, topic: str, queue_id: int) -> None:
        """Remove the files of a queue that counts no more, if it still has any.

        Raises:
            OSError: One cannot be removed. The next call goes on with it.
            FlushFailedError: That one is gone could not be made durable. Never try again.
            StoreError: The files are not as they should be.
        """
        queue = self._queues.get((topic, queue_id))
        if queue is not None:
            queue.delete()
            del self._queues[topic, queue_id]

    def remove_topic(self, topic: str, before: PhysicalOffset) -> StoreError | OSError | None:
        """Remove the files of a topic that hold no message from an offset on; return a failure.

        All others are removed nevertheless.

        Raises:
            FlushFailedError: A removal could not be made durable. Never try again.
        """
        failure: StoreError | OSError | None = None
        with self._lock:
            hidden = {queue_id for name, queue_id in self._queues if name == topic}
        for queue_id in sorted({*hidden, *self._table.ids(topic)}):
            # Queue by queue: the next messages need not wait for all of the files.
            with self._lock:
                queue = self._table.get(topic, queue_id)
                try:
                    self.remove_files(topic, queue_id)
                    if queue is not None:
                        queue.delete_before(before)
                except FlushFailedError:
                    raise
                except (StoreError, OSError) as error:
                    failure = failure or error
        try:
            self._remove_directory(topic)
        except OSError as error:
            failure = failure or error
        return failure

    def _remove_directory(self, topic: str) -> None:
        path = self._directory / topic
        with self._lock:
            if (
                is_plain_name(topic)
                and self._file_system.exists(path)
                and not self._file_system.list_names(path)
            ):
                self._file_system.remove(path)

    def close(self) -> None:
        """Close the files."""
        for queue in self._queues.values():
            queue.close()
        self._queues.clear()
