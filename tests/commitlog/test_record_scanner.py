"""Walking over the records of a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from commitbus.commitlog.errors import ReadFailedError
from commitbus.commitlog.mapped_file import FilePolicy, MappedFile
from commitbus.commitlog.record_format import BLANK_MAGIC_CODE, SIZE_AND_MAGIC
from commitbus.commitlog.record_scanner import FileScanner, RecordScanner, ScanStop, StopKind
from commitbus.commitlog.types import Host
from tests.records import encode_record
from tests.unreadable_files import PAGE_BYTES, UnreadableFileSystem

BASE = 1 << 20
HOST = Host.parse("127.0.0.1", 1)


def records(count: int) -> bytes:
    data = b""
    for number in range(count):
        data += encode_record(
            topic="topic",
            body=b"%d" % number,
            properties=b"",
            queue_id=0,
            queue_offset=number,
            physical_offset=BASE + len(data),
            born_timestamp=0,
            born_host=HOST,
            store_timestamp=1,
            store_host=HOST,
        )
    return data


def scan(data: bytes, position: int = 0, *, verify_crc: bool = True) -> tuple[list[int], ScanStop]:
    """Return the queue offsets that were found, and the stop."""
    scanner = RecordScanner(memoryview(data), BASE, position, verify_crc=verify_crc)
    found = [checked[2] for checked in scanner]
    assert scanner.stop is not None
    return found, scanner.stop


DATA = records(3)
ONE = len(DATA) // 3


@pytest.mark.parametrize(
    ("tail", "kind"),
    [
        (b"", StopKind.FILE_END),
        (bytes(1), StopKind.NOTHING),
        (bytes(7), StopKind.NOTHING),
        (bytes(500), StopKind.NOTHING),
        (bytes(4) + b"torn before its size was stored", StopKind.NOTHING),
        (SIZE_AND_MAGIC.pack(8, BLANK_MAGIC_CODE), StopKind.BLANK),
        (SIZE_AND_MAGIC.pack(300, BLANK_MAGIC_CODE) + bytes(292), StopKind.BLANK),
        (SIZE_AND_MAGIC.pack(299, BLANK_MAGIC_CODE) + bytes(292), StopKind.BAD),
        (b"x", StopKind.BAD),
        (b"noise" * 50, StopKind.BAD),
        (DATA[:ONE], StopKind.BAD),
    ],
)
def test_a_scan_ends_where_no_record_begins(tail: bytes, kind: StopKind) -> None:
    """It returns all records before, says where it stopped, and tells the ends apart."""
    found, stop = scan(DATA + tail)
    assert found == [0, 1, 2]
    assert (stop.kind, stop.position) == (kind, len(DATA))
    assert stop.reason


def test_a_scan_may_begin_at_any_record() -> None:
    """Reput goes on where it was."""
    assert scan(DATA, 2 * ONE)[0] == [2]
    assert scan(DATA, 3 * ONE)[0] == []


@pytest.mark.parametrize("length", range(ONE))
def test_a_scan_of_a_growing_file_sees_whole_records_only(length: int) -> None:
    """However far the last record has got, it is not yielded before it is complete."""
    assert scan(DATA[: 2 * ONE + length])[0] == [0, 1]


def test_the_first_bad_record_ends_a_scan_even_if_good_ones_follow() -> None:
    """The reason says what is wrong; without checksums the body is not looked at."""
    data = bytearray(DATA)
    data[ONE + 88] ^= 1
    found, stop = scan(bytes(data))
    assert (found, stop.kind, stop.position) == ([0], StopKind.BAD, ONE)
    assert "checksum" in stop.reason
    assert scan(bytes(data), verify_crc=False)[0] == [0, 1, 2]


@pytest.mark.parametrize("bad_page", [0, 1, 3, 5])
def test_a_scan_of_a_file_ends_at_the_page_that_cannot_be_read(
    tmp_path: Path, bad_page: int
) -> None:
    """Not at the beginning of the piece that has the page in it: what lies before it is there."""
    data = records(300)
    path = tmp_path / f"{BASE:020}"
    path.write_bytes(data)
    disk: Any = UnreadableFileSystem()
    disk.spoil(path, bad_page * PAGE_BYTES)
    policy = FilePolicy(writable=False)
    file = MappedFile(path, len(data), file_system=disk, policy=policy)
    ends = [0]
    with pytest.raises(ReadFailedError) as caught:
        ends.extend(position + checked[0] for _, position, checked in FileScanner(file))
    bad = bad_page * PAGE_BYTES
    assert caught.value.path == path
    assert caught.value.position == max(bad, ends[-1])
    whole = [checked[-1] for checked in RecordScanner(memoryview(data), BASE)]
    assert len(whole) == 300
    assert ends[-1] == max([0, *(end for end in whole if end <= bad)])
    file.close()


@pytest.mark.parametrize("length", range(ONE))
def test_a_view_may_end_anywhere_in_a_record_of_its_file(length: int) -> None:
    """It ends before a page that cannot be read, even in the middle of a record's size."""
    scanner = RecordScanner(memoryview(DATA)[: ONE + length], BASE, behind=2 * ONE - length)
    assert [checked[2] for checked in scanner] == [0]
    assert scanner.stop is not None
    assert (scanner.stop.kind, scanner.stop.position) == (StopKind.BAD, ONE)
