"""Which messages of the log belong to deleted topics.

A deleted topic loses its queues at once, but its messages stay in the log until their file goes.
Without this note a rebuild would bring them back, in a new topic of the same name too, and that
would begin at queue offset 0 again, so that an offset meant two messages.

Messages of the topic before a physical offset are in no queue; those behind it go on from the queue
ends. An entry lasts as long as the log has bytes from before the deletion, and a topic that never
had a message needs none, so there are no more entries than messages.

A deletion appends one line to the file (see `note_lines`), so that it costs the same
however many are noted:

```
{"topic": "<name>", "before": <physical offset>, "queue_ends": {"<queue id>": <offset>, ...}}
```

The last line of a topic counts. The file is written anew, without those that do not count, when
they are more than those that do. A file of an earlier version is one JSON document:

```
{"crc32": <of the canonical text of "topics">,
 "topics": {"<name>": {"before": <physical offset>, "queue_ends": {"<queue id>": <offset>, ...}}}}
```
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, final

from isal.isal_zlib import crc32

from commitbus.commitlog.errors import NotAStoreError
from commitbus.commitlog.file_system import FileSystem
from commitbus.commitlog.types import DispatchRequest, PhysicalOffset, QueueOffset
from commitbus.consumequeue.note_lines import NoteFile

DELETED_TOPICS_PATH: Final = Path("commitbus", "deleted_topics.json")
"""Relative to the store."""
DAMAGED: Final = (
    "it is damaged; without it the messages of deleted topics may come back: remove it if "
    "that does no harm"
)
_SPARE_LINES: Final = 64


@final
@dataclass(frozen=True, slots=True)
class Deletion:
    """When a topic was deleted, last."""

    before: PhysicalOffset
    """The log's end then."""
    queue_ends: Mapping[int, QueueOffset]
    """By queue id: the queue offset of the next message."""


