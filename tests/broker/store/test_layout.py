"""What lies where in a store, and what its files tell."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from commitbus.broker.store.config import StoreConfig
from commitbus.broker.store.layout import make_directory, sizes_on_disk, tree_bytes
from commitbus.broker.store.message_store import MessageStore
from commitbus.commitlog.errors import NotAStoreError
from commitbus.commitlog.file_system import RealFileSystem
from commitbus.consumequeue.deleted_topics import DELETED_TOPICS_PATH
from commitbus.flush.policy import FlushMode
from tests.simulation.disk import Disk
from tests.simulation.files import Faults, SimulatedFileSystem
from tests.simulation.process import Process, message, store_config
from tests.simulation.scheduler import Scheduler

FILES = RealFileSystem()
CONFIG = StoreConfig(log_file_bytes=4096, queue_file_bytes=200, index_slots=7, index_entries=9)


def write(path: Path, size: int, first: bytes = b"") -> None:
    """Make a file of a size."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(first.ljust(size, b"\0"))


def test_without_files_the_configured_sizes_count(tmp_path: Path) -> None:
    """A new store is made with what is asked for."""
    assert sizes_on_disk(tmp_path, CONFIG, FILES) == CONFIG


def test_files_decide_over_the_configuration(tmp_path: Path) -> None:
    """All four sizes; what is no file of a store tells nothing."""
    write(tmp_path / "commitlog" / f"{0:020}", 1024, b"\0\0\0\x50")
    write(tmp_path / "consumequeue" / "stray", 77)
    write(tmp_path / "consumequeue" / "A" / "0" / "note", 78)
    write(tmp_path / "consumequeue" / "B" / "0" / f"{0:020}", 0)
    write(tmp_path / "consumequeue" / "C" / "3" / f"{0:020}", 400)
    write(tmp_path / "index" / "note", 79)
    write(tmp_path / "index" / "20261121063553092", 40 + 84 * 5)
    assert sizes_on_disk(tmp_path, CONFIG, FILES) == replace(
        CONFIG, log_file_bytes=1024, queue_file_bytes=400, index_slots=5, index_entries=20
    )


@pytest.mark.parametrize("size", [40 + 4 * 7 + 20 * 9, 1000])
def test_an_index_of_another_ratio_must_be_configured(tmp_path: Path, size: int) -> None:
    """As long as it holds no key: of 40 + 4 * slots + 20 * entries the two cannot be told apart."""
    write(tmp_path / "index" / "20261121063553092", size)
    assert sizes_on_disk(tmp_path, CONFIG, FILES) == CONFIG


@pytest.mark.parametrize(
    ("size", "first", "expected"),
    [(1000, b"", 4096), (0, b"", 4096), (1000, b"\1", 1000), (8192, b"", 8192)],
)
def test_an_interrupted_first_file_tells_nothing(
    tmp_path: Path, size: int, first: bytes, expected: int
) -> None:
    """Short and without a record: its allocation did not end."""
    write(tmp_path / "commitlog" / f"{0:020}", size, first)
    assert sizes_on_disk(tmp_path, CONFIG, FILES).log_file_bytes == expected


def test_the_empty_file_that_retention_left_tells_its_size(tmp_path: Path) -> None:
    """Taken for an interrupted one it would be removed, and with it where the log ends."""
    write(tmp_path / "commitlog" / f"{2000:020}", 1000, b"")
    assert sizes_on_disk(tmp_path, CONFIG, FILES).log_file_bytes == 1000


def test_directories_are_made_once_and_sizes_summed(tmp_path: Path) -> None:
    """With all their parents."""
    store = tmp_path / "a" / "b" / "store"
    make_directory(store, FILES)
    make_directory(store, FILES)
    assert (store / "commitlog").is_dir()
    write(store / "x", 5)
    write(store / "y" / "z", 6)
    assert tree_bytes(store, FILES) == 11
    assert tree_bytes(store / "nothing", FILES) == 0


def test_a_kill_while_directories_are_made_costs_no_name_later() -> None:
    """Who finds them made cannot know whether their names are durable."""
    store = Path("/simulated/store")

    def made(disk: Disk, dies_at: int | None) -> bool:
        process = Process(disk, Scheduler("making"), Faults(), 0)
        process.scheduler.dies_at = dies_at
        return process.run(lambda: make_directory(store, process.files))

    point, ended = 0, False
    while not ended:
        disk, point = Disk(4096), point + 1
        ended = made(disk, point)
        assert made(disk, None)
        state = disk.state()
        left = SimulatedFileSystem(state.disk([0] * len(state.axes)), Scheduler("power cut"))
        assert left.exists(store / "commitlog"), f"killed at point {point}"
    assert point > 6


def test_notes_of_a_new_store_are_in_a_directory_that_survives() -> None:
    """A deletion that was noted durably was lost with it, and the topic's messages came back."""
    process = Process(Disk(4096), Scheduler("notes"), Faults(), 0)
    config = store_config(FlushMode.SYNC_FLUSH, checkpoint_interval_ms=3_600_000)

    def run() -> None:
        store = process.open(config)
        # Without a key: the first index file would sync the name.
        store.put(message(("T", 0), b"x", "k")._replace(properties=b""))
        store.dispatched.wait(store.end_offset)
        store.delete_topic("T")
        process.scheduler.die()

    process.run(run)
    state = process.disk.state()
    left = SimulatedFileSystem(state.disk([0] * len(state.axes)), Scheduler("power cut"))
    assert left.exists(Path("/simulated/store") / DELETED_TOPICS_PATH)


def test_a_file_system_without_upper_and_lower_case_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Topics whose names differ in that only would write into each other's queues."""
    exists = RealFileSystem.exists

    def exists_in_any_case(self: RealFileSystem, path: Path) -> bool:
        return exists(self, path) or exists(self, path.with_name(path.name.lower()))

    monkeypatch.setattr(RealFileSystem, "exists", exists_in_any_case)
    with pytest.raises(NotAStoreError, match="upper and lower case"):
        MessageStore.open(tmp_path / "store")


def test_a_directory_that_is_named_like_the_log_in_capitals_is_no_reason_to_refuse(
    tmp_path: Path,
) -> None:
    """On a file system that tells them apart it is merely there."""
    MessageStore.open(tmp_path / "store").close()
    (tmp_path / "store" / "COMMITLOG").mkdir()
    MessageStore.open(tmp_path / "store").close()
