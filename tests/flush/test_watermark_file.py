"""The durable watermark's file."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from commitbus.commitlog.errors import FlushFailedError, NotAStoreError, ReadFailedError
from commitbus.commitlog.file_system import RealFileSystem
from commitbus.commitlog.types import PhysicalOffset
from commitbus.flush.watermark_file import (
    FILE_BYTES,
    WATERMARK_PATH,
    WatermarkFile,
    decode_slot,
    decode_watermark,
    encode_slot,
    read_durable_watermark,
)
from tests.failing_files import FailingFileSystem
from tests.unreadable_files import UnreadableFileSystem

FILES = RealFileSystem()


def publish(store: Path, *values: int) -> bytes:
    """Publish values in turn, each session of its own, and return the file's bytes."""
    for value in values:
        watermark = WatermarkFile(store, FILES)
        watermark.publish(PhysicalOffset(value))
        watermark.sync()
        watermark.close()
    return (store / WATERMARK_PATH).read_bytes()


def test_the_slot_is_laid_out_as_documented() -> None:
    """Magic, version, value, CRC: a reader in another language needs no more."""
    slot = encode_slot(PhysicalOffset(0x0102030405060708))
    assert slot[:16] == b"CBWM" + bytes.fromhex("00000001 0102030405060708")
    assert len(slot) == 20
    assert decode_slot(slot) == 0x0102030405060708


def test_a_slot_with_any_byte_changed_is_refused() -> None:
    """A torn write never passes for a watermark."""
    slot = encode_slot(PhysicalOffset(123_456_789))
    for at in range(len(slot)):
        for flip in (0x01, 0x80, 0xFF):
            damaged = bytearray(slot)
            damaged[at] ^= flip
            assert decode_slot(bytes(damaged)) is None
    for length in range(len(slot)):
        assert decode_slot(slot[:length]) is None


def test_a_negative_watermark_is_refused() -> None:
    """Even with a good CRC."""
    assert decode_slot(encode_slot(PhysicalOffset(-1))) is None


def test_a_store_without_the_file_has_no_watermark(tmp_path: Path) -> None:
    """As every store that RocketMQ wrote."""
    assert read_durable_watermark(tmp_path, FILES) is None


def test_what_was_published_is_read_by_others_at_once(tmp_path: Path) -> None:
    """No flush is needed for another process to see it."""
    watermark = WatermarkFile(tmp_path, FILES)
    assert read_durable_watermark(tmp_path, FILES) is None
    for value in (0, 1, 5000, 5000, 1 << 40):
        watermark.publish(PhysicalOffset(value))
        assert watermark.value == value
        assert read_durable_watermark(tmp_path, FILES) == value
    watermark.close()


def test_the_last_but_one_survives_a_torn_write(tmp_path: Path) -> None:
    """Whichever slot is destroyed, what remains is one of the last two values."""
    data = publish(tmp_path, 10, 20, 30, 40)
    assert len(data) == FILE_BYTES
    assert decode_watermark(data) == 40
    assert sorted(
        (decode_watermark(bytes(512) + data[512:]) or 0, decode_watermark(data[:512]) or 0)
    ) == [30, 40]


def test_a_file_cut_short_is_made_whole_again(tmp_path: Path) -> None:
    """Both slots have their blocks, so that no later write finds the disk full."""
    publish(tmp_path, 10, 20)
    path = tmp_path / WATERMARK_PATH
    path.write_bytes(path.read_bytes()[:100])
    assert read_durable_watermark(tmp_path, FILES) == 10
    publish(tmp_path, 30)
    assert read_durable_watermark(tmp_path, FILES) == 30
    assert path.stat().st_size == FILE_BYTES


def test_a_directory_in_its_place_is_named(tmp_path: Path) -> None:
    """No traceback from the depth of the file system."""
    (tmp_path / WATERMARK_PATH).mkdir(parents=True)
    with pytest.raises(NotAStoreError, match="watermark is a directory"):
        WatermarkFile(tmp_path, FILES)


def test_a_file_that_cannot_be_synced_is_named(tmp_path: Path) -> None:
    """It is the flush of a store that has failed."""
    files: Any = FailingFileSystem()
    watermark = WatermarkFile(tmp_path, files)
    files.fails["sync_data"] = errno.EIO
    with pytest.raises(FlushFailedError) as caught:
        watermark.sync()
    assert caught.value.path == tmp_path / WATERMARK_PATH
    files.fails.clear()
    watermark.close()


def test_a_watermark_that_cannot_be_written_is_a_failed_flush(tmp_path: Path) -> None:
    """The one before it stays what others read, and the file's own."""
    files: Any = FailingFileSystem()
    watermark = WatermarkFile(tmp_path, files)
    watermark.publish(PhysicalOffset(10))
    files.fails["pwrite"] = errno.EIO
    with pytest.raises(FlushFailedError) as caught:
        watermark.publish(PhysicalOffset(20))
    assert caught.value.path == tmp_path / WATERMARK_PATH
    assert watermark.value == read_durable_watermark(tmp_path, FILES) == 10
    files.fails.clear()
    watermark.publish(PhysicalOffset(30))
    assert watermark.value == read_durable_watermark(tmp_path, FILES) == 30
    watermark.close()


def test_the_file_is_not_mapped_and_a_failed_read_is_named(tmp_path: Path) -> None:
    """A mapped page that the disk does not give back is a SIGBUS, at any time."""
    publish(tmp_path, 10)
    files: Any = UnreadableFileSystem()
    watermark = WatermarkFile(tmp_path, files)
    files.spoil(tmp_path / WATERMARK_PATH, 0)
    watermark.publish(PhysicalOffset(20))
    assert watermark.value == 20
    watermark.close()
    assert files.mapped == []
    for open_ in (WatermarkFile, read_durable_watermark):
        with pytest.raises(ReadFailedError) as caught:
            open_(tmp_path, files)
        assert caught.value.path == tmp_path / WATERMARK_PATH
