"""Pieces of a log file: records across their boundaries, and pages that cannot be read."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from commitbus.commitlog.errors import ReadFailedError
from commitbus.commitlog.file_system import RealFileSystem
from commitbus.commitlog.log_pieces import next_readable, read_piece
from commitbus.flush.spark import range_reader
from commitbus.flush.spark.log_ranges import plan_ranges
from commitbus.flush.spark.range_reader import read_range
from commitbus.flush.spark.read_options import OnDamage, ReadOptions
from commitbus.flush.watermark_file import WATERMARK_PATH
from tests.unreadable_files import PAGE_BYTES, UnreadableFileSystem

DROP = ReadOptions(on_damage=OnDamage.DROPMALFORMED)
FILE_BYTES = 1 << 20


@pytest.fixture
def disk() -> Any:
    return UnreadableFileSystem()


@pytest.fixture
def store(make_store: Any) -> Any:
    """Six files of messages from a few bytes to several pages, all durable."""
    store = make_store(16 * PAGE_BYTES)
    for i in range(120):
        store.append(body=bytes([i]) * (i * 37 % 9000), properties={"KEYS": f"k{i}"})
    store.set_watermark(store.end)
    return store


def log_file(store: Any, offset: int) -> Path:
    base = offset // store.file_bytes * store.file_bytes
    return Path(store.path / "commitlog" / f"{base:020}")


def offsets(store: Any, disk: Any, options: ReadOptions = DROP, **plan: Any) -> Iterator[int]:
    for part in plan_ranges(store.path, disk, **({"split_bytes": None} | plan)):
        for batch in read_range(part, disk, options):
            yield from batch["physical_offset"].to_pylist()


def readable(store: Any, disk: Any) -> list[int]:
    """The offsets of the records that no bad page touches."""
    found = []
    for record in store.records:
        path, start = log_file(store, record.physical_offset), record.physical_offset
        position = start % store.file_bytes
        pages = range(position // PAGE_BYTES, (position + record.size_bytes - 1) // PAGE_BYTES + 1)
        if disk.bad_pages.get(path, set()).isdisjoint(pages):
            found.append(start)
    return found


@pytest.mark.parametrize("piece_bytes", [1, 91, 100, 4096, 5000, 1 << 20])
def test_a_record_across_two_pieces_is_one_row(
    store: Any, piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As is one that is longer than a piece, wherever the pieces end."""
    disk: Any = UnreadableFileSystem()
    monkeypatch.setattr(range_reader, "PIECE_BYTES", piece_bytes)
    expected = [record.physical_offset for record in store.records]
    assert list(offsets(store, disk)) == expected
    assert list(offsets(store, disk, split_bytes=3000)) == expected
    assert disk.mapped == []


