"""What the tests of the broker's state share: a clock they set, stores in a temporary folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, final

import pytest

from commitbus.broker.metadata.progress_journal import JOURNAL_BYTES_MIN
from commitbus.broker.metadata.progress_table import ProgressTable
from commitbus.commitlog.file_system import RealFileSystem
from tests.archives import unpack
from tests.running_copies import copy_running


@final
class FakeClock:
    """Time that stands still until a test moves it."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.ms

    def monotonic_s(self) -> float:
        return self.ms / 1000


OpenTable = Callable[..., ProgressTable]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


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


@pytest.fixture
def killed() -> Callable[[Path, Path], Path]:
    """Copy a store as `kill -9` at this moment would leave it: nothing closed, nothing saved."""

    def copy(store: Path, target: Path) -> Path:
        shutil.rmtree(target, ignore_errors=True)
        return copy_running(store, target)

    return copy


@pytest.fixture
def rocketmq_store(shared_dir: Path, tmp_path: Path) -> Path:
    """A store directory with the `config` folder that RocketMQ wrote."""
    unpack(shared_dir / "fixtures" / "broker-store.tar.gz", tmp_path, only="/config/")
    return tmp_path / "store"
