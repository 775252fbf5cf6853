"""The ends of queues of which the log has no message any more.

Retention deletes a message, but its queue offset stays used: the queue's next message gets the one
after it. The newest file of a queue is kept for that, as its last unit has the offset. An operator
who removes queues, to have them derived anew, removes that unit as well; then this note has it.

The file is JSON, replaced as a whole:

```
{"crc32": <of the canonical text of "queue_ends">,
 "queue_ends": {"<topic>": {"<queue id>": <offset of the next message>, ...}}}
```

An entry is ignored once its queue has a message again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, final

from isal.isal_zlib import crc32

from commitbus.commitlog.errors import NotAStoreError
from commitbus.commitlog.file_system import FileSystem, replace_file
from commitbus.commitlog.mapped_file import raise_refusal
from commitbus.commitlog.types import QueueOffset

QUEUE_ENDS_PATH: Final = Path("commitbus", "queue_ends.json")
"""Relative to the store."""

Ends = Mapping[tuple[str, int], QueueOffset]


@final
class QueueEnds:
    """The note of a store. Changed by one thread at a time, read by any."""

    __slots__ = ("_file_system", "_path", "_topics", "ends")

    def __init__(self, store: Path, file_system: FileSystem) -> None:
        """Read the file, if there is one.

        Raises:
            NotAStoreError: It is damaged.
            OSError: It cannot be read.
        """
        self._path, self._file_system = store / QUEUE_ENDS_PATH, file_system
        self.ends: Ends = {}
        """By topic and queue id. Replaced, never changed."""
        if file_system.exists(self._path):
            file = file_system.open(self._path, writable=False)
            try:
                data = file.pread(file.size(), 0)
            finally:
                file.close()
            self.ends = _decode(data, self._path)
        # A topic is deleted far more often than it is in the note.
        self._topics = frozenset(topic for topic, _ in self.ends)

    def save(self, ends: Ends) -> None:
        """Save the ends, durably, if they have changed.

        Raises:
            DiskFullError: There is no room; nothing is changed.
            OSError: The file cannot be written.
        """
        if ends == self.ends:
            return
        self._save(ends)

    def forget(self, topic: str) -> None:
        """Remove a topic's queues from the note, if it has any. Raises as `save`."""
        if topic in self._topics:
            self._save({key: end for key, end in self.ends.items() if key[0] != topic})

    def _save(self, ends: Ends) -> None:
        data = _encode(ends)
        try:
            replace_file(self._path, data, self._file_system)
        except OSError as error:
            raise_refusal(error, self._path, len(data))
            raise
        self.ends = dict(ends)
        self._topics = frozenset(topic for topic, _ in ends)


def _encode(ends: Ends) -> bytes:
    topics: dict[str, dict[str, int]] = {}
    for (topic, queue_id), end in sorted(ends.items()):
        topics.setdefault(topic, {})[str(queue_id)] = end
    return json.dumps({"crc32": _checksum(topics), "queue_ends": topics}, indent=1).encode()


def _decode(data: bytes, path: Path) -> Ends:
    topics = _intact_topics(data)
    if topics is None:
        raise NotAStoreError(
            path,
            "it is damaged; without it, queues that were removed may give queue offsets away "
            "twice: remove it if that does no harm",
        )
    return {
        (topic, int(queue_id)): QueueOffset(end)
        for topic, queues in topics.items()
        for queue_id, end in queues.items()
    }


def _intact_topics(data: bytes) -> dict[str, Any] | None:
    try:
        document = json.loads(data)
        topics: dict[str, Any] = document["queue_ends"]
        return topics if document["crc32"] == _checksum(topics) else None
    except (ValueError, TypeError, LookupError):
        return None


def _checksum(topics: object) -> int:
    return crc32(json.dumps(topics, sort_keys=True, separators=(",", ":")).encode())
