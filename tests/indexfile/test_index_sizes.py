"""Any index file tells the numbers it was made with, as long as it holds a key."""

from __future__ import annotations

from pathlib import Path

import pytest

from commitbus.commitlog.clock import SystemClock
from commitbus.commitlog.file_system import RealFileSystem
from commitbus.commitlog.types import DispatchRequest, PhysicalOffset, QueueOffset
from commitbus.indexfile.index_format import HEADER, IndexHeader, index_file_bytes
from commitbus.indexfile.index_service import IndexService
from commitbus.indexfile.index_sizes import find_sizes, sizes_by_ratio

FILES = RealFileSystem()
DEFAULT = (5_000_000, 20_000_000)


def request(number: int, first_offset: int = 0) -> DispatchRequest:
    """A message with one key."""
    return DispatchRequest(
        PhysicalOffset(first_offset + 100 * number),
        100,
        "T",
        0,
        QueueOffset(number),
        0,
        1_700_000_000_000 + 700 * number,
        0,
        "",
        f"key{number}",
        "",
    )


def make_index(directory: Path, sizes: tuple[int, int], requests: list[DispatchRequest]) -> Path:
    """Return the first file of an index of these messages."""
    service = IndexService(
        directory,
        slot_count=sizes[0],
        entry_count=sizes[1],
        clock=SystemClock(),
        file_system=FILES,
    )
    service.load()
    service.put(requests)
    service.close()
    return min(directory.iterdir())


@pytest.mark.parametrize("sizes", [(1, 2), (100, 400), (7, 30), (1000, 10), (3, 100_000), (501, 9)])
@pytest.mark.parametrize("count", [1, 2, 7, 2000])
def test_a_file_tells_its_sizes(tmp_path: Path, sizes: tuple[int, int], count: int) -> None:
    """Whatever the ratio, however full it is, wherever the log begins."""
    requests = [request(n, 1 << 33) for n in range(count)]
    path = make_index(tmp_path / "index", sizes, requests)
    assert find_sizes(path, FILES, DEFAULT) == sizes
    assert find_sizes(path, FILES, sizes) == sizes


def test_what_a_size_alone_suggests_is_not_believed(tmp_path: Path) -> None:
    """(100, 400) and (5, 419) give files of one size."""
    path = make_index(tmp_path / "index", (5, 419), [request(n) for n in range(50)])
    assert sizes_by_ratio(path.stat().st_size) == (100, 400)
    for configured in (DEFAULT, (100, 400), (105, 399)):
        assert find_sizes(path, FILES, configured) == (5, 419)


@pytest.mark.parametrize("number", range(5, 20))
def test_a_torn_end_is_not_taken_for_other_sizes(tmp_path: Path, number: int) -> None:
    """A power cut kept the slots, but not the last entries nor the header that counts them.

    The last two entries that it counts are lost, and the one before them is of the same message:
    with two entries more and ten slots less it would be the last one.
    """
    messages = [request(n)._replace(keys=f"a{n} b{n} c{n}") for n in range(20)]
    path = make_index(tmp_path / "index", (20, 80), messages)
    data = bytearray(path.read_bytes())
    header = IndexHeader(*HEADER.unpack_from(data))
    counted = 1 + 3 * (number + 1)
    end_offset = 100 * number
    HEADER.pack_into(data, 0, *header._replace(index_count=counted, end_physical_offset=end_offset))
    end = index_file_bytes(20, counted)
    data[end - 40 :] = bytes(len(data) - end + 40)
    path.write_bytes(data)
    assert find_sizes(path, FILES, (20, 80)) is None


@pytest.mark.parametrize("sizes", [(1, 40), (100, 400), (7, 30), (501, 90)])
@pytest.mark.parametrize("flushed", [0, 1, 9])
@pytest.mark.parametrize("count", [10, 11, 25])
def test_a_file_of_a_killed_process_tells_its_sizes(
    tmp_path: Path, sizes: tuple[int, int], flushed: int, count: int
) -> None:
    """Its slots may lead to older entries than they should, or to none."""
    requests = [request(n, 1 << 33)._replace(keys=f"a{n} b{n}") for n in range(count)]
    service = IndexService(
        tmp_path / "index",
        slot_count=sizes[0],
        entry_count=sizes[1],
        clock=SystemClock(),
        file_system=FILES,
    )
    service.load()
    service.put(requests[:flushed])
    service.flush()
    service.put(requests[flushed:])
    for path in service.paths():
        assert find_sizes(path, FILES, sizes) == sizes
        # Where next to nothing is in it, it may tell nothing.
        assert find_sizes(path, FILES, DEFAULT) in (sizes, None)
    service.close()


def test_zeros_are_not_taken_for_entries_of_the_first_message(tmp_path: Path) -> None:
    """A power cut kept all entries and slots from the disk, and the message is at 0."""
    path = make_index(tmp_path / "index", (20, 80), [request(0)._replace(keys="a b c")])
    data = path.read_bytes()
    path.write_bytes(data[:40] + bytes(len(data) - 40))
    assert find_sizes(path, FILES, (20, 80)) is None


def test_a_file_without_a_key_tells_nothing(tmp_path: Path) -> None:
    """Nor does one that was never filled, or is damaged."""
    path = tmp_path / "file"
    for data in (b"", bytes(39), bytes(8440), b"\xff" * 8440, bytes(35) + b"\1" * 9000):
        path.write_bytes(data)
        assert find_sizes(path, FILES, (100, 400)) is None


def test_names_that_are_no_times_are_passed_over(tmp_path: Path) -> None:
    """RocketMQ passes them over too."""
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "lost+found").mkdir()
    path = make_index(tmp_path, (10, 50), [request(1)])
    assert path.name.isdecimal()
