"""The thread that owns a database: what it opens, what it refuses, how it hands results back."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing
from sqlite_utils import Database

from commitbus.broker.metadata.errors import StateFileError, StateVersionError, StateWriteError
from commitbus.broker.metadata.sqlite_thread import Schema, SqliteThread, _call_soon, _Job
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
    """Of the job that it was at, of those behind, and of all that come later; told once."""
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