@final
class DeletedTopics:
    """The deletions of a store. Changed by one thread at a time, read by any."""

    __slots__ = ("_deletions", "_file", "_is_changed", "is_new")

    def __init__(self, store: Path, file_system: FileSystem) -> None:
        """Read the file, if there is one.

        Raises:
            NotAStoreError: It is damaged.
            OSError: It cannot be read.
        """
        self._file = NoteFile(store / DELETED_TOPICS_PATH, file_system, damaged=DAMAGED)
        self._deletions: dict[str, Deletion] = {}
        # Whether what is in memory is not what the file says, or not as it is written now.
        self._is_changed = True
        self.is_new = not self._file.exists()
        """Whether there is no file yet: another program may have deleted topics without a note."""
        if not self.is_new:
            self._load(store / DELETED_TOPICS_PATH)

    def __len__(self) -> int:
        """Return how many topics are noted."""
        return len(self._deletions)

    def before(self, topic: str) -> PhysicalOffset:
        """Return from which physical offset on messages of a topic count; 0 for all."""
        deletion = self._deletions.get(topic)
        return PhysicalOffset(0) if deletion is None else deletion.before

    def queue_end(self, topic: str, queue_id: int) -> QueueOffset:
        """Return where a queue goes on that has had no message since its topic was deleted."""
        deletion = self._deletions.get(topic)
        return QueueOffset(0) if deletion is None else deletion.queue_ends.get(queue_id) or _ZERO

    def queue_ends(self) -> dict[tuple[str, int], QueueOffset]:
        """Return that of all queues."""
        return {
            (topic, queue_id): end
            for topic, deletion in self._deletions.items()
            for queue_id, end in deletion.queue_ends.items()
        }

    def topics(self) -> list[str]:
        """Return the topics of which the log may have messages that count no more."""
        return list(self._deletions)

    def hides(self, request: DispatchRequest) -> bool:
        """Return whether a message was there before its topic was deleted."""
        deletion = self._deletions.get(request.topic)
        return deletion is not None and request.physical_offset < deletion.before

    def note(
        self, topic: str, before: PhysicalOffset, queue_ends: Mapping[int, QueueOffset]
    ) -> None:
        """Note a deletion, durably, and let it count. Raises as `write`."""
        deletion = self.write(topic, before, queue_ends)
        if deletion is not None:
            self.count(topic, deletion)

    def count(self, topic: str, deletion: Deletion) -> None:
        """Let a deletion count that was written."""
        self._deletions[topic] = deletion

    def write(
        self, topic: str, before: PhysicalOffset, queue_ends: Mapping[int, QueueOffset]
    ) -> Deletion | None:
        """Note a deletion, durably; it does not count yet. None without queue ends: no need to.

        Raises:
            DiskFullError: There is no room; nothing is changed.
            OutOfResourcesError: The process may open no more files. Likewise.
            OSError: The file cannot be written. Likewise.
            FlushFailedError: It could not be made durable: whether it is noted, the next start
                tells. Never try again.
        """
        if not queue_ends:
            return None
        is_long = self._file.lines > 2 * len(self._deletions) + _SPARE_LINES
        if self._is_changed or is_long or self._file.needs_replace or not self._file.exists():
            # As it was before: whichever of both files a power cut leaves, it says the same.
            self.save()
        deletion = Deletion(before, dict(queue_ends))
        self._file.append(_entry(topic, deletion))
        return deletion

    def settle(self, begin: PhysicalOffset, end: PhysicalOffset) -> bool:
        """Fit the deletions to where the log begins and ends, in memory only.

        One that lies behind the end was noted before a power cut took the end of the log: what is
        appended there from now on is new. Returns whether there is such a one, which must be saved
        before the next append.
        """
        is_cut = False
        for topic, deletion in list(self._deletions.items()):
            if deletion.before > end:
                is_cut = self._is_changed = True
                self._deletions[topic] = replace(deletion, before=end)
            if min(deletion.before, end) <= begin:
                self._is_changed = True
                del self._deletions[topic]
        return is_cut

    def save(self) -> None:
        """Write the file anew: it then says what is in memory, durably. Raises as `note`."""
        self._file.replace(_entry(*item) for item in self._deletions.items())
        self._is_changed = self.is_new = False

    def save_if_changed(self) -> None:
        """Make what `settle` changed durable, if it changed anything. Raises as `note`."""
        if self._is_changed:
            self.save()

    def write_again(self) -> None:
        """Make what was read durable, even if the last writer's sync failed. FlushFailedError."""
        if not self.is_new:
            self._file.write_again()

    def _load(self, path: Path) -> None:
        lines = self._file.read()
        if lines is None:
            self._deletions = _decode(self._file.read_bytes(), path)
            return
        for line in lines:
            entry = json.loads(line)
            self._deletions[entry["topic"]] = _deletion_of(entry)
        self._is_changed = False


_ZERO: Final = QueueOffset(0)


def _entry(topic: str, deletion: Deletion) -> str:
    ends = {str(queue_id): end for queue_id, end in deletion.queue_ends.items()}
    return json.dumps({"topic": topic, "before": deletion.before, "queue_ends": ends})


def _deletion_of(entry: Mapping[str, Any]) -> Deletion:
    return Deletion(
        PhysicalOffset(entry["before"]),
        {int(key): QueueOffset(end) for key, end in entry["queue_ends"].items()},
    )


def _decode(data: bytes, path: Path) -> dict[str, Deletion]:
    """Return what a file of an earlier version says."""
    topics = _intact_topics(data)
    if topics is None:
        raise NotAStoreError(path, DAMAGED)
    return {topic: _deletion_of(entry) for topic, entry in topics.items()}


def _intact_topics(data: bytes) -> dict[str, Any] | None:
    try:
        document = json.loads(data)
        topics: dict[str, Any] = document["topics"]
        return topics if document["crc32"] == _checksum(topics) else None
    except (ValueError, TypeError, LookupError):
        return None


def _checksum(topics: object) -> int:
    return crc32(json.dumps(topics, sort_keys=True, separators=(",", ":")).encode())
