"""Finding the intact records of damaged bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitbus.commitlog import salvage
from commitbus.commitlog.file_system import Mapping
from commitbus.commitlog.record_format import BLANK_MAGIC_CODE, SIZE_AND_MAGIC
from commitbus.commitlog.salvage import IntactRecord, LostRange, salvage_file
from commitbus.commitlog.types import Host
from tests.records import encode_record

BASE: Final = 1 << 20
HOST: Final = Host.parse("10.0.0.1", 1)


@final
class Bytes:
    """A file in memory, of which some pages cannot be read."""

    def __init__(self, data: bytes, unreadable: Sequence[int] = ()) -> None:
        self.data, self.unreadable = data, unreadable
        self.path = Path("bytes")

    def size(self) -> int:
        return len(self.data)

    def pread(self, length: int, position: int) -> bytes:
        if any(position <= page < position + length for page in self.unreadable):
            raise OSError(5, "Input/output error")
        return self.data[position : position + length]

    def pread_cached(self, length: int, position: int) -> bytes | None:
        raise AssertionError

    def next_data(self, position: int) -> int:
        rest = self.data[position:]
        return position + len(rest) - len(rest.lstrip(b"\0"))

    def next_hole(self, position: int) -> int:
        raise AssertionError

    def pwrite(self, data: bytes | memoryview, position: int) -> None:
        raise AssertionError

    def truncate(self, size: int) -> None:
        raise AssertionError

    def allocate(self, position: int, length: int) -> None:
        raise AssertionError

    def map(self, length: int) -> Mapping:
        raise AssertionError("a page that cannot be read would be a SIGBUS")

    def sync_data(self) -> None:
        raise AssertionError

    def close(self) -> None:
        raise AssertionError


def record(position: int, body: bytes = b"body", topic: str = "T") -> bytes:
    """A record that lies at a position of the file."""
    return encode_record(
        topic=topic,
        body=body,
        properties=b"k\1v\2",
        queue_id=0,
        queue_offset=0,
        physical_offset=BASE + position,
        born_timestamp=1,
        born_host=HOST,
        store_timestamp=2,
        store_host=HOST,
    )


def log_file(*bodies: bytes, size: int = 0) -> tuple[bytes, list[int]]:
    """A file of records, closed by a blank one if it has a size; and where they begin."""
    data, starts = b"", []
    for body in bodies:
        starts.append(len(data))
        data += record(len(data), body)
    if size:
        data += SIZE_AND_MAGIC.pack(size - len(data), BLANK_MAGIC_CODE)
    return data.ljust(size, b"\0"), starts


def salvaged(
    data: bytes, *, durable_end: int | None = None, unreadable: Sequence[int] = ()
) -> tuple[list[int], list[LostRange]]:
    """Where the intact records begin, and what is lost; positions in the file."""
    found, lost = [], []
    for part in salvage_file(Bytes(data, unreadable), BASE, durable_end=durable_end):
        if isinstance(part, IntactRecord):
            position = part.physical_offset - BASE
            assert part.data == data[position : position + len(part.data)]
            found.append(position)
        else:
            lost.append(LostRange(part.start - BASE, part.end - BASE, part.reason))
    return found, lost


def test_a_sound_file_is_found_whole() -> None:
    """The blank record ends it; nothing is lost."""
    data, starts = log_file(b"a", b"", b"c" * 1000, size=4096)
    assert salvaged(data) == (starts, [])


def test_zeros_are_the_end_of_the_last_file_only() -> None:
    """In any other there must have been records, and so there must below the watermark."""
    data, starts = log_file(b"a", b"b")
    end = len(data)
    data = data.ljust(4096, b"\0")
    assert salvaged(data, durable_end=0) == (starts, [])
    assert salvaged(data, durable_end=BASE + end) == (starts, [])
    lost = salvaged(data, durable_end=BASE + end + 100)[1]
    assert lost == [LostRange(end, end + 100, "zeros that were records")]
    assert salvaged(data)[1] == [LostRange(end, 4096, "zeros to the end of the file")]


def test_a_damaged_body_costs_its_record_only() -> None:
    """What the body holds is not searched for records."""
    inner = record(200)
    data, starts = log_file(b"a", b"b" * 100 + inner, b"c", size=4096)
    broken = bytearray(data)
    broken[starts[1] + 100] ^= 1
    found, lost = salvaged(bytes(broken))
    assert found == [starts[0], starts[2]]
    assert [(part.start, part.end) for part in lost] == [(starts[1], starts[2])]
    assert "checksum" in lost[0].reason


@pytest.mark.parametrize("position", [0, 4, 28, 84])
def test_a_damaged_header_leads_to_the_next_record(position: int) -> None:
    """Size, magic code, own offset, body length: the next magic code is searched for."""
    data, starts = log_file(b"a", b"b", b"c", size=4096)
    broken = bytearray(data)
    broken[starts[1] + position] ^= 0x10
    found, lost = salvaged(bytes(broken))
    assert found == [starts[0], starts[2]]
    assert [(part.start, part.end) for part in lost] == [(starts[1], starts[2])]


def test_a_record_elsewhere_is_not_taken_for_one_here() -> None:
    """It says where it lies; a copy of a page is none of the log's messages."""
    data, starts = log_file(b"a", b"b" * 500, b"c", size=4096)
    broken = bytearray(data)
    broken[starts[1] : starts[1] + 300] = data[:300]
    found, _ = salvaged(bytes(broken))
    assert found == [starts[0], starts[2]]


def test_a_page_that_cannot_be_read_is_reported() -> None:
    """As zeros would be, with the number of bytes."""
    data, starts = log_file(*(b"%d" % n * 1500 for n in range(7)), size=16384)
    found, lost = salvaged(data, unreadable=[5000])
    assert found == starts[:2] + starts[6:]
    assert (lost[0].start, lost[-1].end) == (starts[2], starts[6])
    assert "4096 bytes could not be read" in lost[0].reason


@pytest.mark.parametrize("window", [256, 300, 5000])
def test_windows_do_not_matter(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that is longer than one, or a magic code that lies across two, is found."""
    monkeypatch.setattr(salvage, "WINDOW_BYTES", window)
    data, starts = log_file(b"a", b"b" * 700, b"c" * 10, b"d" * 1000, b"e", size=8192)
    assert salvaged(data) == (starts, [])
    broken = bytearray(data)
    broken[0:4] = b"\xff" * 4
    broken[starts[1] + 4] ^= 1
    found, lost = salvaged(bytes(broken))
    assert found == starts[2:]
    assert (lost[0].start, lost[-1].end) == (0, starts[2])


@given(st.binary(max_size=600), st.integers(0, 600), st.sampled_from([None, 0]))
def test_any_bytes_are_survived(rubbish: bytes, at: int, durable_end: int | None) -> None:
    """Every byte is in a record or in a lost range, in order, but for the log's end."""
    data, _ = log_file(b"a" * 30, b"b", b"c" * 200, size=1024)
    broken = data[:at] + rubbish + data[at + len(rubbish) :]
    position = 0
    for part in salvage_file(Bytes(broken), BASE, durable_end=durable_end):
        start = part.physical_offset if isinstance(part, IntactRecord) else part.start
        assert start - BASE == position
        position = position + len(part.data) if isinstance(part, IntactRecord) else part.end - BASE
    rest = broken[position:]
    assert not rest.strip(b"\0") or rest[4:8] == BLANK_MAGIC_CODE.to_bytes(4, "big")


@given(st.binary(max_size=300))
def test_bytes_alone_are_survived(data: bytes) -> None:
    """Of any length, down to none."""
    found, _ = salvaged(data)
    assert found == []
