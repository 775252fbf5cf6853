"""One SQLite database, one thread that owns its connection.

SQLite waits for the disk, the trio thread never does: work is handed over as functions of the
database and awaited. One writer per file also means that no job ever meets a locked database.

An error of a job is raised in its caller. Any other exception on the thread ends it; then all
callers, waiting and later ones, get an error, and so does the broker, which stops.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final, TypeVar, final

import trio
from sqlite_utils import Database

from commitbus.broker.metadata.errors import StateFileError, StateVersionError, StateWriteError
from commitbus.commitlog.errors import StoreClosedError, StoreError, ThreadDiedError
from commitbus.commitlog.service_thread import ServiceThread
from commitbus.flush.listeners import tell

_log = logging.getLogger(__name__)

T = TypeVar("T")
Tick = Callable[[Database], None]

BUSY_TIMEOUT_S: Final = 5.0
"""The wait for another process's lock, such as that of a `sqlite3` shell on the same file."""


@final
@dataclass(frozen=True, slots=True)
class Schema:
    """The tables of a database, and the two numbers in its header that tell it from others."""

    application_id: int
    """`PRAGMA application_id`: four letters that name the kind of file."""
    version: int
    """`PRAGMA user_version`."""
    statements: str
    """Statements that make the tables, separated by semicolons."""
    upgrades: Mapping[int, str] = field(default_factory=dict)
    """For each version from 2 on, the statements that upgrade from the version before."""


@final
class _Job:
    """A piece of work, and its error once `done` was called."""

    __slots__ = ("_done", "_work", "error")

    def __init__(self, work: Callable[[Database], object], done: Callable[[], object]) -> None:
        self._work, self._done = work, done
        self.error: Exception | None = None

    def run(self, database: Database) -> None:
        try:
            self._work(database)
        except Exception as error:  # noqa: BLE001 - raised again where the result is awaited
            self.error = error
        self._done()

    def fail(self, error: Exception) -> None:
        self.error = self.error or error
        self._done()


@final
class SqliteThread:
    """A database in write-ahead mode and the thread that alone touches it.

    The file is locked against other processes. So SQLite keeps the index of the write-ahead log in
    its own memory; in `-shm`, a file that it maps, a page that the disk does not give back would
    be a SIGBUS.

    Args:
        path: The file; it is created when missing, its directory is not.
        schema: What an empty file is made into, and what any other has to be. One of an older
            version is upgraded, in one transaction.
        sync_commits: Whether a commit is on stable storage when it returns, or only survives the
            process.
        tick: Called on the thread about every `tick_interval_s`, busy or not. It handles its
            own errors.
        tick_interval_s: Seconds between two ticks.

    Raises:
        StateVersionError: The file was written by a newer commitbus.
        StateFileError: The file is no database of ours, or is damaged.
    """

    __slots__ = (
        "_closed",
        "_current",
        "_failure",
        "_failure_listeners",
        "_jobs",
        "_path",
        "_thread",
        "_tick",
        "_tick_interval_s",
        "database",
    )

    def __init__(
        self,
        path: Path,
        *,
        schema: Schema,
        sync_commits: bool,
        tick: Tick,
        tick_interval_s: float,
    ) -> None:
        self._path, self._tick, self._tick_interval_s = path, tick, tick_interval_s
        self.database: Final = _open(path, schema, sync_commits=sync_commits)
        """For the thread alone."""
        self._closed = False
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        # The job at which the thread is.
        self._current: _Job | None = None
        self._failure: ThreadDiedError | None = None
        self._failure_listeners: tuple[Callable[[StoreError], None], ...] = ()
        self._thread = ServiceThread(f"sqlite {path.name}", self._serve, self._die)
        self._thread.start()

    @property
    def path(self) -> Path:
        """The database file."""
        return self._path

    def add_failure_listener(self, listener: Callable[[StoreError], None]) -> None:
        """Call `listener`, once, on the thread, should it die; at once if it has died."""
        self._failure_listeners = (*self._failure_listeners, listener)
        if self._failure is not None:
            tell((listener,), self._failure)

    def run_sync(self, work: Callable[[Database], T]) -> T:
        """Run `work` on the thread and wait for it without trio: at open, at close, in tests.

        Raises:
            StateWriteError: SQLite could not do it; a transaction of `work` was rolled back.
            ThreadDiedError: The thread died; whether the work was done is unknown.
            StoreClosedError: `close` was called.
        """
        done, results = threading.Event(), list[T]()
        job = _Job(lambda database: results.append(work(database)), done.set)
        self._hand_over(job)
        done.wait()
        self._raise_error(job)
        return results[0]

    async def run(self, work: Callable[[Database], T]) -> T:
        """Run `work` on the thread and let other tasks go on meanwhile.

        A cancellation takes effect only after the work is done: it cannot be called back, and
        whoever keeps a copy in memory must learn how it ended.

        Raises:
            StateWriteError: SQLite could not do it; a transaction of `work` was rolled back.
            ThreadDiedError: The thread died; whether the work was done is unknown.
            StoreClosedError: `close` was called.
        """
        done, results = trio.Event(), list[T]()
        token = trio.lowlevel.current_trio_token()
        job = _Job(
            lambda database: results.append(work(database)),
            partial(_call_soon, token, done.set),
        )
        self._hand_over(job)
        with trio.CancelScope(shield=True):
            await done.wait()
        self._raise_error(job)
        return results[0]

    def wake(self) -> None:
        """Have the thread tick now, without waiting for it."""
        self._jobs.put(_Job(self._run_tick, _nothing))

    def close(self, *, last: Callable[[Database], object] | None = None) -> None:
        """Finish what was handed over, do the `last` work, close the database.

        A second call does nothing. The database is closed whatever `last` raises.

        Raises:
            StateWriteError: SQLite could not do the last work.
        """
        if self._closed:
            return
        try:
            if last is not None:
                self.run_sync(last)
        finally:
            self._closed = True
            self._jobs.put(None)
            self._thread.join()
            if self._failure is not None:
                self.database.close()

    def _hand_over(self, job: _Job) -> None:
        if self._closed:
            raise StoreClosedError
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        self._jobs.put(job)
        if self._failure is not None:
            # It died meanwhile, and may have failed its waiters before this one was added.
            self._fail_waiting(self._failure)

    def _raise_error(self, job: _Job) -> None:
        if isinstance(job.error, sqlite3.Error):
            raise StateWriteError(self._path, str(job.error)) from job.error
        if job.error is not None:
            raise job.error

    def _run_tick(self, database: Database) -> None:
        try:
            self._tick(database)
        except Exception:  # noqa: BLE001 - who hands over the next job must not wait for the dead
            _log.exception("tick failed", extra={"file": str(self._path)})

    def _die(self, failure: ThreadDiedError) -> None:
        self._failure = failure
        if self._current is not None:
            self._current.fail(failure)
        self._fail_waiting(failure)
        tell(self._failure_listeners, failure)

    def _fail_waiting(self, failure: ThreadDiedError) -> None:
        with suppress(Empty):
            while True:
                if (job := self._jobs.get_nowait()) is not None:
                    job.fail(failure)

    def _serve(self) -> None:
        next_tick_s = time.monotonic() + self._tick_interval_s
        while True:
            wait_s = next_tick_s - time.monotonic()
            if wait_s <= 0:
                self._run_tick(self.database)
                next_tick_s = time.monotonic() + self._tick_interval_s
                continue
            try:
                job = self._jobs.get(timeout=wait_s)
            except Empty:
                continue
            if job is None:
                break
            self._current = job
            job.run(self.database)
            self._current = None
        # The last connection to close checkpoints the write-ahead log into the database.
        self.database.close()


