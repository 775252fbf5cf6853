"""Progress tables that the tests of progress open, and the fixtures of the metadata tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from commitbus.broker.progress.journal import JOURNAL_BYTES_MIN
from commitbus.broker.progress.progress_table import ProgressTable
from commitbus.broker.progress.sqlite_rows import SqliteRows
from commitbus.commitlog.file_system import RealFileSystem
from tests.broker.metadata.conftest import FakeClock, clock, killed, rocketmq_store

__all__ = ["FakeClock", "OpenTable", "clock", "killed", "rocketmq_store"]

OpenTable = Callable[..., ProgressTable]


@pytest.fixture
def open_table(clock: FakeClock) -> Iterator[OpenTable]:
    """Open progress tables that save only when asked; what is still open is closed at the end."""
    tables: list[ProgressTable] = []

    def open_(
        store: Path,
        *,
        save_interval_ms: int = 3_600_000,
        journal_bytes: int = JOURNAL_BYTES_MIN,
        sync: bool = False,
        file_system: Any = RealFileSystem(),  # noqa: B008 - it holds nothing
    ) -> ProgressTable:
        table = ProgressTable(
            store,
            SqliteRows(store, file_system),
            clock=clock,
            file_system=file_system,
            save_interval_ms=save_interval_ms,
            journal_bytes=journal_bytes,
            sync=sync,
        )
        table.open()
        tables.append(table)
        return table

    yield open_
    for table in tables:
        table.close()
