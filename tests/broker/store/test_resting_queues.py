"""A start opens the queues that it has to look at, and no others."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from commitbus.broker.store.check import check_store
from commitbus.broker.store.config import StoreConfig
from commitbus.broker.store.layout import INDEX, LOG, tree_bytes
from commitbus.broker.store.layout import QUEUES as QUEUES_DIRECTORY
from commitbus.broker.store.message_store import MessageStore
from commitbus.commitlog.errors import OutOfResourcesError, ReadFailedError, StoreError
from commitbus.commitlog.file_system import RealFileSystem
from commitbus.commitlog.types import OutgoingMessage, QueueOffset
from commitbus.consumequeue.changed_queues import ChangedQueues
from commitbus.consumequeue.queue_states import QUEUE_STATES_PATH
from tests.unreadable_files import UnreadableFileSystem

PATIENCE_S = 20
QUEUES = 40
ONLY_WHEN_ASKED_MS = 3_600_000

MakeMessage = Callable[..., OutgoingMessage]
CopyOf = Callable[[Path], Path]


class Watched:
    """A real file system that notes which queues' files are opened and synced."""

    def __init__(self) -> None:
        self.real = RealFileSystem()
        self.opened: set[str] = set()
        self.synced: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def open(self, path: Path, **options: Any) -> Any:
        file = self.real.open(path, **options)
        if "consumequeue" not in path.parts or not options.get("writable", True):
            # One file is looked at for the size of all.
            return file
        self.opened.add(path.parent.name)
        return WatchedFile(file, self)


class WatchedFile:
    """A file of it."""

    def __init__(self, real: Any, owner: Watched) -> None:
        self.real, self.owner = real, owner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def sync_data(self) -> None:
        self.owner.synced.append(self.real.path.parent.name)
        self.real.sync_data()


@pytest.fixture
def config(config: StoreConfig) -> StoreConfig:
    """A store whose checkpoints are saved when a test says so."""
    return replace(config, checkpoint_interval_ms=ONLY_WHEN_ASKED_MS)


def put(store: MessageStore, message: OutgoingMessage) -> None:
    """Put a message and wait until it can be fetched."""
    end = store.put(message).end_offset
    assert store.durable_watermark.wait(end, PATIENCE_S)
    assert store.dispatched.wait(end, PATIENCE_S)


@pytest.fixture
def filled(store_dir: Path, config: StoreConfig, make_message: MakeMessage) -> Path:
    """A closed store with a message in each of many queues."""
    with MessageStore.open(store_dir, config) as store:
        for queue_id in range(QUEUES):
            put(store, make_message("T", queue_id=queue_id))
    return store_dir


def ends(store: MessageStore) -> list[int]:
    """Where each queue ends."""
    return [store.max_offset("T", queue_id) for queue_id in range(QUEUES)]


def test_a_clean_start_opens_no_queue(
    filled: Path, config: StoreConfig, make_message: MakeMessage
) -> None:
    """One is opened when it is used, for the first time by who may wait for a disk."""
    files = Watched()
    with MessageStore.open(filled, config, file_system=files) as store:
        assert ends(store) == [1] * QUEUES
        assert {store.min_offset("T", queue_id) for queue_id in range(QUEUES)} == {0}
        assert files.opened == set()
        assert store.fetch_cached("T", 3, QueueOffset(0), 1) is None
        assert files.opened == set()
        (unit,) = store.fetch("T", 3, QueueOffset(0), 1).units
        assert store.read(unit.physical_offset).queue_id == 3
        put(store, make_message("T", queue_id=5))
        assert store.max_offset("T", 5) == 2
        assert files.opened == {"3", "5"}
        assert store.storage_bytes == sum(
            tree_bytes(filled / name, RealFileSystem()) for name in (LOG, QUEUES_DIRECTORY, INDEX)
        )
    assert check_store(filled).problems == []


def test_a_checkpoint_syncs_what_has_changed(
    filled: Path, config: StoreConfig, make_message: MakeMessage, copy_of: CopyOf
) -> None:
    """After an unclean stop, too, and also the first one."""
    with MessageStore.open(filled, config) as store:
        put(store, make_message("T", queue_id=7))
        killed = copy_of(filled)
    files = Watched()
    with MessageStore.open(killed, config, file_system=files) as store:
        assert files.opened == {"7"}
        assert ends(store) == [1 + (queue_id == 7) for queue_id in range(QUEUES)]
        store.save_checkpoint()
        assert set(files.synced) == {"7"}
        files.synced.clear()
        put(store, make_message("T", queue_id=9))
        store.save_checkpoint()
        assert set(files.synced) == {"9"}
    assert check_store(killed).problems == []