def _nothing() -> None:
    """Nobody waits."""


def _call_soon(token: trio.lowlevel.TrioToken, function: Callable[[], object]) -> None:
    # A run that has ended has no waiters.
    with suppress(trio.RunFinishedError):
        token.run_sync_soon(function)


def _open(path: Path, schema: Schema, *, sync_commits: bool) -> Database:
    connection: sqlite3.Connection | None = None
    try:
        # The caller opens and learns what is wrong; from then on the thread alone uses it.
        connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, check_same_thread=False)
        database = Database(connection, execute_plugins=False)
        # Both before the first access to the file, so that SQLite never maps it.
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
        database.execute("PRAGMA mmap_size = 0")
        _check_length(database, path)
        _check_schema(database, path, schema)
        database.enable_wal()
        database.execute(f"PRAGMA synchronous = {'FULL' if sync_commits else 'NORMAL'}")
    except (sqlite3.Error, StateFileError) as error:
        if connection is not None:
            connection.close()
        if isinstance(error, StateFileError):
            raise
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY:
            raise StateFileError(path, "another process has it open") from error
        raise StateFileError(path, f"it cannot be opened as a database: {error}") from error
    return database


def _check_length(database: Database, path: Path) -> None:
    # Closed in good order, a database is whole pages. With a write-ahead log beside it the log
    # makes whole what a power cut left torn. This comes before the first reading makes a log.
    log = path.with_name(path.name + "-wal")
    if not log.exists() and path.stat().st_size % _number(database, "page_size"):
        raise StateFileError(path, "it is cut off")


def _check_schema(database: Database, path: Path, schema: Schema) -> None:
    version, application_id = _number(database, "user_version"), _number(database, "application_id")
    if version == application_id == 0 and not database.table_names():
        # One transaction: a kill leaves either an empty file or a whole schema.
        database.executescript(
            f"BEGIN; {schema.statements}; PRAGMA application_id = {schema.application_id}; "
            f"PRAGMA user_version = {schema.version}; COMMIT;"
        )
        return
    if application_id != schema.application_id:
        raise StateFileError(path, "it is a database of something else")
    if version > schema.version:
        raise StateVersionError(path, version, schema.version)
    (found,) = database.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise StateFileError(path, f"it is damaged: {found}")
    if version < schema.version:
        _upgrade(database, path, schema, version)


def _upgrade(database: Database, path: Path, schema: Schema, version: int) -> None:
    try:
        steps = [schema.upgrades[later] for later in range(version + 1, schema.version + 1)]
    except KeyError as error:
        reason = f"its schema is version {version}, from which no upgrade leads to {schema.version}"
        raise StateFileError(path, reason) from error
    # One transaction: a kill or an error leaves the old version as it was.
    statements = "; ".join(steps)
    database.executescript(
        f"BEGIN IMMEDIATE; {statements}; PRAGMA user_version = {schema.version}; COMMIT;"
    )
    _log.info(
        "database upgraded",
        extra={"file": str(path), "from_version": version, "to_version": schema.version},
    )


def _number(database: Database, pragma: str) -> int:
    (value,) = database.execute(f"PRAGMA {pragma}").fetchone()
    return int(value)
