"""The thread that owns a database: what it opens, what it refuses, how it hands results back."""

from __future__ import annotations

import logging
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing
from sqlite_utils import Database

from commitbus.broker.metadata import sqlite_metadata, sqlite_thread
from commitbus.broker.metadata.errors import StateFileError, StateVersionError, StateWriteError
from commitbus.broker.metadata.sqlite_thread import Schema, SqliteThread, _call_soon, _Job
from commitbus.broker.progress import sqlite_rows
from commitbus.commitlog.errors import StoreClosedError, StoreError, ThreadDiedError

SCHEMA = Schema(0x7465_7374, 3, "CREATE TABLE t (n INTEGER PRIMARY KEY); CREATE TABLE u (n)")
Open = Callable[..., SqliteThread]


@pytest.fixture
def open_thread(tmp_path: Path) -> Iterator[Open]:
    threads: list[SqliteThread] = []

    def open_(
        schema: Schema = SCHEMA,
        tick: Callable[[Database], None] = lambda _: None,
        tick_interval_s: float = 3600,
    ) -> SqliteThread:
        threads.append(
            SqliteThread(
                tmp_path / "x.db",
                schema=schema,
                sync_commits=True,
                tick=tick,
                tick_interval_s=tick_interval_s,
            )
        )
        return threads[-1]

    yield open_
    for thread in threads:
        thread.close()


def _insert(n: int) -> Callable[[Database], None]:
    def work(database: Database) -> None:
        database.table("t").insert({"n": n})

    return work


def _all(database: Database) -> list[int]:
    return [n for (n,) in database.execute("SELECT n FROM t ORDER BY n").fetchall()]


def test_work_is_done_in_order_on_one_other_thread(open_thread: Open) -> None:
    thread = open_thread()
    seen = {thread.run_sync(lambda _: threading.get_ident()) for _ in range(3)}
    assert len(seen) == 1
    assert seen != {threading.get_ident()}


def test_what_was_committed_is_there_after_a_reopening(open_thread: Open) -> None:
    thread = open_thread()
    thread.run_sync(_insert(7))
    thread.close()
    assert open_thread().run_sync(_all) == [7]


def test_trio_tasks_go_on_while_the_thread_works(open_thread: Open) -> None:
    thread, may_go_on = open_thread(), threading.Event()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(thread.run, lambda _: may_go_on.wait(10))
            await trio.testing.wait_all_tasks_blocked()
            may_go_on.set()
        assert await thread.run(_all) == []

    trio.run(main)


def test_a_cancelled_caller_still_learns_that_the_work_was_done(open_thread: Open) -> None:
    thread, done = open_thread(), []

    async def main() -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            await thread.run(_insert(1))
            done.append(True)

    trio.run(main)
    assert done == [True]
    assert thread.run_sync(_all) == [1]


def test_an_error_of_sqlite_is_a_typed_one_and_changes_nothing(open_thread: Open) -> None:
    thread = open_thread()
    thread.run_sync(_insert(1))

    def twice(database: Database) -> None:
        with database.atomic():
            database.table("t").insert({"n": 2})
            database.table("t").insert({"n": 1})

    with pytest.raises(StateWriteError) as caught:
        thread.run_sync(twice)
    assert caught.value.path == thread.path
    with pytest.raises(StateWriteError):
        trio.run(thread.run, twice)
    assert thread.run_sync(_all) == [1]


