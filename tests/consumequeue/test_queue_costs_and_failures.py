"""What consume queues cost, and what they do when the disk or a file is not as it should be."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from commitbus.commitlog.errors import (
    DiskFullError,
    FlushFailedError,
    NotAStoreError,
    StoreClosedError,
    StoreDamagedError,
)
from commitbus.commitlog.file_system import RealFileSystem
from commitbus.commitlog.mapped_file import MappedFile
from commitbus.commitlog.types import PhysicalOffset
from commitbus.consumequeue import ConsumeQueueStore
from tests.consumequeue.test_consume_queue_store import (
    FILE_BYTES,
    RECORD_BYTES,
    message,
    open_store,
    the_queue,
    unit_of,
)
from tests.failing_files import FailingFileSystem
from tests.unreadable_files import UnreadableFileSystem


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ConsumeQueueStore]:
    """An empty store, closed at the end."""
    opened = open_store(tmp_path / "cq")
    yield opened
    opened.close()


def test_a_thousand_queues_cost_a_few_blocks_each(tmp_path: Path) -> None:
    """Files of 6 MB apparent size take 4 KiB while they hold little."""
    store = ConsumeQueueStore(tmp_path, 6_000_000, file_system=RealFileSystem())
    store.load()
    store.put([message(n, n // 1000, queue_id=n % 1000) for n in range(2000)])
    store.close()
    sizes = [path.stat() for path in tmp_path.rglob("*") if path.is_file()]
    assert len(sizes) == 1000
    assert {stat.st_size for stat in sizes} == {6_000_000}
    assert sum(stat.st_blocks * 512 for stat in sizes) <= 1000 * 8192


@pytest.mark.parametrize("operation", ["pwrite", "truncate", "make_directories"])
def test_a_full_disk_is_told_and_putting_goes_on_when_there_is_room(
    tmp_path: Path, operation: str
) -> None:
    """Nothing is lost, doubled, or left in a state that a retry cannot use."""
    file_system = FailingFileSystem()
    store = open_store(tmp_path / "cq", file_system)
    store.put([message(n, n) for n in range(10)])
    messages = [message(n, n) for n in range(10, 12)] + [message(12, 13, topic="padded")]
    file_system.fails = {operation: errno.ENOSPC}
    for _ in range(2):
        with pytest.raises(DiskFullError):
            store.put(messages)
    file_system.fails = {}
    store.put(messages)
    assert the_queue(store).max_offset == 12
    padded = the_queue(store, "padded")
    assert padded.units(padded.min_offset, 9) == [unit_of(messages[-1])]
    store.close()


@pytest.mark.parametrize("operation", ["sync_data", "sync_directory"])
def test_a_failed_flush_is_told(tmp_path: Path, operation: str) -> None:
    """Whoever promised durability must hear of it."""
    file_system = FailingFileSystem()
    store = open_store(tmp_path / "cq", file_system)
    store.put([message(0, 0)])
    file_system.fails = {operation: errno.EIO}
    with pytest.raises(FlushFailedError):
        store.flush()
    store.close()


def test_what_a_killed_start_has_cut_is_flushed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It finds zeros and has nothing to cut, but they may be in the page cache only."""
    store = open_store(tmp_path / "cq")
    store.put([message(0, 0), message(1, 1), message(2, 0, topic="U")])
    store.close()
    store = open_store(tmp_path / "cq")
    store.truncate(PhysicalOffset(RECORD_BYTES))
    store.close()
    synced: list[Path] = []
    monkeypatch.setattr(MappedFile, "flush", lambda self: synced.append(self.path))
    monkeypatch.setattr(RealFileSystem, "sync_directory", lambda _, path: synced.append(path))
    store = open_store(tmp_path / "cq")
    store.truncate(PhysicalOffset(RECORD_BYTES))
    store.flush()
    assert tmp_path / "cq" / "T" / "0" / ("0" * 20) in synced
    # The queue of this one is gone, with its files: their names have to go durably.
    assert tmp_path / "cq" / "U" in synced
    store.close()


