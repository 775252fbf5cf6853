"""Topics, groups and offsets of a damaged store, taken over to the one that salvage has made.

The databases come first, being newer than the mirrors in `config/`; where one cannot be opened,
its mirrors are imported as if RocketMQ had written them. What was in flight is not taken over: it
is delivered again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol, TypeVar

from commitbus.broker.metadata.documents import format_document, parse_document
from commitbus.broker.metadata.rocketmq_config import (
    CONFIG_DIRECTORY,
    MARK_KEY,
    OWN_DIRECTORY,
)
from commitbus.broker.metadata.sqlite_metadata import SqliteMetadata
from commitbus.broker.progress.progress_table import ProgressTable
from commitbus.broker.progress.sqlite_rows import SqliteRows
from commitbus.commitlog.clock import Clock
from commitbus.commitlog.errors import StoreError
from commitbus.commitlog.file_system import FileSystem

_METADATA: Final = (("metadata.db", "metadata.db-wal"), ("topics.json", "subscriptionGroup.json"))
_PROGRESS: Final = (
    ("progress.db", "progress.db-wal", "progress.journal"),
    ("consumerOffset.json",),
)
_UNUSABLE: Final = (StoreError, OSError, sqlite3.Error, ValueError)

_State = TypeVar("_State", SqliteMetadata, ProgressTable)


class QueueTranslation(Protocol):
    """The new queue offsets of a queue by the old ones."""

    def translate(self, old: int) -> int:
        """Return where a group goes on that was at `old`."""


def salvage_state(
    directory: Path,
    out: Path,
    queues: Mapping[tuple[str, int], QueueTranslation],
    *,
    clock: Clock,
    file_system: FileSystem,
) -> list[str]:
    """Copy what can be read of topics, groups and offsets; return what cannot, in words.

    Args:
        directory: The damaged store. Only read.
        out: The new one, which nobody has open.
        queues: How the queue offsets of each (topic, queue id) have changed.
        clock: For the times in the mirrors.
        file_system: What holds both.

    Raises:
        StateWriteError: The new store's disk does not take them.
    """
    copier = _Copier(directory, out, file_system)

    def open_metadata() -> SqliteMetadata:
        return SqliteMetadata(out, clock=clock, file_system=file_system)

    def open_progress() -> ProgressTable:
        table = ProgressTable(
            out, SqliteRows(out, file_system), clock=clock, file_system=file_system
        )
        table.open()
        return table

    metadata = copier.open_best(open_metadata, *_METADATA, what="topics and groups")
    metadata.close()
    table = copier.open_best(open_progress, *_PROGRESS, what="offsets of the groups")
    try:
        for (group, topic, queue_id), progress in table.items():
            queue = queues.get((topic, queue_id))
            offset = queue.translate(progress.committed_offset) if queue else 0
            table.reset(group, topic, queue_id, offset)
    finally:
        table.close()
    return copier.lost


class _Copier:
    def __init__(self, directory: Path, out: Path, file_system: FileSystem) -> None:
        self._directory, self._out, self._file_system = directory, out, file_system
        self.lost: list[str] = []

    def open_best(
        self,
        open_: Callable[[], _State],
        databases: Sequence[str],
        mirrors: Sequence[str],
        *,
        what: str,
    ) -> _State:
        """Open the newest state that can be opened; without any an empty one."""
        own: list[str] = [f"{OWN_DIRECTORY}/{name}" for name in databases]
        config: list[str] = [f"{CONFIG_DIRECTORY}/{name}" for name in mirrors]
        instead = f"taken from {', '.join(config)}"
        database = self._read(own[0])
        if database:
            copied: list[str] = [
                name for name in (*own, *config) if self._copy(name, self._read(name))
            ]
            try:
                return open_()
            except _UNUSABLE as error:
                self.lost.append(f"{what}: {self._relative(error)}; {instead}")
            self._remove(copied)
        elif database is not None:
            # An empty file would pass as a new database, and the mirrors, being ours, as known.
            self.lost.append(f"{what}: {own[0]} is empty; {instead}")
        copied = [name for name in config if self._copy(name, self._unmarked(name))]
        try:
            return open_()
        except _UNUSABLE as error:
            self.lost.append(f"{what}: {self._relative(error)}; left out")
        self._remove([*copied, *own])
        return open_()

    def _relative(self, error: Exception) -> str:
        return str(error).replace(f"{self._out}/", "")

    def _read(self, name: str) -> bytes | None:
        """Return a file's bytes, None if it is not there or cannot be read."""
        path = self._directory / name
        if not self._file_system.exists(path) or self._file_system.is_directory(path):
            return None
        try:
            file = self._file_system.open(path, writable=False)
            try:
                return file.pread(file.size(), 0)
            finally:
                file.close()
        except OSError as error:
            self.lost.append(f"{name}: {error.strerror or error}")
            return None

    def _unmarked(self, name: str) -> bytes | None:
        """Return a mirror without the mark that it is ours, None if it is none."""
        data = self._read(name)
        try:
            document = parse_document(data or b"")
            document.pop(MARK_KEY, None)
            return format_document(document)
        except ValueError:
            return None

    def _copy(self, name: str, data: bytes | None) -> bool:
        if data is None:
            return False
        target = self._out / name
        self._file_system.make_directories(target.parent)
        file = self._file_system.open(target, create=True)
        try:
            file.truncate(0)
            file.pwrite(data, 0)
        finally:
            file.close()
        return True

    def _remove(self, names: Sequence[str]) -> None:
        # With the files that SQLite puts beside a database, and the backups beside a mirror.
        for name in names:
            for suffix in ("", "-wal", "-shm", "-journal", ".bak", ".tmp"):
                path = self._out / f"{name}{suffix}"
                if self._file_system.exists(path):
                    self._file_system.remove(path)
