"""What an index file is like at moments when its process may be killed."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

from commitbus.commitlog.file_system import RealFileSystem
from commitbus.indexfile.index_file import IndexFile
from commitbus.indexfile.index_format import HEADER, HEADER_BYTES, IndexHeader


def test_a_new_file_says_where_it_begins_before_it_takes_its_room(tmp_path: Path) -> None:
    """To allocate 420 MB takes time; RocketMQ reads a file without a header as an empty index."""
    path, file_system = tmp_path / "20260101000000000", RealFileSystem()
    seen: list[IndexHeader] = []
    real_file = type(file_system.open(tmp_path / "other", create=True))
    allocate = real_file.allocate

    def look_and_allocate(file: object, position: int, length: int) -> None:
        seen.append(IndexHeader(*HEADER.unpack(path.read_bytes()[:HEADER_BYTES])))
        assert isinstance(file, real_file)
        allocate(file, position, length)

    previous = IndexHeader(1_000, 2_000, 0, 777, 5, 10)
    with patch.object(real_file, "allocate", look_and_allocate):
        file = IndexFile.create(path, 10, 40, file_system=file_system, previous=previous)
    assert seen == [file.header] == [IndexHeader(2_000, 2_000, 777, 777)]
    file.close()
