"""Progress on a disk that takes no more bytes, or does not give them back."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commitbus.broker.metadata import rocketmq_config
from commitbus.broker.metadata.documents import parse_document
from commitbus.broker.metadata.errors import StateFileError, StateWriteError
from commitbus.broker.progress.progress_table import ProgressTable
from commitbus.broker.progress.queue_progress import Lease
from tests.failing_files import FailingFileSystem
from tests.unreadable_files import UnreadableFileSystem

Open = Callable[..., ProgressTable]
Killed = Callable[[Path, Path], Path]

LEASE = Lease(1, 100, "c", auto_renew=True)
CHANGES: dict[str, Callable[[ProgressTable, Any], object]] = {
    "create": lambda table, _: table.create("new", "t", 0, 3),
    "deliver": lambda table, p: table.deliver(p, [12, 13], LEASE, next_offset=14),
    "hold": lambda table, p: table.hold(p, [12, 13], next_offset=14),
    "redeliver": lambda table, p: table.redeliver(p, 7, LEASE._replace(client_id="d")),
    "acknowledge": lambda table, p: table.acknowledge(p, 7, 8),
    "change": lambda table, p: table.change_invisible(
        p, 7, pop_time_ms=5, invisible_until_ms=900, suspend=True
    ),
    "reset": lambda table, _: table.reset("g", "t", 0, 2),
    "clamp": lambda table, _: table.clamp(lambda _topic, _queue: 8),
    "delete": lambda table, _: table.delete_group("g"),
}


def _state(table: ProgressTable) -> str:
    return repr(
        {
            key: (p.next_offset, list(p.in_flight.values()), p.next_expiry_ms)
            for key, p in table.items()
        }
    )


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_change_that_the_journal_does_not_take_is_refused(
    *,
    open_table: Open,
    tmp_path: Path,
    killed: Killed,
    caplog: pytest.LogCaptureFixture,
    change: str,
    code: int,
) -> None:
    """And has not happened, neither in memory nor after a kill. It may be tried again."""
    files: Any = FailingFileSystem()
    table = open_table(tmp_path / "a", file_system=files)
    progress = table.create("g", "t", 0, 7)
    table.deliver(progress, range(7, 12), LEASE, next_offset=12)
    before = _state(table)
    files.fails["pwrite"] = code
    with caplog.at_level(logging.ERROR):
        for _ in range(2):
            with pytest.raises(StateWriteError) as caught:
                CHANGES[change](table, progress)
            assert caught.value.path == tmp_path / "a" / "commitbus" / "progress.journal"
            assert _state(table) == before
    assert caplog.text.count("progress journal not written") == 1
    files.fails.clear()
    assert _state(open_table(killed(tmp_path / "a", tmp_path / "b"))) == before
    CHANGES[change](table, progress)
    assert _state(table) != before
    assert _state(open_table(killed(tmp_path / "a", tmp_path / "c"))) == _state(table)


def test_an_offset_that_is_acknowledged_twice_in_a_call_counts_once(
    open_table: Open, tmp_path: Path, killed: Killed
) -> None:
    table = open_table(tmp_path / "a")
    progress = table.create("g", "t", 0, 0)
    table.deliver(progress, range(3), LEASE, next_offset=3)
    assert table.acknowledge(progress, 1, 1, 2, 7, 1) == 2
    assert list(progress.in_flight) == [0]
    assert _state(open_table(killed(tmp_path / "a", tmp_path / "b"))) == _state(table)


def test_an_unreadable_journal_stops_the_opening_and_says_what_to_do(
    open_table: Open, tmp_path: Path, killed: Killed
) -> None:
    """Without the file the store opens with what was saved."""
    table = open_table(tmp_path / "a")
    progress = table.create("g", "t", 0, 0)
    table.save()
    saved = _state(table)
    table.deliver(progress, range(3), LEASE, next_offset=3)
    store = killed(tmp_path / "a", tmp_path / "b")
    journal = store / "commitbus" / "progress.journal"
    files: Any = UnreadableFileSystem()
    files.spoil(journal, 0)
    for _ in range(2):
        with pytest.raises(StateFileError, match=r"position 0 cannot be read.*move it") as caught:
            open_table(store, file_system=files)
        assert caught.value.path == journal
    journal.unlink()
    assert _state(open_table(store)) == saved


# The mirror


def _mirror(store: Path) -> Path:
    return store / "config" / "consumerOffset.json"


def _offsets(store: Path) -> object:
    return parse_document(_mirror(store).read_bytes())["offsetTable"]


def test_a_mirror_that_could_not_be_read_back_is_left_out(
    open_table: Open,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is logged once, the store goes on and opens again; a smaller mirror is written again."""
    monkeypatch.setattr(rocketmq_config, "FILE_BYTES_MAX", 400)
    table = open_table(tmp_path)
    table.create("g", "t", 0, 7)
    table.close()
    assert _offsets(tmp_path) == {"t@g": {0: 7}}

    table = open_table(tmp_path)
    for queue in range(100):
        table.reset("many", "t", queue, 1_000_000)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            table._clock.ms += 5_000  # type: ignore[attr-defined] # the fixture's clock
            table._rows.run(table._tick)
            table.reset("many", "t", 0, table._clock.now_ms())
        table.close()
    assert caplog.text.count("mirror not written") == 1
    assert _offsets(tmp_path) == {"t@g": {0: 7}}, "the old one, whole"

    table = open_table(tmp_path)
    assert len(table) == 101
    table.delete_group("many")
    table.close()
    assert _offsets(tmp_path) == {"t@g": {0: 7}}
    assert parse_document(_mirror(tmp_path).read_bytes())["dataVersion"]


def test_a_large_mirror_of_our_own_does_not_matter_and_anothers_is_refused(
    open_table: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier versions wrote it without a limit."""
    table = open_table(tmp_path)
    for queue in range(100):
        table.create("g", "t", queue, 7)
    table.close()
    data = _mirror(tmp_path).read_bytes()
    monkeypatch.setattr(rocketmq_config, "FILE_BYTES_MAX", len(data) - 1)
    table = open_table(tmp_path)
    assert len(table) == 100
    table.delete_topic("t")
    table.create("g", "u", 0, 7)
    table.close()
    assert _offsets(tmp_path) == {"u@g": {0: 7}}
    _mirror(tmp_path).write_bytes(data.replace(b"commitbus", b"something"))
    with pytest.raises(StateFileError, match="at most"):
        open_table(tmp_path)