def test_a_kill_after_a_checkpoint_costs_a_look_at_what_came_since(
    filled: Path, config: StoreConfig, make_message: MakeMessage, copy_of: CopyOf
) -> None:
    """The checkpoint notes how the queues end that have changed."""
    with MessageStore.open(filled, config) as store:
        for queue_id in (1, 2):
            put(store, make_message("T", queue_id=queue_id))
        put(store, make_message("New", queue_id=50))
        store.save_checkpoint()
        put(store, make_message("T", queue_id=2))
        put(store, make_message("Newer", queue_id=60))
        store.delete_topic("New")
        killed = copy_of(filled)
    files = Watched()
    with MessageStore.open(killed, config, file_system=files) as store:
        assert files.opened == {"2", "60"}
        expected = [1] * QUEUES
        expected[1], expected[2] = 2, 3
        assert ends(store) == expected
        assert (store.max_offset("Newer", 60), store.queue_end("New", 50)) == (1, 1)
        assert ("New", 50) not in store.queues()
    assert check_store(killed).problems == []


def _remove_directories(store: Path) -> None:
    shutil.rmtree(store / "consumequeue")


def _remove_a_directory(store: Path) -> None:
    shutil.rmtree(store / "consumequeue" / "T" / "4")


def _remove_files(store: Path) -> None:
    for path in (store / "consumequeue").rglob("0*"):
        if path.is_file():
            path.unlink()


def _remove_states(store: Path) -> None:
    (store / QUEUE_STATES_PATH).unlink()


def _damage_states(store: Path) -> None:
    data = bytearray((store / QUEUE_STATES_PATH).read_bytes())
    data[-5] ^= 1
    (store / QUEUE_STATES_PATH).write_bytes(data)


def _cut_states(store: Path) -> None:
    os.truncate(store / QUEUE_STATES_PATH, 100)


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize(
    "harm",
    [
        _remove_directories, _remove_a_directory, _remove_files,
        _remove_states, _damage_states, _cut_states,
    ],
)  # fmt: skip
def test_whatever_is_removed_between_two_starts_is_made_again(  # noqa: PLR0917 - pytest's
    filled: Path,
    config: StoreConfig,
    make_message: MakeMessage,
    copy_of: CopyOf,
    harm: Callable[[Path], None],
    is_clean: bool,  # noqa: FBT001 - pytest passes it by name
) -> None:
    """Queues are a function of the log, and their states are an aid of no consequence."""
    directory = filled
    if not is_clean:
        with MessageStore.open(filled, config) as store:
            put(store, make_message("T", queue_id=7))
            directory = copy_of(filled)
    harm(directory)
    for _ in range(2):
        with MessageStore.open(directory, config) as store:
            expected = [1] * QUEUES
            expected[7] += not is_clean
            assert ends(store) == expected
            for queue_id in range(QUEUES):
                assert (
                    len(store.fetch("T", queue_id, QueueOffset(0), 9).units) == expected[queue_id]
                )
        assert check_store(directory).problems == []


def test_a_queue_that_was_changed_in_place_is_refused_when_it_is_used(
    filled: Path, config: StoreConfig, make_message: MakeMessage
) -> None:
    """The next start looks at all of them."""
    (path,) = (filled / "consumequeue" / "T" / "4").iterdir()
    with path.open("r+b") as file:
        file.write(bytes(20))
    with MessageStore.open(filled, config) as store:
        with pytest.raises(StoreError, match="something else has changed it"):
            store.fetch("T", 4, QueueOffset(0), 1)
        put(store, make_message("T", queue_id=5))
    files = Watched()
    with MessageStore.open(filled, config, file_system=files) as store:
        assert "4" in files.opened


def test_the_ends_of_unused_queues_are_looked_at_in_steps(
    filled: Path, config: StoreConfig, make_message: MakeMessage, copy_of: CopyOf
) -> None:
    """A power cut may have taken the log's end and left units of its messages: they are removed."""
    with MessageStore.open(filled, config) as store:
        put(store, make_message("T", queue_id=7))
        killed = copy_of(filled)
    (path,) = (killed / "consumequeue" / "T" / "4").iterdir()
    stray = path.read_bytes()[:20]
    with path.open("r+b") as file:
        file.seek(20)
        file.write(stray)
    files = Watched()
    with MessageStore.open(killed, config, file_system=files) as store:
        assert files.opened == {"7"}
        changes: ChangedQueues = store._queues.changes
        while changes.settle(10):
            assert len(files.opened) <= QUEUES
        assert ends(store)[4] == 1
        put(store, make_message("T", queue_id=4))
        assert [unit.queue_offset for unit in store.fetch("T", 4, QueueOffset(0), 9).units] == [
            0,
            1,
        ]
    assert "4" in files.synced
    assert check_store(killed).problems == []