@pytest.mark.parametrize("piece_bytes", [100, 5000, 1 << 20])
@pytest.mark.parametrize("split_bytes", [None, 5000])
def test_an_unreadable_page_is_an_error_or_left_out_as_the_mode_says(
    *,
    store: Any,
    disk: Any,
    piece_bytes: int,
    split_bytes: int | None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The error names file and page; what is left out is exactly what cannot be read."""
    monkeypatch.setattr(range_reader, "PIECE_BYTES", piece_bytes)
    bad = store.records[50].physical_offset + 10
    path, page = log_file(store, bad), bad % store.file_bytes // PAGE_BYTES
    disk.spoil(path, bad % store.file_bytes)
    rows: list[int] = []
    with pytest.raises(ReadFailedError) as failure:
        rows.extend(offsets(store, disk, ReadOptions(), split_bytes=split_bytes))
    assert failure.value.path == path
    assert failure.value.position // PAGE_BYTES == page
    assert all(offset < bad for offset in rows)
    with caplog.at_level(logging.WARNING):
        assert list(offsets(store, disk, split_bytes=split_bytes)) == readable(store, disk)
    assert len(readable(store, disk)) < len(store.records)
    assert str(path) in caplog.text


def test_several_unreadable_places(store: Any, disk: Any) -> None:
    """In a row, at a file's beginning, and at its end."""
    first, second, third = (log_file(store, base * store.file_bytes) for base in range(3))
    disk.spoil(first, 3 * PAGE_BYTES, 4 * PAGE_BYTES)
    disk.spoil(first, 9 * PAGE_BYTES)
    disk.spoil(second, 0)
    disk.spoil(third, 15 * PAGE_BYTES)
    assert list(offsets(store, disk)) == readable(store, disk)


def test_a_file_of_which_nothing_can_be_read(store: Any, disk: Any) -> None:
    """The other files' rows are there."""
    path = log_file(store, store.file_bytes)
    disk.spoil(path, 0, store.file_bytes)
    assert list(offsets(store, disk)) == readable(store, disk)
    with pytest.raises(ReadFailedError, match=path.name):
        list(offsets(store, disk, ReadOptions()))


def test_a_torn_end_is_not_what_cannot_be_read(store: Any, disk: Any) -> None:
    """Without a watermark the log ends at the first torn record, but not at a bad block."""
    (store.path / WATERMARK_PATH).unlink()
    (store.path / "abort").write_bytes(b"")
    last_file = log_file(store, store.records[-1].physical_offset)
    disk.spoil(last_file, 0)
    with pytest.raises(ReadFailedError, match=last_file.name):
        list(offsets(store, disk, ReadOptions()))


def test_names_that_cannot_be_read_are_done_without(
    store: Any, disk: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A consume queue only tells where to cut."""
    (queue,) = (store.path / "consumequeue" / "Topic" / "0").iterdir()
    disk.spoil(queue, 0)
    expected = [record.physical_offset for record in store.records]
    assert list(offsets(store, disk, ReadOptions(), split_bytes=5000)) == expected
    assert str(queue) in caplog.text


def test_a_watermark_that_cannot_be_read_is_named(store: Any, disk: Any) -> None:
    disk.spoil(store.path / WATERMARK_PATH, 0)
    with pytest.raises(ReadFailedError, match="watermark at position 0"):
        list(offsets(store, disk))


def test_a_failed_piece_is_narrowed_down_to_the_page(tmp_path: Path, disk: Any) -> None:
    """Wherever the piece begins, the bytes before the page are there."""
    path = tmp_path / "file"
    data = os.urandom(20 * PAGE_BYTES)
    path.write_bytes(data)
    for page in (0, 1, 2, 7, 19):
        disk.bad_pages.clear()
        disk.spoil(path, page * PAGE_BYTES)
        file = disk.open(path, writable=False)
        for position in {0, 5, page * PAGE_BYTES - 1, page * PAGE_BYTES, page * PAGE_BYTES + 1}:
            if position < 0:
                continue
            readable_end = max(position, page * PAGE_BYTES)
            for end in {readable_end + 1, readable_end + PAGE_BYTES // 2, len(data)}:
                piece = read_piece(file, position, end - position)
                assert bytes(piece.view) == data[position:readable_end]
                assert piece.failure is not None
                assert piece.failure.position == readable_end
        assert next_readable(file, page * PAGE_BYTES, len(data)) == (page + 1) * PAGE_BYTES
        file.close()


def test_a_read_that_ends_before_a_bad_page_is_not_the_end_of_the_file(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel returns the bytes before the page first; only the next read fails."""
    pread, bad, first = os.pread, 5 * PAGE_BYTES, log_file(store, 0)

    def pread_of_a_bad_disk(fd: int, length: int, position: int) -> bytes:
        if not os.path.samestat(os.fstat(fd), first.stat()):
            return pread(fd, length, position)
        if position // PAGE_BYTES == bad // PAGE_BYTES:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return pread(fd, min(length, bad - position) if position < bad else length, position)

    monkeypatch.setattr(os, "pread", pread_of_a_bad_disk)
    disk = RealFileSystem()
    with pytest.raises(ReadFailedError) as failure:
        list(offsets(store, disk, ReadOptions()))
    assert failure.value.position == bad
    bad_disk: Any = UnreadableFileSystem()
    bad_disk.spoil(log_file(store, 0), bad)
    assert list(offsets(store, disk)) == readable(store, bad_disk)
