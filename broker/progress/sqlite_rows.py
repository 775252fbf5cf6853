"""The rows of progress in SQLite: `commitbus/progress.db`."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, TypeVar, final

from commitbus.broker.metadata.errors import StateFileError, StateWriteError
from commitbus.broker.metadata.rocketmq_config import make_own_directory
from commitbus.broker.metadata.sqlite_thread import Schema, SqliteThread
from commitbus.broker.progress.journal import JournalMark
from commitbus.broker.progress.progress_rows import ProgressRow, SavedRows, is_count
from commitbus.commitlog.errors import StoreClosedError, StoreError
from commitbus.commitlog.file_system import FileSystem

T = TypeVar("T")

SCHEMA: Final = Schema(
    application_id=int.from_bytes(b"CBpg"),
    version=1,
    statements="""
        CREATE TABLE progress (
            key_id INTEGER PRIMARY KEY,
            consumer_group TEXT NOT NULL,
            topic TEXT NOT NULL,
            queue_id INTEGER NOT NULL,
            committed_offset INTEGER NOT NULL,
            next_offset INTEGER NOT NULL,
            sequence INTEGER NOT NULL,
            in_flight BLOB NOT NULL,
            UNIQUE (consumer_group, topic, queue_id)
        );
        CREATE TABLE journal (
            id INTEGER PRIMARY KEY CHECK (id = 1),
            epoch INTEGER NOT NULL,
            sequence INTEGER NOT NULL,
            position INTEGER NOT NULL,
            next_key_id INTEGER NOT NULL
        );
        INSERT INTO journal VALUES (1, 0, 0, 0, 1)
    """,
)

# Most rows are there already. To replace them, names and their index included, takes twice as long.
_UPDATE: Final = """
    UPDATE progress
    SET (committed_offset, next_offset, sequence, in_flight) = (?, ?, ?, ?)
    WHERE key_id = ?
"""
_INSERT: Final = """
    INSERT INTO progress VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (key_id) DO NOTHING
"""


@final
class SqliteRows:
    """The `ProgressRows` of a store on this machine.

    Args:
        store_directory: The store; the database in it is made when missing.
        file_system: Makes the directory of the database.
    """

    def __init__(self, store_directory: Path, file_system: FileSystem) -> None:
        self._store_directory, self._file_system = store_directory, file_system
        self._thread: SqliteThread | None = None

    @property
    def path(self) -> Path:
        """The database."""
        return self._open_thread.path

    @property
    def _open_thread(self) -> SqliteThread:
        if self._thread is None:
            raise StoreClosedError
        return self._thread

    def start(self, tick: Callable[[], None], interval_s: float, *, sync: bool) -> None:
        """See `ProgressRows.start`."""
        self._thread = SqliteThread(
            make_own_directory(self._store_directory, self._file_system) / "progress.db",
            schema=SCHEMA,
            sync_commits=sync,
            tick=lambda _: tick(),
            tick_interval_s=interval_s,
        )

    def run(self, work: Callable[[], T]) -> T:
        """See `ProgressRows.run`."""
        return self._open_thread.run_sync(lambda _: work())

    def wake(self) -> None:
        """See `ProgressRows.wake`."""
        self._open_thread.wake()

    def load(self) -> SavedRows:
        """See `ProgressRows.load`."""
        execute = self._open_thread.database.execute
        try:
            header = execute(
                "SELECT epoch, sequence, position, next_key_id FROM journal"
            ).fetchone()
            rows = execute(
                "SELECT key_id, consumer_group, topic, queue_id, committed_offset, next_offset, "
                "sequence, in_flight FROM progress ORDER BY key_id"
            ).fetchall()
        except sqlite3.Error as error:
            raise StateFileError(self.path, f"it is damaged: {error}") from error
        if header is None or not all(map(is_count, header)):
            raise StateFileError(self.path, "the journal's row is damaged")
        return SavedRows(map(ProgressRow._make, rows), JournalMark(*header[:3]), header[3])

    def save(
        self,
        rows: Sequence[ProgressRow],
        deleted: Iterable[int],
        *,
        mark: JournalMark,
        next_key_id: int,
    ) -> None:
        """See `ProgressRows.save`."""
        database = self._open_thread.database
        run = database.conn.executemany
        try:
            with database.atomic():
                run("DELETE FROM progress WHERE key_id = ?", ((key_id,) for key_id in deleted))
                updated = run(_UPDATE, [(*row[4:], row.key_id) for row in rows]).rowcount
                if updated < len(rows):
                    run(_INSERT, rows)
                database.execute(
                    "REPLACE INTO journal VALUES (1, ?, ?, ?, ?)", (*mark, next_key_id)
                )
        except sqlite3.Error as error:
            raise StateWriteError(self.path, str(error)) from error

    def add_failure_listener(self, listener: Callable[[StoreError], None]) -> None:
        """See `ProgressRows.add_failure_listener`."""
        self._open_thread.add_failure_listener(listener)

    def close(self, *, last: Callable[[], object] | None = None) -> None:
        """See `ProgressRows.close`."""
        if self._thread is not None:
            self._thread.close(last=None if last is None else lambda _: last())
