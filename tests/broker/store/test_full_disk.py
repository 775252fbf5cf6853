"""A start on a disk that is full: it names the file, or opens and lets retention make room."""

from __future__ import annotations

import errno
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from commitbus.broker.config import BrokerConfig
from commitbus.broker.server import _open_state
from commitbus.broker.store.check import check_store
from commitbus.broker.store.config import StoreConfig
from commitbus.broker.store.message_store import MessageStore
from commitbus.commitlog.clock import SystemClock
from commitbus.commitlog.errors import DiskFullError, DiskRatioError
from commitbus.commitlog.file_system import RealFileSystem
from commitbus.commitlog.recovery import no_progress
from commitbus.commitlog.retention import RetentionPolicy
from commitbus.commitlog.types import OutgoingMessage
from tests.failing_files import FailingFileSystem

Make = Callable[..., OutgoingMessage]
DISK_BYTES = 96 << 20
"""The journal of the groups' progress takes 64 MiB at most."""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system of its own."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a file system")
    directory = tmp_path / "disk"
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "commitbus-test", str(directory)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    yield directory
    subprocess.run(["umount", "--lazy", str(directory)], check=True)


def fill(path: Path) -> None:
    """Take every block that is left."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while file.write(bytes(size)):
                    pass
            except OSError as error:
                assert error.errno == errno.ENOSPC  # noqa: PT017 - this is how it ends


@pytest.mark.parametrize("stop", ["clean", "kill"])
def test_retention_makes_room_for_a_store_that_is_opened_on_a_full_disk(
    stop: str, small_disk: Path, config: StoreConfig, make_message: Make
) -> None:
    """After a clean stop as after a kill: what marks a store takes no block."""
    directory = small_disk / "store"
    config = replace(config, retention=RetentionPolicy())
    store = MessageStore.open(directory, config)
    while store.end_offset < 1 << 20:
        store.put(make_message(body=bytes(1000)))
    assert store.dispatched.wait(store.end_offset, 20)
    store.close()
    if stop == "kill":
        (directory / "abort").write_bytes(b"12345")
    fill(small_disk / "others")
    store = MessageStore.open(directory, config)
    deadline = time.monotonic() + 20
    while store.min_physical_offset == 0 and time.monotonic() < deadline:
        # The index says for itself how far it is, a moment after the start.
        time.sleep(0.01)
        store.keep_house()
    assert store.min_physical_offset > 0
    (small_disk / "others").unlink()
    store.keep_house()
    store.put(make_message())
    store.close()
    assert check_store(directory).problems == []


def test_a_broker_lets_retention_make_room_before_it_opens_its_databases(
    small_disk: Path, config: StoreConfig, make_message: Make
) -> None:
    """SQLite needs some."""
    directory = small_disk / "store"
    with MessageStore.open(directory, config) as store:
        while store.end_offset < 1 << 20:
            store.put(make_message(body=bytes(1000), KEYS="k"))
    settings = BrokerConfig(store_directory=directory, disk_force_percent=85)

    async def start() -> int:
        state = _open_state(settings, SystemClock(), RealFileSystem(), no_progress)
        async with state as context:
            return context.store.min_physical_offset

    assert trio.run(start) == 0
    fill(small_disk / "others")
    assert trio.run(start) > 0


def test_a_store_that_is_opened_on_a_full_disk_says_that_it_is_full(
    small_disk: Path, config: StoreConfig, make_message: Make
) -> None:
    """Where no retention is to make room: messages are refused, what is there can be read."""
    directory = small_disk / "store"
    MessageStore.open(directory, config).close()
    fill(small_disk / "others")
    never = RetentionPolicy(delete_percent=99, force_percent=100, refuse_percent=90)
    with (
        MessageStore.open(directory, replace(config, retention=never)) as store,
        pytest.raises((DiskFullError, DiskRatioError), match=str(directory)),
    ):
        store.put(make_message())


@pytest.mark.parametrize("name", ["abort", "lock", "checkpoint", "watermark"])
def test_the_file_that_finds_no_room_is_named(
    name: str, store_dir: Path, config: StoreConfig
) -> None:
    """Even a name may need a block: of a directory."""
    files: Any = FailingFileSystem()
    original = files.open

    def fail(path: Path, **options: Any) -> Any:
        if path.name.startswith(name) and options.get("create"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return original(path, **options)

    files.open = fail
    with pytest.raises(DiskFullError, match=name):
        MessageStore.open(store_dir, config, file_system=files)
