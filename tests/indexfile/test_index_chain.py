"""Queries over long chains: they find the same, hold up no put, and end."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commitbus.commitlog.clock import SystemClock
from commitbus.commitlog.errors import QueryTooWideError
from commitbus.commitlog.file_system import RealFileSystem
from commitbus.commitlog.types import DispatchRequest, PhysicalOffset, QueueOffset
from commitbus.indexfile import IndexService, KeyKind, index_chain
from commitbus.indexfile.index_chain import Wanted, Work, candidates
from commitbus.indexfile.index_file import IndexFile
from tests.failing_files import FailingFile, FailingFileSystem

START_MS = 1_700_000_000_000
END_OF_TIME = END_OF_LOG = 2**62


def message(number: int, tags: str = "tag") -> DispatchRequest:
    """The number-th message of a log: a tag, 100 bytes, 10 ms after the one before."""
    return DispatchRequest(
        PhysicalOffset(number * 100), 100, "T", 0, QueueOffset(number), 0,
        START_MS + number * 10, 0, "", "", tags,
    )  # fmt: skip


def open_service(directory: Path, file_system: Any = None) -> IndexService:
    """A loaded index."""
    service = IndexService(
        directory,
        slot_count=1000,
        entry_count=200_000,
        clock=SystemClock(),
        file_system=file_system or RealFileSystem(),
    )
    service.load()
    return service


def by_tag(service: IndexService, tags: str, begin: int, end: int, count: int) -> list[int]:
    """Return the messages with a tag that were stored between two messages."""
    times = START_MS + 10 * begin, START_MS + 10 * end
    found = service.query("T", tags, *times, count, kind=KeyKind.TAG)
    return [offset // 100 for offset in found]


class CountingFileSystem(FailingFileSystem):
    """A file system that counts reads and can hold them up."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.may_read = threading.Event()
        self.may_read.set()
        self.wants_to_read = threading.Event()

    def open(self, path: Path, **options: Any) -> Any:
        return _CountingFile(self.real.open(path, **options), self)


class _CountingFile(FailingFile):
    owner: Any

    def pread(self, length: int, position: int) -> bytes:
        self.owner.wants_to_read.set()
        assert self.owner.may_read.wait(20)
        self.owner.reads += 1
        data: bytes = self.real.pread(length, position)
        return data


@pytest.fixture
def disk() -> CountingFileSystem:
    """A file system that counts reads."""
    return CountingFileSystem()


def test_old_messages_are_found_without_following_every_newer_one(
    tmp_path: Path, disk: CountingFileSystem
) -> None:
    """One tag for 150,000 messages: one by one these were as many reads."""
    service = open_service(tmp_path / "index", disk)
    service.put([message(n) for n in range(150_000)])
    disk.reads = 0
    # Whole seconds: a hundred messages more may be among them.
    assert by_tag(service, "tag", 1000, 1999, 5000) == list(range(1999, 999, -1))
    assert by_tag(service, "tag", 0, 99, 10) == list(range(99, 89, -1))
    assert disk.reads < 500
    service.close()


def test_a_put_does_not_wait_for_a_query(tmp_path: Path, disk: CountingFileSystem) -> None:
    """However slowly the disk gives it what it asks for."""
    service = open_service(tmp_path / "index", disk)
    service.put([message(n) for n in range(100)])
    disk.may_read.clear()
    disk.wants_to_read.clear()
    found: list[list[int]] = []
    query = threading.Thread(target=lambda: found.append(by_tag(service, "tag", 0, 1000, 1000)))
    query.start()
    assert disk.wants_to_read.wait(20)
    put = threading.Thread(target=service.put, args=([message(100)],))
    put.start()
    put.join(20)
    is_put = not put.is_alive()
    disk.may_read.set()
    query.join(20)
    put.join(20)
    assert is_put
    assert found == [list(range(99, -1, -1))]  # As it was when the query came.
    service.close()


def test_a_query_goes_on_in_files_that_are_removed_or_closed_meanwhile(tmp_path: Path) -> None:
    """It finds no message of a file that it has not reached yet."""
    service = IndexService(
        tmp_path,
        slot_count=10,
        entry_count=50,
        clock=SystemClock(),
        file_system=RealFileSystem(),
    )
    service.load()
    service.put([message(n) for n in range(200)])
    service.flush()
    found = service.candidates("T", "tag", 0, END_OF_TIME, kind=KeyKind.TAG)
    newest = [next(found) for _ in range(3)]
    service.delete_before(PhysicalOffset(10_000))
    service.close()
    offsets = newest + list(found)
    assert offsets == [100 * n for n in range(199, 97, -1)]


def test_a_query_that_would_pass_over_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller is told, instead of an answer that looks like all there is."""
    monkeypatch.setattr(Work.__init__, "__defaults__", (100,))
    service = open_service(tmp_path / "index")
    service.put([message(n) for n in range(60_000)])
    assert len(by_tag(service, "tag", 0, 10**9, 10)) == 10
    with pytest.raises(QueryTooWideError, match="narrow"):
        by_tag(service, "tag", 0, 10**9, 10**6)
    service.put([message(60_000)])
    service.close()


@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_a_walk_finds_what_a_look_at_every_entry_finds(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """By single entries, by blocks, and behind a bisection; in memory and in the file."""
    count = data.draw(st.integers(1, 300))
    seed = data.draw(st.integers(0, 1000))
    rng = np.random.default_rng(seed)
    hashes = rng.choice([3, 8, 10, 13, 77], count, p=rng.dirichlet(np.ones(5))).astype(np.int32)
    offsets = np.cumsum(rng.integers(0, 2, count)).astype(np.int64) * 100
    steps = rng.integers(0, data.draw(st.sampled_from([1, 300, 2500])) + 1, count)
    times = (START_MS + np.cumsum(steps)).astype(np.int64)
    file = IndexFile.create(
        tmp_path_factory.mktemp("index") / "file", 5, 400,
        file_system=RealFileSystem(), previous=None,
    )  # fmt: skip
    assert file.append(hashes, offsets, times) == count
    if data.draw(st.booleans()):
        file.write()
    moments = st.integers(-3000, int(times[-1]) - START_MS + 3000)
    begin, end = data.draw(moments) + START_MS, data.draw(moments) + START_MS
    before = data.draw(st.sampled_from([END_OF_LOG, int(offsets[-1]), int(offsets[count // 2])]))
    wanted = Wanted(8, begin, end, before)
    seconds = (times - times[0]) // 1000 * 1000 + times[0]
    is_found = (hashes == 8) & (seconds + 999 >= begin) & (seconds <= end) & (offsets < before)
    is_found &= (times[0] <= end) & (times[-1] >= begin)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_chain, "_BLOCK_ENTRIES", data.draw(st.integers(2, 40)))
        patch.setattr(index_chain, "_NEAR", data.draw(st.sampled_from([1, 4, 1000])))
        patch.setattr(index_chain, "_NEAR_LINKS", data.draw(st.integers(0, 3)))
        patch.setattr(index_chain, "_TOO_NEW_WORK", data.draw(st.sampled_from([0, 20, 10_000])))
        with file.reader() as reader:
            found = list(candidates(reader, wanted, file.head(8), Work()))
    assert found == offsets[is_found][::-1].tolist()
    file.close()
