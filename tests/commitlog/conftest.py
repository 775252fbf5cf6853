"""A log in a temporary directory, and a file system that fails on demand."""

from __future__ import annotations

import errno
import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from commitbus.commitlog.commit_log import CommitLog
from commitbus.commitlog.file_system import File, Mapping, RealFileSystem
from commitbus.commitlog.types import Host, OutgoingMessage
from tests.archives import unpack

HOST = Host.parse("127.0.0.1", 10911)


class ManualClock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.ms

    def monotonic_s(self) -> float:
        return self.ms / 1000


class FaultyFile:
    def __init__(self, file: File, owner: FaultyFileSystem) -> None:
        self._file, self._owner = file, owner
        self._is_open = True

    @property
    def path(self) -> Path:
        return self._file.path

    def size(self) -> int:
        return self._file.size()

    def pread(self, length: int, position: int) -> bytes:
        self._owner.bytes_read += length
        self._owner.check("pread", self.path)
        return self._file.pread(length, position)

    def pread_cached(self, length: int, position: int) -> bytes | None:
        self._owner.check("pread", self.path)
        return self._file.pread_cached(length, position)

    def pwrite(self, data: bytes | memoryview, position: int) -> None:
        self._owner.check("pwrite", self.path)
        self._file.pwrite(data, position)

    def truncate(self, size: int) -> None:
        self._file.truncate(size)

    def allocate(self, position: int, length: int) -> None:
        if self._owner.failing.get("allocate"):
            # As ext4 does: some blocks are taken before the disk turns out to be full.
            self._file.truncate(position + length // 2)
        self._owner.check("allocate", self.path)
        self._file.allocate(position, length)

    def next_data(self, position: int) -> int:
        return self._file.next_data(position)

    def next_hole(self, position: int) -> int:
        return self._file.next_hole(position)

    def map(self, length: int) -> Mapping:
        self._owner.check("map", self.path)
        return self._file.map(length)

    def sync_data(self) -> None:
        self._owner.check("sync_data", self.path)
        # Noted, not done: a real sync would make the tests wait for the disk, and show nothing.
        self._owner.synced.append(self.path.name)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._owner.opened -= 1
            self._file.close()

    def __del__(self) -> None:
        self.close()


class FaultyFileSystem(RealFileSystem):  # type: ignore[misc] # the rest is the real one's
    """The real one, but operations named in `failing` raise the error number given there."""

    def __init__(self) -> None:
        self.failing: dict[str, int] = {}
        self.synced: list[str] = []
        self.opened = 0
        self.bytes_read = 0

    @property
    def open_files(self) -> int:
        """How many files are open. An error keeps those that the frames it went through used."""
        gc.collect()
        return self.opened

    def check(self, operation: str, path: Path) -> None:
        if number := self.failing.get(operation):
            raise OSError(number, errno.errorcode[number], str(path))

    def open(self, path: Path, *, writable: bool = True, create: bool = False) -> File:
        self.check("open", path)
        file = super().open(path, writable=writable, create=create)
        self.opened += 1
        return FaultyFile(file, self)

    def sync_directory(self, path: Path) -> None:
        self.check("sync_directory", path)
        self.synced.append(path.name)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def faulty() -> FaultyFileSystem:
    return FaultyFileSystem()


@pytest.fixture
def open_log(
    tmp_path: Path, clock: ManualClock, faulty: FaultyFileSystem
) -> Iterator[Callable[..., CommitLog]]:
    """Return a function that opens `tmp_path/commitlog`; what it opened is closed at the end."""
    opened: list[CommitLog] = []

    def open_(file_size: int = 4096, **changes: Any) -> CommitLog:
        arguments: dict[str, Any] = {
            "directory": tmp_path / "commitlog",
            "store_host": HOST,
            "max_body_bytes": 4 << 20,
            "clock": clock,
            "file_system": faulty,
        }
        log = CommitLog(file_size=file_size, **(arguments | changes))
        opened.append(log)
        return log

    yield open_
    for log in opened:
        log.close()
        # An error keeps the frames in which it was raised, and with them the file.
        log._flush_error = log._failure = None
    assert faulty.open_files == 0, "every file that was opened is closed"


@pytest.fixture
def message() -> Callable[..., OutgoingMessage]:
    """Return a function that makes a message."""

    def make(body: bytes = b"body", **changes: Any) -> OutgoingMessage:
        arguments: dict[str, Any] = {
            "topic": "topic",
            "queue_id": 0,
            "body": body,
            "properties": b"",
            "born_timestamp": 1,
            "born_host": HOST,
        }
        return OutgoingMessage(**(arguments | changes))

    return make


@pytest.fixture(scope="session")
def rocketmq_stores(shared_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The store directories that RocketMQ wrote, unpacked, by name. Copy before changing one."""
    stores: dict[str, Path] = {}
    for name in ("broker", "directA"):
        target = tmp_path_factory.mktemp(name)
        unpack(shared_dir / "fixtures" / f"{name}-store.tar.gz", target)
        inner = target / "store"
        stores[name] = inner if inner.is_dir() else target
    return stores