def test_after_an_unclean_stop_the_names_that_lead_to_queues_are_made_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that died may not have come to that, and a checkpoint soon relies on them."""
    directory = tmp_path / "consumequeue"
    store = open_store(directory)
    store.put([message(n, n) for n in range(3)])
    store.close()
    synced: list[Path] = []
    monkeypatch.setattr(RealFileSystem, "sync_directory", lambda _, path: synced.append(path))
    store = open_store(directory)
    store.truncate(PhysicalOffset(10**9))
    store.flush()
    store.close()
    assert {tmp_path, directory, directory / "T"} <= set(synced)


@pytest.mark.parametrize(
    ("operation", "begin"),
    [
        ("pwrite", 13),  # At 0 there is no padding: the file stays from the first attempt.
        ("truncate", 0),
        ("truncate", 13),
        ("make_directories", 0),
        ("make_directories", 13),
    ],
)
def test_the_names_of_a_queue_are_made_durable_though_a_checkpoint_came_before_its_first_unit(
    tmp_path: Path, operation: str, begin: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without room its directory is made later, or anew: a power cut would take that one."""
    file_system = FailingFileSystem()
    directory = tmp_path / "consumequeue"
    store = open_store(directory, file_system)
    first = message(0, begin)
    file_system.fails = {operation: errno.ENOSPC}
    with pytest.raises(DiskFullError):
        store.put([first])
    store.flush()
    file_system.fails = {}
    store.put([first])
    synced: list[Path] = []
    monkeypatch.setattr(RealFileSystem, "sync_directory", lambda _, path: synced.append(path))
    store.flush()
    assert {tmp_path, directory, directory / "T", directory / "T" / "0"} <= set(synced)
    store.close()


def test_flush_takes_only_what_changed_to_the_disk(tmp_path: Path) -> None:
    """10,000 idle queues cost nothing; a cut one is flushed although it became shorter."""
    file_system = FailingFileSystem()
    store = open_store(tmp_path / "cq", file_system)
    store.put([message(n, n // 2, queue_id=n % 2) for n in range(30)])
    store.flush()
    file_system.fails = {"sync_data": errno.EIO}
    store.flush()
    store.truncate(PhysicalOffset(2950))
    with pytest.raises(FlushFailedError):
        store.flush()
    store.close()


def test_what_was_cut_and_came_again_is_flushed(tmp_path: Path) -> None:
    """Though the queue is as long as when it was flushed last."""
    file_system = FailingFileSystem()
    store = open_store(tmp_path / "cq", file_system)
    messages = [message(n, n) for n in range(30)]
    store.put(messages)
    store.flush()
    store.truncate(PhysicalOffset(2950))
    store.put(messages)
    assert the_queue(store).max_offset == 30
    file_system.fails = {"sync_data": errno.EIO}
    with pytest.raises(FlushFailedError):
        store.flush()
    store.close()


def test_a_closed_store_takes_nothing(store: ConsumeQueueStore) -> None:
    """Closing twice is fine."""
    store.put([message(0, 0)])
    store.close()
    store.close()
    with pytest.raises(StoreClosedError):
        store.put([message(1, 1)])


def _wrong_size(queue: Path) -> None:
    with (queue / ("0" * 20)).open("ab") as file:
        file.write(b"x")


def _missing_file(queue: Path) -> None:
    (queue / f"{FILE_BYTES:020}").unlink()


def _alien_file(queue: Path) -> None:
    (queue / "notes.txt").write_text("hello")


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (_wrong_size, NotAStoreError),
        (_missing_file, StoreDamagedError),
        (_alien_file, NotAStoreError),
    ],
)
def test_files_that_cannot_be_a_queue_are_named(
    tmp_path: Path, damage: Callable[[Path], None], error: type[Exception]
) -> None:
    """The error carries the directory; nothing is guessed."""
    store = open_store(tmp_path)
    store.put([message(n, n) for n in range(25)])
    store.close()
    damage(tmp_path / "T" / "0")
    with pytest.raises(error, match="T/0"):
        open_store(tmp_path)


@pytest.mark.parametrize("file_bytes", [0, 30, -20])
def test_an_impossible_file_size_is_refused(tmp_path: Path, file_bytes: int) -> None:
    """A tool takes the size from the files, which may be damaged."""
    store = ConsumeQueueStore(tmp_path, file_bytes, file_system=RealFileSystem())
    with pytest.raises(NotAStoreError, match="multiple of 20"):
        store.load()


def test_strange_directories_are_passed_over(tmp_path: Path) -> None:
    """A file among the topics, a directory among the queues: neither is a queue."""
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "T" / "007").mkdir(parents=True)
    (tmp_path / "T" / "x").mkdir()
    (tmp_path / "T" / "3").mkdir()
    (tmp_path / "file").write_text("x")
    store = open_store(tmp_path)
    assert store.queues() == []
    store.close()


def test_a_batch_is_put_once_more_over_a_page_that_cannot_be_read(tmp_path: Path) -> None:
    """What the disk does not give back concerns who reads it, not the messages that follow."""
    files = UnreadableFileSystem()
    store = ConsumeQueueStore(tmp_path / "cq", 200, file_system=files)
    store.load()
    store.put([message(n, n) for n in range(5)])
    files.spoil(tmp_path / "cq" / "T" / "0" / ("0" * 20), 0)
    store.put([message(n, n) for n in range(3, 8)])
    assert the_queue(store).max_offset == 8
    store.close()