def test_any_other_error_reaches_the_caller_as_it_is(open_thread: Open) -> None:
    with pytest.raises(ZeroDivisionError):
        open_thread().run_sync(lambda _: 1 // 0)


def test_ticks_come_while_idle_and_while_busy(open_thread: Open) -> None:
    ticks = threading.Semaphore(0)
    thread = open_thread(tick=lambda _: ticks.release(), tick_interval_s=0.001)
    assert ticks.acquire(timeout=10)
    stop = threading.Event()

    def keep_busy() -> None:
        while not stop.is_set():
            thread.run_sync(lambda _: None)

    busy = threading.Thread(target=keep_busy)
    busy.start()
    for _ in range(5):
        assert ticks.acquire(timeout=10)
    stop.set()
    busy.join()


def test_a_tick_that_fails_is_logged_and_the_thread_goes_on(
    open_thread: Open, caplog: pytest.LogCaptureFixture
) -> None:
    def bug(_: Database) -> None:
        raise ZeroDivisionError

    thread = open_thread(tick=bug)
    with caplog.at_level(logging.ERROR):
        thread.wake()
        assert thread.run_sync(_all) == []
    assert "tick failed" in caplog.text


def test_a_closed_thread_says_so(open_thread: Open) -> None:
    thread = open_thread()
    thread.close()
    thread.close()
    with pytest.raises(StoreClosedError):
        thread.run_sync(_all)
    with pytest.raises(StoreClosedError):
        trio.run(thread.run, _all)


def test_the_database_is_closed_even_when_the_last_work_fails(open_thread: Open) -> None:
    thread = open_thread()
    with pytest.raises(ZeroDivisionError):
        thread.close(last=lambda _: 1 // 0)
    with pytest.raises(StoreClosedError):
        thread.run_sync(_all)


def test_a_newer_schema_is_refused(open_thread: Open) -> None:
    open_thread(Schema(SCHEMA.application_id, 4, SCHEMA.statements)).close()
    with pytest.raises(StateVersionError) as caught:
        open_thread()
    assert (caught.value.found, caught.value.supported) == (4, 3)


def test_another_programs_database_is_refused(open_thread: Open, tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "x.db")
    connection.execute("CREATE TABLE other (n)")
    connection.close()
    with pytest.raises(StateFileError, match="something else"):
        open_thread()


@pytest.mark.parametrize(
    "content", [b"no database at all" * 100, b"SQLite format 3\0" + b"\xff" * 200]
)
def test_a_file_that_is_no_database_is_refused(
    open_thread: Open, tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "x.db").write_bytes(content)
    with pytest.raises(StateFileError):
        open_thread()


def test_a_directory_in_the_files_place_is_refused(open_thread: Open, tmp_path: Path) -> None:
    (tmp_path / "x.db").mkdir()
    with pytest.raises(StateFileError):
        open_thread()


def test_a_database_cut_anywhere_is_refused_or_opens_whole(
    open_thread: Open, tmp_path: Path
) -> None:
    thread = open_thread()
    for n in range(5):
        thread.run_sync(_insert(n))
    thread.close()
    data = (tmp_path / "x.db").read_bytes()
    for length in range(1, len(data), 1021):
        (tmp_path / "x.db").write_bytes(data[:length])
        with pytest.raises(StateFileError):
            open_thread()


def test_a_death_of_the_thread_ends_every_wait(
    open_thread: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The running job, the queued ones and all later ones fail; the listener is told once."""
    thread = open_thread()
    deaths: list[StoreError] = []
    thread.add_failure_listener(deaths.append)
    begun, goes_on = threading.Event(), threading.Event()

    def die(_: Database) -> None:
        begun.set()
        assert goes_on.wait(10)
        raise SystemExit

    async def run() -> None:
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(expect_death, die)
                await trio.to_thread.run_sync(begun.wait)
                nursery.start_soon(expect_death, _insert(1))
                await trio.testing.wait_all_tasks_blocked()
                goes_on.set()
            await expect_death(_insert(2))

    async def expect_death(work: Callable[[Database], None]) -> None:
        with pytest.raises(ThreadDiedError, match=r"sqlite x.db died: SystemExit"):
            await thread.run(work)

    trio.run(run)
    with pytest.raises(ThreadDiedError):
        thread.run_sync(_insert(3))
    assert len(deaths) == 1
    thread.add_failure_listener(deaths.append)
    assert deaths == [deaths[0]] * 2
    thread.close()
    assert open_thread().run_sync(_all) == []


def test_a_trio_run_that_ended_first_kills_no_thread(open_thread: Open) -> None:
    """As one that crashes may: its job is done, and nobody hears of it."""
    thread = open_thread()

    async def token_of_this_run() -> trio.lowlevel.TrioToken:
        return trio.lowlevel.current_trio_token()

    token = trio.run(token_of_this_run)
    thread._hand_over(_Job(_insert(1), partial(_call_soon, token, lambda: None)))
    assert thread.run_sync(_all) == [1]


# Versions


UPGRADED = Schema(
    SCHEMA.application_id,
    5,
    "CREATE TABLE t (n INTEGER PRIMARY KEY, twice INTEGER NOT NULL); CREATE TABLE u (n)",
    upgrades={
        4: "ALTER TABLE t RENAME TO old; "
        "CREATE TABLE t (n INTEGER PRIMARY KEY, twice INTEGER NOT NULL)",
        5: "INSERT INTO t SELECT n, 2 * n FROM old; DROP TABLE old",
    },
)


def _rows(database: Database) -> list[tuple[int, int]]:
    return [tuple(row) for row in database.execute("SELECT n, twice FROM t ORDER BY n")]


def _fill(open_thread: Open) -> None:
    thread = open_thread()
    for n in range(3):
        thread.run_sync(_insert(n))
    thread.close()


def test_an_older_database_is_upgraded(open_thread: Open, caplog: pytest.LogCaptureFixture) -> None:
    _fill(open_thread)
    for _ in range(2):
        with caplog.at_level(logging.INFO):
            thread = open_thread(UPGRADED)
        assert thread.run_sync(_rows) == [(0, 0), (1, 2), (2, 4)]
        thread.close()
    assert caplog.text.count("database upgraded") == 1
    with pytest.raises(StateVersionError):
        open_thread()


def test_an_upgrade_that_fails_leaves_the_old_version(open_thread: Open) -> None:
    _fill(open_thread)
    bad = {**UPGRADED.upgrades, 5: "INSERT INTO t SELECT n, 2 * n FROM old; DROP TABLE missing"}
    with pytest.raises(StateFileError, match="no such table: missing"):
        open_thread(Schema(SCHEMA.application_id, 5, "", upgrades=bad))
    assert open_thread().run_sync(_all) == [0, 1, 2]


def test_a_version_without_a_way_to_the_present_one_is_refused(open_thread: Open) -> None:
    _fill(open_thread)
    with pytest.raises(StateFileError, match="version 3, from which no upgrade leads to 5"):
        open_thread(Schema(SCHEMA.application_id, 5, "", upgrades={5: "DROP TABLE t"}))
    assert open_thread().run_sync(_all) == [0, 1, 2]


ENDLESS_UPGRADE = """if True:
    import sys
    from pathlib import Path
    from commitbus.broker.metadata.sqlite_thread import Schema, SqliteThread
    endless = (
        "DELETE FROM t; CREATE TABLE big (blob); INSERT INTO big WITH RECURSIVE numbers(n) AS "
        "(SELECT 1 UNION ALL SELECT n + 1 FROM numbers) SELECT randomblob(4000) FROM numbers"
    )
    schema = Schema(int(sys.argv[2]), 4, "", upgrades={4: endless})
    SqliteThread(
        Path(sys.argv[1]), schema=schema, sync_commits=True, tick=print, tick_interval_s=3600
    )
"""


def test_a_kill_during_an_upgrade_leaves_the_old_version(open_thread: Open, tmp_path: Path) -> None:
    """A process that upgrades for ever is killed when much of it is in the file already."""
    _fill(open_thread)
    process = subprocess.Popen(
        [sys.executable, "-c", ENDLESS_UPGRADE, str(tmp_path / "x.db"), str(SCHEMA.application_id)]
    )
    log = tmp_path / "x.db-wal"
    try:
        deadline = time.monotonic() + 60
        while not log.exists() or log.stat().st_size < 4_000_000:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        process.kill()
        process.wait()
    thread = open_thread(UPGRADED)
    assert thread.run_sync(_rows) == [(0, 0), (1, 2), (2, 4)]


@pytest.mark.parametrize("schema", [sqlite_metadata.SCHEMA, sqlite_rows.SCHEMA])
def test_there_is_a_way_from_every_version_that_was_ever_written(schema: Schema) -> None:
    assert set(schema.upgrades) == set(range(2, schema.version + 1))


# What SQLite does with the files


def test_nothing_of_a_database_is_mapped(open_thread: Open, tmp_path: Path) -> None:
    """A mapped page that the disk does not give back would be a SIGBUS."""
    thread = open_thread()
    thread.run_sync(_insert(1))
    assert thread.run_sync(lambda database: database.journal_mode) == "wal"
    assert {path.name for path in tmp_path.iterdir()} == {"x.db", "x.db-wal"}
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    thread.close()
    assert {path.name for path in tmp_path.iterdir()} == {"x.db"}


def test_a_log_that_a_kill_left_with_its_index_is_taken_over(
    open_thread: Open, tmp_path: Path
) -> None:
    """An index file of an earlier version is not used, and need not be right."""
    thread = open_thread()
    thread.run_sync(_insert(1))
    thread.run_sync(_insert(2))
    kept = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    thread.close()
    for name, data in {**kept, "x.db-shm": b"\xff" * 32768}.items():
        (tmp_path / name).write_bytes(data)
    assert open_thread().run_sync(_all) == [1, 2]


def test_a_database_that_another_process_has_open_is_named(
    open_thread: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fill(open_thread)
    monkeypatch.setattr(sqlite_thread, "BUSY_TIMEOUT_S", 0.1)
    connection = sqlite3.connect(tmp_path / "x.db")
    connection.execute("SELECT * FROM t").fetchall()
    with pytest.raises(StateFileError, match="another process has it open"):
        open_thread()
    connection.close()
    assert open_thread().run_sync(_all) == [0, 1, 2]
