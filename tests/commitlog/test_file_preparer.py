"""What the preparer may touch, and when."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from commitbus.commitlog import file_preparer
from commitbus.commitlog.errors import ThreadDiedError
from commitbus.commitlog.file_preparer import FilePreparer
from commitbus.commitlog.mapped_file import FilePolicy, MappedFile
from commitbus.commitlog.mapped_file_queue import MappedFileQueue
from commitbus.commitlog.service_thread import ServiceThread

SIZE = 1 << 14
STEP = 1024


@pytest.fixture
def files(tmp_path: Path, faulty: Any) -> Iterator[MappedFileQueue]:
    files = MappedFileQueue(tmp_path / "log", SIZE, file_system=faulty, policy=FilePolicy())
    yield files
    files.close()
    assert faulty.open_files == 0


@pytest.fixture
def preparer(files: MappedFileQueue, monkeypatch: pytest.MonkeyPatch) -> Iterator[FilePreparer]:
    monkeypatch.setattr(file_preparer, "FIRST_AHEAD_BYTES", 2 * STEP)
    preparer = FilePreparer(files)
    file = files.file_for_append(0)
    file.map()
    preparer.begin(file, 0)
    yield preparer
    preparer.stop()


def settle(preparer: FilePreparer) -> None:
    """Wait until the thread has nothing to do."""

    def idle() -> bool:
        return not preparer._working and preparer._frontier >= preparer._wanted

    with preparer._changed:
        assert preparer._changed.wait_for(idle, timeout=10)


def test_it_warms_behind_what_the_writer_claimed(
    files: MappedFileQueue, preparer: FilePreparer
) -> None:
    """The writer's bytes stay; what lies two steps ahead of them, and nothing more, is zeroed."""
    files.files[0].write(0, b"\xff" * SIZE)
    limit = preparer.advance(100)
    settle(preparer)
    left = bytes(files.files[0].buffer)
    assert limit >= 100
    assert left == b"\xff" * 100 + bytes(2 * STEP) + b"\xff" * (SIZE - 100 - 2 * STEP)


def test_the_writer_asks_again_before_it_arrives(preparer: FilePreparer) -> None:
    """One step early while there is more to warm, and not at all once the file is warm."""
    preparer.advance(100)
    settle(preparer)
    assert preparer.advance(200) == 100 + STEP
    preparer.advance(SIZE - 2 * STEP)
    settle(preparer)
    assert preparer.advance(SIZE - 1) == SIZE


def test_it_warms_further_ahead_of_a_writer_that_arrives_again(
    preparer: FilePreparer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few messages cost a few pages; the thread is too slow for small steps before many."""
    monkeypatch.setattr(file_preparer, "AHEAD_MAX_BYTES", 4 * STEP)
    preparer.advance(100)
    preparer.advance(200)
    assert preparer._wanted == 100 + 2 * STEP
    preparer.advance(101 + STEP)
    assert preparer._wanted == 101 + 5 * STEP
    preparer.advance(102 + 3 * STEP)
    assert preparer._wanted == 102 + 7 * STEP


def test_a_file_is_left_alone_once_the_next_one_was_asked_for(
    files: MappedFileQueue, preparer: FilePreparer
) -> None:
    """The writer ends it with a blank record, which no late warming may wipe out."""
    preparer.advance(SIZE // 2)
    following = preparer.next_file(SIZE)
    assert preparer._wanted == preparer._frontier
    assert not preparer._next_wanted
    files.add(following)
    preparer.begin(following, 0)


def test_the_next_file_is_there_from_the_middle_of_the_current_one(
    files: MappedFileQueue, preparer: FilePreparer
) -> None:
    """Not before, so that a store of a few messages takes the room of one file."""
    path = files.directory / f"{SIZE:020d}"
    preparer.advance(SIZE // 2 - 2 * STEP - 1)
    settle(preparer)
    assert not path.exists()
    preparer.advance(SIZE // 2)
    with preparer._changed:
        assert preparer._changed.wait_for(lambda: preparer._next is not None, timeout=10)
    assert path.exists()
    following = preparer.next_file(SIZE)
    assert following.base_offset == SIZE
    files.add(following)
    preparer.begin(following, 0)


def test_a_death_is_told_to_the_writer_and_to_the_owner(
    files: MappedFileQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer that waits for the thread goes on with an error, at once and ever after."""
    monkeypatch.setattr(file_preparer, "FIRST_AHEAD_BYTES", 2 * STEP)
    begun, goes_on = threading.Event(), threading.Event()
    deaths: list[ThreadDiedError] = []

    def warm(*_: object) -> None:
        begun.set()
        goes_on.wait(10)
        raise MemoryError

    monkeypatch.setattr(MappedFile, "warm", warm)
    preparer = FilePreparer(files, deaths.append)
    preparer.begin(files.file_for_append(0), 0)
    preparer.advance(1)
    assert begun.wait(10)
    threading.Timer(0.05, goes_on.set).start()
    with pytest.raises(ThreadDiedError, match="commitlog-preparer died: MemoryError"):
        preparer.advance(SIZE // 2)
    for call in (lambda: preparer.advance(2), lambda: preparer.next_file(SIZE)):
        with pytest.raises(ThreadDiedError):
            call()
    assert len(deaths) == 1
    preparer.stop()


def test_the_writer_goes_on_while_the_next_file_is_created(
    files: MappedFileQueue, preparer: FilePreparer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fsync of that file takes as long as the disk likes: only who needs the file waits."""
    begun, goes_on = threading.Event(), threading.Event()
    new_file = files.new_file

    def slow_new_file(self: MappedFileQueue, base_offset: int) -> MappedFile:
        begun.set()
        assert goes_on.wait(10)
        return new_file(base_offset)

    monkeypatch.setattr(MappedFileQueue, "new_file", slow_new_file)
    end = 0
    while not begun.wait(0.01):
        end += STEP
        preparer.advance(end)
    assert end < SIZE
    # This would wait for ever if it waited for the file.
    preparer.advance(SIZE - 8)
    goes_on.set()
    files.add(preparer.next_file(SIZE))
    assert files.end_of_files == 2 * SIZE


def test_without_a_further_thread_the_writer_works_alone(
    files: MappedFileQueue, preparer: FilePreparer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It finds its bytes cold and creates files itself; once there is a thread again, it helps."""
    start = ServiceThread.start

    def refuse(_: ServiceThread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(ServiceThread, "start", refuse)
    preparer.advance(SIZE - 8)
    file = preparer.next_file(SIZE)
    files.add(file)
    file.map()
    preparer.begin(file, 0)
    monkeypatch.setattr(ServiceThread, "start", start)
    preparer.advance(1)
    settle(preparer)
    assert preparer._frontier > 1