class OutOfDescriptors(Watched):
    """One of a process that may open no more files for a while."""

    fails = False

    def open(self, path: Path, **options: Any) -> Any:
        self._refuse()
        return super().open(path, **options)

    def sync_directory(self, path: Path) -> None:
        self._refuse()
        self.real.sync_directory(path)

    def _refuse(self) -> None:
        if self.fails:
            raise OSError(errno.EMFILE, "Too many open files")


def test_without_descriptors_a_look_at_unused_queues_is_put_off(
    filled: Path, config: StoreConfig, make_message: MakeMessage, copy_of: CopyOf
) -> None:
    """Neither does the store stop, nor is a queue left out."""
    with MessageStore.open(filled, config) as store:
        put(store, make_message("T", queue_id=7))
        killed = copy_of(filled)
    (path,) = (killed / "consumequeue" / "T" / "4").iterdir()
    with path.open("r+b") as file:
        file.seek(20)
        file.write(b"stray")
    files = OutOfDescriptors()
    with MessageStore.open(killed, config, file_system=files) as store:
        files.fails = True
        with pytest.raises(OutOfResourcesError):
            store._queues.changes.settle(QUEUES)
        store._checkpoints._settle_or_put_off()
        files.fails = False
        assert not store._queues.changes.settle(QUEUES)
    assert "4" in files.synced
    assert check_store(killed).problems == []


def test_stray_units_are_gone_before_the_next_message_and_when_the_store_is_closed(
    filled: Path, config: StoreConfig, make_message: MakeMessage, copy_of: CopyOf
) -> None:
    """RocketMQ would take them for messages."""
    with MessageStore.open(filled, config) as store:
        put(store, make_message("T", queue_id=7))
        killed = copy_of(filled)
    for queue_id in (4, 5):
        (path,) = (killed / "consumequeue" / "T" / str(queue_id)).iterdir()
        units = path.read_bytes()[:20] * 3
        with path.open("r+b") as file:
            file.seek(20)
            file.write(units)
    with MessageStore.open(killed, config) as store:
        put(store, make_message("T", queue_id=4))
        assert ends(store)[4:6] == [2, 1]
    assert check_store(killed).problems == []
    for queue_id, end in ((4, 2), (5, 1)):
        (path,) = (killed / "consumequeue" / "T" / str(queue_id)).iterdir()
        assert not any(path.read_bytes()[20 * end :])


def test_without_room_for_the_states_all_else_goes_on(
    filled: Path, config: StoreConfig, make_message: MakeMessage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint needs no room on the disk: retention waits for it when there is none."""
    full = Watched()
    original = full.open

    def refuse(path: Path, **options: Any) -> Any:
        if path.name.startswith(QUEUE_STATES_PATH.name) and options.get("writable", True):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return original(path, **options)

    monkeypatch.setattr(full, "open", refuse)
    with MessageStore.open(filled, config, file_system=full) as store:
        put(store, make_message("T", queue_id=7))
        store.save_checkpoint()
    files = Watched()
    with MessageStore.open(filled, config, file_system=files) as store:
        assert len(files.opened) == QUEUES
        assert ends(store)[7] == 2
    files = Watched()
    with MessageStore.open(filled, config, file_system=files):
        assert files.opened == set()


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_message_does_not_wait_for_a_page_of_its_queue_that_cannot_be_read(
    filled: Path,
    config: StoreConfig,
    make_message: MakeMessage,
    copy_of: CopyOf,
    *,
    is_clean: bool,
) -> None:
    """Who reads from there is told; the next message takes its place behind it."""
    directory = filled
    if not is_clean:
        with MessageStore.open(filled, config) as store:
            put(store, make_message("T", queue_id=7))
            directory = copy_of(filled)
    files = UnreadableFileSystem()
    (path,) = (directory / "consumequeue" / "T" / "4").iterdir()
    files.spoil(path, 0)
    with MessageStore.open(directory, config, file_system=files) as store:
        put(store, make_message("T", queue_id=4))
        with pytest.raises(ReadFailedError):
            store.fetch("T", 4, QueueOffset(0), 9)
        files.bad_pages.clear()
        assert len(store.fetch("T", 4, QueueOffset(0), 9).units) == 2
    assert check_store(directory).problems == []
