"""No more files are mapped than allowed, and nobody notices which."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from commitbus.commitlog.errors import OffsetOutOfRangeError, StoreClosedError
from commitbus.commitlog.file_system import RealFileSystem
from commitbus.commitlog.mapped_file import FilePolicy, MappedFile, file_name
from commitbus.commitlog.mapping_cache import MappingCache

SIZE = 4096


def make_files(directory: Path, cache: MappingCache, count: int) -> list[MappedFile]:
    """Files that share a cache, none of them used yet."""
    policy = FilePolicy(keep_open=False, grow=True, mappings=cache)
    return [
        MappedFile.create(
            directory / file_name(i * SIZE), SIZE, file_system=RealFileSystem(), policy=policy
        )
        for i in range(count)
    ]


def mapped_in(directory: Path) -> int:
    """How many files of a directory this process has mapped, as the kernel says."""
    return Path("/proc/self/maps").read_text().count(str(directory))


def test_only_so_many_files_are_mapped(tmp_path: Path) -> None:
    """Each is mapped when it is used, and what was written through a mapping stays."""
    cache = MappingCache(3)
    descriptors = len(os.listdir("/proc/self/fd"))
    files = make_files(tmp_path, cache, 10)
    assert mapped_in(tmp_path) == len(cache) == 0
    for round_ in range(3):
        for i, file in enumerate(files):
            file.append(b"%d" % i)
            assert bytes(file.buffer[: round_ + 1]) == b"%d" % i * (round_ + 1)
            assert mapped_in(tmp_path) == len(cache) <= 3
    assert len(os.listdir("/proc/self/fd")) == descriptors + 3
    for file in files:
        file.flush()
        file.close()
        with pytest.raises(StoreClosedError):
            _ = file.buffer
    assert mapped_in(tmp_path) == len(cache) == 0
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_a_file_in_use_stays(tmp_path: Path) -> None:
    """One that is used between the others is not the one that goes."""
    cache = MappingCache(3)
    often, *seldom = make_files(tmp_path, cache, 10)
    for file in seldom:
        often.write_at(0, b"x")
        file.write_at(0, b"x")
        assert str(often.path) in Path("/proc/self/maps").read_text()


def test_a_view_outlives_the_mapping_of_its_file(tmp_path: Path) -> None:
    """The writer's and readers' views stay good, and show what is written through a later one."""
    cache = MappingCache(1)
    first, second = make_files(tmp_path, cache, 2)
    with first.pin(0, 5) as view:
        buffer = first.buffer
        second.append(b"second")
        assert len(cache) == 1
        buffer[:5] = b"early"
        assert bytes(view) == bytes(first.buffer[:5]) == b"early"
        first.write_at(0, b"later")
        assert bytes(view) == bytes(buffer[:5]) == b"later"
        first.delete()
        assert bytes(view) == b"later"
    del buffer
    with pytest.raises(OffsetOutOfRangeError):
        first.acquire()
    second.close()
    assert mapped_in(tmp_path) == 0


def test_threads_share_a_cache(tmp_path: Path) -> None:
    """Whoever reads, writes and closes meanwhile: the bytes are right, nothing stays mapped."""
    cache = MappingCache(2)
    files = make_files(tmp_path, cache, 8)
    wrong: list[object] = []

    def read() -> None:
        for _ in range(200):
            for file in files:
                with suppress(StoreClosedError), file.pin(0, 8) as view:
                    data = bytes(view)
                    wrong.extend([data] if data != data[:1] * 8 else [])

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for round_ in range(100):
        for file in files:
            file.write_at(0, bytes([round_]) * 8)
    for file in files:
        file.close()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert mapped_in(tmp_path) == len(cache) == 0
