"""Which messages of the log belong to deleted topics.

A deleted topic loses its queues at once, but its messages stay in the log until their file goes.
Without this note a rebuild would bring them back, in a new topic of the same name too, and that
would begin at queue offset 0 again, so that an offset meant two messages.

The file is JSON, replaced as a whole:

```
{"crc32": <of the canonical text of "topics">,
 "topics": {"<name>": {"before": <physical offset>, "queue_ends": {"<queue id>": <offset>, ...}}}}
```

Messages of the topic before the physical offset are in no queue; those behind it go on from the
queue ends. An entry lasts as long as the log has bytes from before the deletion, and a topic that
never had a message needs none, so there are no more entries than messages.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, final

from isal.isal_zlib import crc32

from commitbus.commitlog.errors import NotAStoreError
from commitbus.commitlog.file_system import FileSystem, replace_file
from commitbus.commitlog.mapped_file import raise_refusal
from commitbus.commitlog.types import DispatchRequest, PhysicalOffset, QueueOffset

DELETED_TOPICS_PATH: Final = Path("commitbus", "deleted_topics.json")
"""Relative to the store."""


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

    __slots__ = ("_deletions", "_file_system", "_path", "is_new")

    def __init__(self, store: Path, file_system: FileSystem) -> None:
        """Read the file, if there is one.

        Raises:
            NotAStoreError: It is damaged.
            OSError: It cannot be read.
        """
        self._path, self._file_system = store / DELETED_TOPICS_PATH, file_system
        self._deletions: dict[str, Deletion] = {}
        self.is_new = not file_system.exists(self._path)
        """Whether there is no file yet: another program may have deleted topics without a note."""
        if not self.is_new:
            self._deletions = _decode(self._read(), self._path)

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
        """Note a deletion, durably. One without queue ends needs no note.

        Raises:
            DiskFullError: There is no room; nothing is changed.
            OSError: The file cannot be written.
        """
        if not queue_ends:
            return
        changed = dict(self._deletions)
        changed[topic] = Deletion(before, dict(queue_ends))
        self._save(changed)

    def settle(self, begin: PhysicalOffset, end: PhysicalOffset) -> bool:
        """Fit the deletions to where the log begins and ends, in memory only.

        One that lies behind the end was noted before a power cut took the end of the log: what is
        appended there from now on is new. Returns whether there is such a one, which must be saved
        before the next append.
        """
        is_cut = any(deletion.before > end for deletion in self._deletions.values())
        self._deletions = {
            topic: replace(deletion, before=min(deletion.before, end))
            for topic, deletion in self._deletions.items()
            if deletion.before > begin
        }
        return is_cut

    def save(self) -> None:
        """Make what `settle` changed durable. Raises as `note`."""
        if self.is_new or self._read() != _encode(self._deletions):
            self._save(self._deletions)

    def _read(self) -> bytes:
        file = self._file_system.open(self._path, writable=False)
        try:
            return file.pread(file.size(), 0)
        finally:
            file.close()

    def _save(self, deletions: dict[str, Deletion]) -> None:
        data = _encode(deletions)
        try:
            replace_file(self._path, data, self._file_system)
        except OSError as error:
            raise_refusal(error, self._path, len(data))
            raise
        self._deletions = deletions
        self.is_new = False


_ZERO: Final = QueueOffset(0)


def _encode(deletions: Mapping[str, Deletion]) -> bytes:
    topics = {
        topic: {
            "before": deletion.before,
            "queue_ends": {str(key): end for key, end in deletion.queue_ends.items()},
        }
        for topic, deletion in deletions.items()
    }
    return json.dumps({"crc32": _checksum(topics), "topics": topics}, indent=1).encode()


def _decode(data: bytes, path: Path) -> dict[str, Deletion]:
    topics = _intact_topics(data)
    if topics is None:
        raise NotAStoreError(
            path,
            "it is damaged; without it the messages of deleted topics may come back: remove it if "
            "that does no harm",
        )
    return {
        topic: Deletion(
            PhysicalOffset(entry["before"]),
            {int(key): QueueOffset(end) for key, end in entry["queue_ends"].items()},
        )
        for topic, entry in topics.items()
    }


def _intact_topics(data: bytes) -> dict[str, Any] | None:
    try:
        document = json.loads(data)
        topics: dict[str, Any] = document["topics"]
        return topics if document["crc32"] == _checksum(topics) else None
    except (ValueError, TypeError, LookupError):
        return None


def _checksum(topics: object) -> int:
    return crc32(json.dumps(topics, sort_keys=True, separators=(",", ":")).encode())
