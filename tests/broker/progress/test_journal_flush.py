"""The progress journal on stable storage."""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, final

import pytest

from commitbus.broker.metadata.errors import StateWriteError
from commitbus.broker.progress.journal_flush import ProgressFlush
from commitbus.broker.progress.progress_table import ProgressTable
from commitbus.commitlog.errors import StoreError, ThreadDiedError
from tests.failing_files import FailingFileSystem

Open = Callable[..., ProgressTable]
Killed = Callable[[Path, Path], Path]


@final
class Heard:
    """What a flush told its listener."""

    def __init__(self, table: ProgressTable) -> None:
        assert table.flush is not None
        self.flush = table.flush
        self.told: list[tuple[int, StoreError | None]] = []
        self._heard = threading.Condition()
        self.flush.listen(self._listen)

    def _listen(self, sequence: int, error: StoreError | None) -> None:
        with self._heard:
            self.told.append((sequence, error))
            self._heard.notify_all()

    def wait(self, sequence: int) -> StoreError | None:
        """Request a sync, and return the error of the one that covers an entry."""
        with self._heard:
            self.flush.request()
            assert self._heard.wait_for(lambda: self._errors(sequence), 20)
            return self._errors(sequence)[0]

    def _errors(self, sequence: int) -> Sequence[StoreError | None]:
        return [error for told, error in self.told if told >= sequence]


def test_without_the_setting_there_is_none(open_table: Open, tmp_path: Path) -> None:
    assert open_table(tmp_path).flush is None


def test_a_request_makes_all_entries_durable(open_table: Open, tmp_path: Path) -> None:
    """And a save, which gives the journal's room back, is on the disk as well."""
    files: Any = FailingFileSystem()
    table = open_table(tmp_path, file_system=files, sync=True)
    assert table.flush is not None
    heard = Heard(table)
    for queue_id in range(5):
        table.create("g", "t", queue_id, 0)
    assert table.flush.durable_sequence < table.sequence
    files.calls.clear()
    assert heard.wait(table.sequence) is None
    assert "sync_data" in files.calls
    assert table.flush.durable_sequence == table.sequence
    rows: Any = table._rows
    synchronous = rows.run(lambda: rows._thread.database.execute("PRAGMA synchronous").fetchone())
    assert synchronous == (2,), "FULL: a commit waits for the disk"


def test_a_new_journal_has_a_durable_name(open_table: Open, tmp_path: Path) -> None:
    """What is synced into a file without a name in its directory is lost with it."""
    files: Any = FailingFileSystem()
    open_table(tmp_path, file_system=files, sync=True)
    assert "sync_directory" in files.calls[: files.calls.index("allocate")][-3:]


def test_what_the_journal_cannot_sync_is_saved_instead(
    open_table: Open, tmp_path: Path, killed: Killed
) -> None:
    """After a failed sync the kernel may have dropped what it could not write."""
    files: Any = FailingFileSystem()
    table = open_table(tmp_path / "a", file_system=files, sync=True)
    heard = Heard(table)
    table.create("g", "t", 0, 7)
    files.fails["sync_data"] = errno.EIO
    assert heard.wait(table.sequence) is None
    store = killed(tmp_path / "a", tmp_path / "b")
    (store / "commitbus" / "progress.journal").unlink()
    kept = open_table(store).get("g", "t", 0)
    assert kept is not None
    assert kept.next_offset == 7


def test_what_can_be_made_durable_in_no_way_is_refused_and_may_be_tried_again(
    open_table: Open,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Once in the log, however many wait."""
    files: Any = FailingFileSystem()
    table = open_table(tmp_path, file_system=files, sync=True)
    heard = Heard(table)
    files.fails["sync_data"] = errno.EIO

    def save() -> None:
        raise StateWriteError(tmp_path / "progress.db", "disk I/O error")

    monkeypatch.setattr(ProgressFlush, "_save", property(lambda _: save), raising=False)
    with caplog.at_level(logging.ERROR):
        for queue_id in range(3):
            table.create("g", "t", queue_id, 0)
            error = heard.wait(table.sequence)
            assert isinstance(error, StateWriteError)
            assert "power cut" in str(error)
    assert caplog.text.count("progress not durable") == 1
    files.fails.clear()
    table.create("g", "u", 0, 0)
    assert heard.wait(table.sequence) is None


def test_a_thread_that_dies_fails_everybody_and_the_store(
    open_table: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those who wait, those who will, and whoever listens for failures."""
    table = open_table(tmp_path, sync=True)
    heard, failures = Heard(table), list[StoreError]()
    table.add_failure_listener(failures.append)

    def sync(_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(ProgressFlush, "_sync", sync)
    for queue_id in range(2):
        table.create("g", "t", queue_id, 0)
        assert isinstance(heard.wait(table.sequence), ThreadDiedError)
    assert [type(error) for error in failures] == [ThreadDiedError]
