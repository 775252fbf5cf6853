"""Stores for tests, each verified when its test is over."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias, final

import pytest

from commitbus.broker.store.check import check_store
from commitbus.broker.store.config import StoreConfig
from commitbus.broker.store.message_store import MessageStore
from commitbus.commitlog.clock import Clock
from commitbus.commitlog.file_system import File, FileSystem, RealFileSystem
from commitbus.commitlog.record_format import encode_properties
from commitbus.commitlog.types import Host, OutgoingMessage
from commitbus.flush.policy import FlushMode, FlushPolicy
from tests.archives import unpack
from tests.running_copies import copy_running

BORN_HOST = Host.parse("10.1.2.3", 4567)


def small_config(mode: FlushMode = FlushMode.ASYNC_FLUSH) -> StoreConfig:
    """Files so small that a few hundred messages fill several."""
    return StoreConfig(
        log_file_bytes=1 << 16,
        queue_file_bytes=2000,
        index_slots=100,
        index_entries=400,
        max_body_bytes=1 << 15,
        flush=FlushPolicy(mode, interval_ms=5),
        checkpoint_interval_ms=10,
    )


def message(
    topic: str = "TopicA", queue_id: int = 0, body: bytes = b"body", **properties: str
) -> OutgoingMessage:
    """Return a message whose properties are given by name."""
    return OutgoingMessage(
        topic, queue_id, body, encode_properties(properties), 1_700_000_000_000, BORN_HOST
    )


@final
class FaultyFiles(RealFileSystem):  # type: ignore[misc] # the rest is the real one's
    """The machine's file system with faults that are switched on while a test runs."""

    def __init__(self) -> None:
        self.failing_sync: Path | None = None
        """Files below this directory fail to sync."""
        self.full_below: Path | None = None
        """Nothing can be allocated below this directory."""

    def open(self, path: Path, *, writable: bool = True, create: bool = False) -> File:
        return _FaultyFile(super().open(path, writable=writable, create=create), self)


@final
class _FaultyFile:
    def __init__(self, file: File, faults: FaultyFiles) -> None:
        self._file, self._faults = file, faults
        self.path = file.path
        self.size, self.pread, self.pread_cached = file.size, file.pread, file.pread_cached
        self.truncate, self.map, self.close = file.truncate, file.map, file.close
        self.next_data, self.next_hole = file.next_data, file.next_hole

    def allocate(self, position: int, length: int) -> None:
        self._check_room()
        self._file.allocate(position, length)

    def pwrite(self, data: bytes | memoryview, position: int) -> None:
        self._check_room()
        self._file.pwrite(data, position)

    def _check_room(self) -> None:
        full = self._faults.full_below
        if full is not None and full in self.path.parents:
            raise OSError(errno.ENOSPC, "No space left on device", str(self.path))

    def sync_data(self) -> None:
        failing = self._faults.failing_sync
        if failing is not None and failing in self.path.parents:
            raise OSError(errno.EIO, "Input/output error", str(self.path))
        self._file.sync_data()


OpenStore: TypeAlias = Callable[..., MessageStore]


@pytest.fixture
def store_dir(tmp_path: Path) -> Path:
    """Where the test's store lies, not made yet."""
    return tmp_path / "store"


@pytest.fixture
def open_store(store_dir: Path) -> Iterator[OpenStore]:
    """Open the store of the test; at the end it is closed, and verified by `check_store`."""
    opened: list[MessageStore] = []

    def open_(
        mode: FlushMode = FlushMode.ASYNC_FLUSH,
        file_system: FileSystem | None = None,
        clock: Clock | None = None,
    ) -> MessageStore:
        store = MessageStore.open(
            store_dir, small_config(mode), file_system=file_system, clock=clock
        )
        opened.append(store)
        return store

    yield open_
    for store in opened:
        store.close()
    if opened and all(store.failure is None for store in opened):
        report = check_store(store_dir, config=small_config())
        assert report.was_closed_cleanly
        assert report.problems == []


@pytest.fixture
def rocketmq_store(shared_dir: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Unpack a store that RocketMQ wrote; return where it lies."""

    def unpacked(name: str) -> Path:
        target = tmp_path / name
        unpack(shared_dir / "fixtures" / f"{name}-store.tar.gz", target)
        return target / "store" if (target / "store").is_dir() else target

    return unpacked


@pytest.fixture
def config() -> StoreConfig:
    """The sizes of the tests' stores, for a test that removes what tells them."""
    return small_config()


@pytest.fixture
def make_message() -> Callable[..., OutgoingMessage]:
    """Build a message: topic, queue_id, body, and properties by name."""
    return message


@pytest.fixture
def faulty_files() -> FaultyFiles:
    """A file system that fails on demand."""
    return FaultyFiles()


@pytest.fixture
def copy_of(tmp_path: Path) -> Callable[[Path], Path]:
    """Copy a store as a kill would leave it: files as they are in the page cache."""

    def copy(store: Path) -> Path:
        target = tmp_path / f"copy-{len(list(tmp_path.iterdir()))}"
        return copy_running(store, target)

    return copy
