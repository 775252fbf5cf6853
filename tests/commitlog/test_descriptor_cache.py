"""No more files are open than allowed, and callers do not notice which."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

import pytest

from commitbus.commitlog.descriptor_cache import DescriptorCache
from commitbus.commitlog.errors import StoreClosedError
from commitbus.commitlog.file_system import RealFileSystem
from commitbus.commitlog.mapped_file import FilePolicy, MappedFile, file_name

SIZE = 4096


def make_files(directory: Path, cache: DescriptorCache, count: int) -> list[MappedFile]:
    """Files that share a cache."""
    policy = FilePolicy(grow=True, descriptors=cache)
    return [
        MappedFile.create(
            directory / file_name(i * SIZE), SIZE, file_system=RealFileSystem(), policy=policy
        )
        for i in range(count)
    ]


def open_in(directory: Path) -> list[str]:
    """Names of the files of a directory that this process has open, as the kernel says."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            path = link.readlink()
            found += [path.name] if path.parent == directory else []
    return found


def test_only_so_many_files_are_open(tmp_path: Path) -> None:
    """Each is opened when it is used."""
    cache = DescriptorCache(3)
    files = make_files(tmp_path, cache, 10)
    for round_ in range(3):
        for i, file in enumerate(files):
            file.write(round_, b"%d" % i)
            assert file.read(0, round_ + 1) == b"%d" % i * (round_ + 1)
            assert len(open_in(tmp_path)) == len(cache) == 3
    for file in files:
        file.flush()
        file.close()
        with pytest.raises(StoreClosedError):
            file.read(0, 1)
    assert len(cache) == 0
    assert open_in(tmp_path) == []


def test_a_file_in_use_stays(tmp_path: Path) -> None:
    """One that is used between the others is not the one that goes."""
    often, *seldom = make_files(tmp_path, DescriptorCache(3), 10)
    for file in seldom:
        often.write(0, b"x")
        file.write(0, b"x")
        assert often.path.name in open_in(tmp_path)


def test_files_that_must_stay_open_do(tmp_path: Path) -> None:
    """Even if they are more than there should be."""
    cache = DescriptorCache(2)
    files = make_files(tmp_path, cache, 4)
    for file in files[:3]:
        file.must_stay_open = True
        file.read(0, 1)
    files[3].read(0, 1)
    assert {file.path.name for file in files[:3]} <= set(open_in(tmp_path))
    files[0].must_stay_open = False
    for _ in range(2):
        files[3].release_descriptor()
        files[3].read(0, 1)
    assert files[0].path.name not in open_in(tmp_path)


def test_threads_share_a_cache(tmp_path: Path) -> None:
    """Reads, writes and closes run together: the bytes are right, no descriptor stays open."""
    cache = DescriptorCache(2)
    files = make_files(tmp_path, cache, 8)
    wrong: list[object] = []

    def read() -> None:
        for _ in range(200):
            for file in files:
                with suppress(StoreClosedError):
                    data = file.read(0, 8)
                    wrong.extend([data] if data != data[:1] * 8 else [])

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for round_ in range(100):
        for file in files:
            file.write(0, bytes([round_]) * 8)
    for file in files:
        file.close()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(cache) == 0
    assert open_in(tmp_path) == []
