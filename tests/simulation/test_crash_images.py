"""Power cuts and kills of short histories: the store recovers what it promised."""

from __future__ import annotations

import pytest

from commitbus.commitlog import commit_log
from commitbus.flush.policy import FlushMode
from tests.simulation.disk import Disk, HoleStoreError, Inode
from tests.simulation.images import (
    HISTORIES,
    History,
    batches,
    crash_everywhere,
    framed,
    killed_between_any_two_lines,
    lost_stays_lost,
    one_by_one,
    power_cut_after_failed_sync,
    record,
)
from tests.simulation.scheduler import repeatable


@pytest.mark.slow
@pytest.mark.parametrize("mode", FlushMode)
@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: history.__name__)
def test_every_promise_survives_a_power_cut(history: History, mode: FlushMode) -> None:
    """At every operation on a file, whatever subset of what was not synced is left."""
    counts = crash_everywhere(
        history,
        mode,
        seed=0,
        per_moment_max=32,
        in_all_max=25,
        page_bytes=4096 if mode is FlushMode.SYNC_FLUSH else 512,
    )
    assert counts.moments > 40
    assert counts.exhausted > 10
    assert counts.disks > 100


@pytest.mark.slow
@pytest.mark.parametrize("mode", FlushMode)
@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: history.__name__)
def test_every_subset_of_a_short_history_is_recovered(history: History, mode: FlushMode) -> None:
    """All subsets wherever they are at most 256, and many more of the longer histories."""
    for page_bytes in (512, 4096):
        crash_everywhere(
            history, mode, seed=1, per_moment_max=256, in_all_max=50, page_bytes=page_bytes
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    "history", [one_by_one, batches, framed], ids=lambda history: history.__name__
)
def test_a_kill_between_any_two_lines_loses_nothing(history: History) -> None:
    """Of the log: what was appended is there, and of a batch all or nothing."""
    files = frozenset([commit_log.__file__])
    points = list(killed_between_any_two_lines(history, FlushMode.ASYNC_FLUSH, files, step=17))
    assert len(points) > 10


@pytest.mark.parametrize("seed", range(4))
def test_what_a_failed_sync_left_in_memory_is_written_again(seed: int) -> None:
    """The next start makes durable what it found, whatever the kernel takes for clean."""
    power_cut_after_failed_sync(seed)


def test_what_was_lost_stays_lost() -> None:
    """Intact records behind a cut do not come back when the gap before them is filled."""
    lost_stays_lost(0)


def test_a_history_has_the_same_moments_each_time() -> None:
    """A failure can be looked at again."""
    first, second = (record(one_by_one, FlushMode.SYNC_FLUSH, 3) for _ in range(2))
    assert [c.state.subset_count for c in first] == [c.state.subset_count for c in second]


# The disk itself: a simulation is only as good as what it simulates.


def new_file(disk: Disk, name: str, pages: int) -> Inode:
    inode = Inode(disk.page_bytes)
    disk.change((disk.root, name, inode))
    inode.cache.extend(bytes(pages * disk.page_bytes))
    inode.allocated.update(range(pages))
    inode.note_meta()
    return inode


def test_a_power_cut_leaves_any_subset_of_names_sizes_and_pages() -> None:
    """Two pages, a size and a name that nobody synced: 2^4 states, the name decides most."""
    disk = Disk()
    inode = new_file(disk, "file", 2)
    inode.cache[0], inode.cache[5000] = 1, 2
    inode.observe()
    state = disk.state()
    assert state.subset_count == 16
    left = {
        tuple(bytes(file.cache) for _, file in survivor.files())
        for survivor in state.disks(repeatable(0), 16)
    }
    pages = {
        (bytes([a]) + bytes(4999) + bytes([b])).ljust(8192, b"\0") for a in (0, 1) for b in (0, 2)
    }
    assert left == {(), (b"",), *((page,) for page in pages)}


def test_what_was_synced_survives() -> None:
    """The bytes that were there when the sync began, once name and bytes are synced."""
    disk = Disk()
    inode = new_file(disk, "file", 1)
    inode.cache[0] = 1
    marks = inode.marks()
    inode.cache[0] = 2
    inode.observe()
    inode.settle(marks)
    disk.sync_names(disk.root)
    state = disk.state()
    assert {disk.checksum() for disk in state.disks(repeatable(0), 4)} == {
        disk.checksum() for disk in (state.disk([0]), state.disk([1]))
    }
    ((_, old),) = state.disk([0]).files()
    ((_, new),) = state.disk([1]).files()
    assert (old.cache[0], new.cache[0]) == (1, 2)


def test_what_a_failed_sync_lost_a_later_one_does_not_write() -> None:
    """As a kernel that took the page for clean; another store to the page makes it dirty again."""
    disk = Disk()
    inode = new_file(disk, "file", 1)
    inode.settle(inode.marks())
    disk.sync_names(disk.root)
    inode.cache[0] = 1
    while not inode.pages or not inode.pages[0].lost_number:
        inode.lose(inode.marks(), repeatable(1))
        assert not inode.pages or inode.pages[0].versions, "seed 1 loses it"
    inode.settle(inode.marks())
    assert disk.state().subset_count == 2
    inode.add_version(0, inode.page_of(inode.cache, 0))
    inode.settle(inode.marks())
    assert disk.state().subset_count == 1


def test_a_store_to_a_hole_is_found() -> None:
    """It would be SIGBUS on a full disk."""
    inode = new_file(Disk(), "file", 1)
    inode.allocated.clear()
    inode.cache[7] = 1
    with pytest.raises(HoleStoreError):
        inode.observe()
