"""A clock that tests set, and stores in a temporary folder, for metadata and progress."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import final

import pytest

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


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


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
