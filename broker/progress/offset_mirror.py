"""Committed offsets in `config/consumerOffset.json`, for RocketMQ to go on from.

The text of each group and topic is kept, and made anew only where an offset changed: a broker with
400,000 queues of groups of which a few move writes few of them anew, and then joins all of them.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final, final

from commitbus.broker.metadata.documents import (
    DocumentError,
    format_object,
)
from commitbus.broker.metadata.errors import StateFileError
from commitbus.broker.metadata.rocketmq_config import (
    CONFIG_DIRECTORY,
    ConfigFile,
    Tables,
)
from commitbus.broker.progress.consumer_offsets import decode_offsets, format_queues, format_topics
from commitbus.broker.progress.progress_index import ProgressIndex
from commitbus.broker.progress.progress_rows import Key
from commitbus.commitlog.clock import Clock
from commitbus.commitlog.file_system import FileSystem

PAUSE_FACTOR: Final = 50
"""A file that takes long to write is not written again before this many times as long."""


@final
class OffsetMirror:
    """The file, written again when something has changed. For the SQLite thread, but for `note`.

    Args:
        store_directory: The store.
        index: What the offsets are read from.
        clock: For its intervals and the time in the file.
        file_system: Reads and writes it.
        interval_ms: How often it is written at most.
        lock: Held while an offset is read.
    """

    def __init__(
        self,
        store_directory: Path,
        index: ProgressIndex,
        *,
        clock: Clock,
        file_system: FileSystem,
        interval_ms: int,
        lock: threading.Lock,
    ) -> None:
        self._index, self._lock = index, lock
        self._clock, self._interval_s = clock, interval_ms / 1000
        self._file = ConfigFile(
            store_directory / CONFIG_DIRECTORY / "consumerOffset.json",
            clock=clock,
            file_system=file_system,
        )
        self._changed: set[tuple[str, str]] = set()
        """Groups and topics of which the text is old."""
        # The text of each group's topics; None before the file is written for the first time.
        self._groups: dict[str, str] | None = None
        # The text of the offsets of each group and topic.
        self._pairs: dict[tuple[str, str], str] = {}
        self._sequence = -1
        self._next_write_s = clock.monotonic_s() + self._interval_s

    @property
    def path(self) -> Path:
        """The file."""
        return self._file.path

    def load(self, *, backup_too: bool) -> dict[Key, int] | None:
        """Return the offsets if RocketMQ wrote the file, None if we did or there is none.

        Raises:
            StateFileError: It is no such file.
        """
        document = self._file.load(backup_too=backup_too)
        if document is None:
            return None
        try:
            return decode_offsets(document)
        except DocumentError as error:
            raise StateFileError(self.path, str(error)) from error

    def note(self, group: str, topic: str) -> None:
        """Note that offsets of a group in a topic have changed. For any thread."""
        self._changed.add((group, topic))

    def save(self, sequence: int) -> None:
        """Write the file; `sequence` is the last change that is in it.

        Raises:
            OSError: The old file is still there, whole.
        """
        self._file.save(self._tables(), len(self._index))
        self._sequence = sequence

    def _tables(self) -> Tables:
        groups = self._format_changed()
        return {
            "groupTopicMap": format_object(groups.values(), level=1),
            "offsetTable": format_object(self._pairs.values(), level=1),
        }

    def _format_changed(self) -> dict[str, str]:
        """Bring the kept texts up to date; return those of the groups."""
        index, changed, self._changed = self._index, self._changed, set()
        groups = self._groups
        if groups is None:
            groups = self._groups = {}
            changed = {
                (group, topic) for group in index.groups() for topic in index.topics_of(group)
            }
        regrouped: set[str] = set()
        for group, topic in changed:
            queues = index.queues_of(group, topic)
            offsets = []
            for queue_id, progress in queues:
                with self._lock:
                    offsets.append((queue_id, progress.committed_offset))
            if bool(queues) != ((group, topic) in self._pairs):
                regrouped.add(group)
            if queues:
                self._pairs[group, topic] = format_queues(group, topic, offsets)
            else:
                self._pairs.pop((group, topic), None)
        for group in regrouped:
            topics = index.topics_of(group)
            if topics:
                groups[group] = format_topics(group, topics)
            else:
                groups.pop(group, None)
        return groups

    def write(self, sequence: int, *, at_once: bool = False) -> None:
        """Bring the file up to date when it is due, or at once; log errors.

        Args:
            sequence: The last change.
            at_once: Whether the interval does not matter.
        """
        begin_s = self._clock.monotonic_s()
        if not at_once and begin_s < self._next_write_s:
            return
        self._next_write_s = begin_s + self._interval_s
        # A change may be noted only after the file with its sequence number was written: it is
        # noted when it is saved.
        if sequence == self._sequence and not self._changed:
            return
        if not self._file.takes(len(self._index)):
            return
        if self._file.try_save(self._tables, len(self._index)):
            self._sequence = sequence
        took_s = self._clock.monotonic_s() - begin_s
        self._next_write_s = begin_s + max(self._interval_s, took_s * PAUSE_FACTOR)
