"""The promises of `ProgressRows`, of every implementation."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from commitbus.broker.metadata.errors import StateWriteError
from commitbus.broker.progress.journal import JournalMark
from commitbus.broker.progress.progress_rows import ProgressRow, ProgressRows, make_row
from commitbus.broker.progress.progress_table import ProgressTable
from commitbus.broker.progress.queue_progress import Lease, QueueProgress
from commitbus.broker.progress.sqlite_rows import SqliteRows
from commitbus.commitlog.clock import SystemClock
from commitbus.commitlog.errors import StoreClosedError
from commitbus.commitlog.file_system import RealFileSystem
from tests.broker.progress.rows_in_memory import RowsInMemory, Saved

MARK = JournalMark(1, 3, 30)
Open = Callable[[], ProgressRows]
"""Returns the rows of one place, not started; each time as another process would see them."""


@pytest.fixture(params=["sqlite", "memory"])
def open_rows(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    saved, opened = Saved(), list[ProgressRows]()

    def open_() -> ProgressRows:
        rows: ProgressRows = RowsInMemory(saved)
        if request.param == "sqlite":
            rows = SqliteRows(tmp_path, RealFileSystem())
        opened.append(rows)
        return rows

    yield open_
    for rows in opened:
        rows.close()


def _started(rows: ProgressRows) -> ProgressRows:
    rows.start(lambda: None, 3600, sync=False)
    return rows


def _row(key_id: int) -> ProgressRow:
    return make_row(("g", "t", key_id), QueueProgress(key_id, key_id=key_id))


def _loaded(rows: ProgressRows) -> tuple[list[ProgressRow], JournalMark, int]:
    saved = rows.run(rows.load)
    return list(saved.rows), saved.mark, saved.next_key_id


def _save(rows: ProgressRows, *saved: ProgressRow, **options: Any) -> None:
    defaults = {"deleted": [], "mark": MARK, "next_key_id": 9}
    rows.run(lambda: rows.save(saved, **{**defaults, **options}))


def test_a_new_place_has_no_rows(open_rows: Open) -> None:
    assert _loaded(_started(open_rows())) == ([], (0, 0, 0), 1)


def test_saved_rows_are_loaded_by_the_next_process(open_rows: Open) -> None:
    rows = _started(open_rows())
    _save(rows, _row(3), _row(1), _row(2))
    rows.close()
    assert _loaded(_started(open_rows())) == ([_row(1), _row(2), _row(3)], MARK, 9)


def test_rows_are_changed_added_and_removed_in_one_save(open_rows: Open) -> None:
    rows = _started(open_rows())
    _save(rows, _row(1), _row(2), _row(3))
    changed = _row(2)._replace(committed_offset=7, next_offset=9, sequence=5)
    mark = JournalMark(1, 5, 50)
    _save(rows, changed, _row(4), deleted=[1], mark=mark, next_key_id=5)
    assert _loaded(rows) == ([changed, _row(3), _row(4)], mark, 5)


def test_a_save_that_fails_changes_nothing(open_rows: Open) -> None:
    rows = _started(open_rows())
    _save(rows, _row(1))
    bad: Any = _row(3)._asdict() | {"in_flight": None}
    with pytest.raises(StateWriteError):
        _save(rows, _row(2), ProgressRow(**bad), deleted=[1], mark=JournalMark(2, 2, 2))
    assert _loaded(rows) == ([_row(1)], MARK, 9)


def test_work_and_ticks_are_done_on_one_other_thread(open_rows: Open) -> None:
    seen, ticked = set[int](), threading.Semaphore(0)

    def tick() -> None:
        seen.add(threading.get_ident())
        ticked.release()

    rows = open_rows()
    rows.start(tick, 0.01, sync=True)
    assert ticked.acquire(timeout=10)
    rows.wake()
    assert ticked.acquire(timeout=10)
    seen.add(rows.run(threading.get_ident))
    assert len(seen) == 1
    assert threading.get_ident() not in seen
    with pytest.raises(ZeroDivisionError):
        rows.run(lambda: 1 // 0)


def test_closed_rows_did_the_last_work_and_take_no_more(open_rows: Open) -> None:
    rows, done = _started(open_rows()), list[str]()
    rows.close(last=lambda: done.append("last"))
    rows.close(last=lambda: done.append("again"))
    assert done == ["last"]
    with pytest.raises(StoreClosedError):
        rows.run(lambda: None)


def test_rows_are_closed_whatever_the_last_work_raises(open_rows: Open) -> None:
    rows = _started(open_rows())
    with pytest.raises(ZeroDivisionError):
        rows.close(last=lambda: 1 // 0)
    with pytest.raises(StoreClosedError):
        rows.run(lambda: None)


def test_a_table_goes_on_where_the_last_process_stopped(open_rows: Open, tmp_path: Path) -> None:
    def open_table() -> ProgressTable:
        options: Any = {"clock": SystemClock(), "file_system": RealFileSystem()}
        table = ProgressTable(tmp_path, open_rows(), save_interval_ms=3_600_000, **options)
        table.open()
        return table

    table = open_table()
    progress = table.create("g", "t", 0, 5)
    table.deliver(progress, range(5, 9), Lease(1, 2, "c", auto_renew=True), next_offset=9)
    table.acknowledge(progress, 5, 7)
    table.create("h", "t", 0, 0)
    table.delete_group("h")
    expected = progress.entries()
    table.close()
    table = open_table()
    kept = table.get("g", "t", 0)
    assert kept is not None
    assert (kept.next_offset, kept.entries()) == (9, expected)
    assert [key for key, _ in table.items()] == [("g", "t", 0)]
    table.close()
