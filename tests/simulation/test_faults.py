"""The faults that the simulation makes: each is what a kernel does, no more and no less."""

from __future__ import annotations

import errno
from functools import partial
from pathlib import Path

import pytest

from tests.simulation.disk import PAGE_BYTES, Disk
from tests.simulation.files import Faults, SimulatedFile, SimulatedFileSystem
from tests.simulation.scheduler import Scheduler, Shortage, SimulationError
from tests.simulation.threads import SimulatedThreads

PATH = Path("/a file")


def file_of_two_pages(faults: Faults | None = None) -> tuple[SimulatedFileSystem, SimulatedFile]:
    files = SimulatedFileSystem(Disk(), Scheduler(0), faults)
    files.only_the_log_is_mapped = False
    file = files.open(PATH, create=True)
    file.pwrite(b"a" * PAGE_BYTES + b"b" * PAGE_BYTES, 0)
    return files, file


def test_an_unreadable_page_is_an_error_of_the_reads_that_touch_it() -> None:
    """Of one that must not wait, the kernel only says that it would have to."""
    files, file = file_of_two_pages()
    file.inode.unreadable.add(1)
    assert file.pread(PAGE_BYTES, 0) == b"a" * PAGE_BYTES
    with pytest.raises(OSError, match="Input/output") as caught:
        file.pread(10, PAGE_BYTES - 5)
    assert (caught.value.errno, caught.value.filename) == (errno.EIO, None)
    assert file.pread_cached(10, PAGE_BYTES) is None
    assert files.read_failures == 1
    files.faults.reads_fail = False
    assert file.pread(1, PAGE_BYTES) == b"b"


def test_a_whole_page_that_is_written_is_readable_again() -> None:
    """Part of one is not: its other bytes would have to be read."""
    _, file = file_of_two_pages()
    file.inode.unreadable.add(1)
    with pytest.raises(OSError, match="Input/output"):
        file.pwrite(b"c", PAGE_BYTES)
    file.pwrite(b"c" * PAGE_BYTES, PAGE_BYTES)
    assert file.pread(1, PAGE_BYTES) == b"c"


def test_an_unreadable_page_survives_a_power_cut() -> None:
    """It is the disk's."""
    files, file = file_of_two_pages()
    file.sync_data()
    files.sync_directory(Path("/"))
    file.inode.unreadable.add(1)
    disk = files.disk.state().disk([0] * len(files.disk.state().axes))
    ((_, inode),) = disk.files()
    assert inode.unreadable == {1}


def test_bytes_are_at_rest_once_they_are_durable() -> None:
    """Only such can have left the page cache."""
    _, file = file_of_two_pages()
    assert not file.inode.is_at_rest(0, PAGE_BYTES)
    file.sync_data()
    assert file.inode.is_at_rest(0, 2 * PAGE_BYTES)
    file.pwrite(b"c", 0)
    assert not file.inode.is_at_rest(0, PAGE_BYTES)
    assert file.inode.is_at_rest(PAGE_BYTES, 2 * PAGE_BYTES)


def test_descriptors_run_out_and_come_back() -> None:
    """Files, mappings and locks take one each, a synced directory for a moment."""
    files, file = file_of_two_pages()
    mapping = file.map(PAGE_BYTES)
    files.faults.descriptors_max = 2
    for attempt in (lambda: files.open(PATH), lambda: files.sync_directory(Path("/"))):
        with pytest.raises(OSError, match="Too many open files"):
            attempt()
    with pytest.raises(OSError, match="Too many open files"):
        file.map(PAGE_BYTES)
    mapping.close()
    files.sync_directory(Path("/"))
    file.close()
    assert not files.descriptors
    assert files.shortages == 3


def test_a_file_to_which_nobody_refers_is_closed() -> None:
    """As Python does."""
    files, file = file_of_two_pages()
    del file
    assert not files.descriptors


def test_memory_runs_out() -> None:
    """For a mapping, and for blocks."""
    files, file = file_of_two_pages()
    files.faults.memory_failure_probability = 1.0
    with pytest.raises(OSError, match="Cannot allocate memory"):
        file.map(PAGE_BYTES)
    with pytest.raises(OSError, match="Cannot allocate memory"):
        file.allocate(0, 10 * PAGE_BYTES)
    assert file.size() == 2 * PAGE_BYTES


def test_only_the_log_is_mapped_and_nothing_is_used_after_it_was_closed() -> None:
    """Mistakes of the store end the simulation."""
    files, file = file_of_two_pages()
    files.only_the_log_is_mapped = True
    with pytest.raises(SimulationError, match="is mapped"):
        file.map(PAGE_BYTES)
    file.close()

    def read() -> None:
        file.pread(1, 0)

    with pytest.raises(SimulationError, match="used after it was closed"):
        files.scheduler.run(read)


def test_a_read_that_must_not_wait_may_find_nothing_in_memory() -> None:
    """As after a start."""
    _, file = file_of_two_pages(Faults(cold_probability=1.0))
    assert file.pread_cached(1, 0) is None
    assert file.pread(1, 0) == b"a"


def test_memory_is_short_once_in_the_chosen_thread() -> None:
    """It ends the thread, and nobody else; whoever made it is told."""
    scheduler = Scheduler(0)
    simulated = SimulatedThreads(scheduler)
    lock, ended = simulated.lock(), []

    def take(name: str) -> None:
        for _ in range(3):
            with lock:
                pass
        ended.append(name)

    def both() -> None:
        threads = [simulated.thread(partial(take, name), name) for name in ("poor", "rich")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    scheduler.shortage = Shortage(1, "poor")
    scheduler.run(both)
    assert ended == ["rich"]
    assert scheduler.dead_threads() == ["poor"]
    assert scheduler.was_short_in is not None
