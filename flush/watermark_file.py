"""The durable watermark: up to where the log survived an fdatasync, in a small file of our own.

Recovery tells a torn write from damage by it, and readers in other processes (Spark) know from it
how far the log may be read. It is written only after the fdatasync that it reports. It may lag
behind the truth (nothing syncs this file with every flush), but never run ahead of it.

```
STORE/commitbus/watermark, 1024 bytes, big-endian: two slots, 512 bytes apart
      0       4        8                16       20            512
      +-------+--------+----------------+--------+--- zeros ---+
      | magic |version | watermark      | CRC-32 |             |   the same again at 512
      | CBWM  |u32 = 1 | i64, bytes     | of 0-16|             |
      +-------+--------+----------------+--------+-------------+
```
Writes alternate between the slots, so the one before the last is intact whenever a write is torn;
a sector is 512 bytes, so that a power cut cannot tear both. The greater valid value counts: the
watermark never goes back.

The file is written with `pwrite`, which survives the process as a mapped store does. It takes 2 us
once per flush; a mapped page that was evicted and cannot be read back would end the process.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final, final

from isal import isal_zlib

from commitbus.commitlog.errors import FlushFailedError, NotAStoreError
from commitbus.commitlog.file_system import FileSystem, read_at
from commitbus.commitlog.types import PhysicalOffset

WATERMARK_PATH: Final = Path("commitbus", "watermark")
"""Relative to the store."""
FILE_BYTES: Final = 1024
VERSION: Final = 1
_MAGIC: Final = b"CBWM"
_SLOT_POSITIONS: Final = (0, 512)
_SLOT: Final = struct.Struct(">4sIqI")
_CHECKED_BYTES: Final = 16


def encode_slot(watermark: PhysicalOffset) -> bytes:
    """Return the 20 bytes of a slot."""
    checked = _SLOT.pack(_MAGIC, VERSION, watermark, 0)[:_CHECKED_BYTES]
    return checked + isal_zlib.crc32(checked).to_bytes(4, "big")


def decode_slot(slot: bytes | memoryview) -> PhysicalOffset | None:
    """Return the watermark of a slot, None if the slot was never written or is torn."""
    if len(slot) < _SLOT.size:
        return None
    magic, version, value, crc = _SLOT.unpack_from(slot)
    intact = crc == isal_zlib.crc32(slot[:_CHECKED_BYTES])
    if magic != _MAGIC or version != VERSION or not intact or value < 0:
        return None
    return PhysicalOffset(value)


def decode_watermark(data: bytes | memoryview) -> PhysicalOffset | None:
    """Return the watermark in the bytes of the file, None if neither slot holds one."""
    slots = (decode_slot(data[at : at + _SLOT.size]) for at in _SLOT_POSITIONS)
    return max((value for value in slots if value is not None), default=None)


def read_durable_watermark(store: Path, file_system: FileSystem) -> PhysicalOffset | None:
    """Return the watermark of a store, from any process; None if it has none, as RocketMQ's have.

    Raises:
        OSError: The file is there and cannot be opened.
        ReadFailedError: The disk does not give back its bytes.
    """
    path = store / WATERMARK_PATH
    if not file_system.exists(path):
        return None
    file = file_system.open(path, writable=False)
    try:
        return decode_watermark(read_at(file, FILE_BYTES, 0))
    finally:
        file.close()


@final
class WatermarkFile:
    """The writer's side. One thread at a time; no copy of this object in another process."""

    __slots__ = ("_file", "_slot", "_values")

    def __init__(self, store: Path, file_system: FileSystem) -> None:
        """Open the file, creating it with real blocks: no later write can find the disk full.

        Raises:
            NotAStoreError: Something else lies where the file should be.
            OSError: It cannot be created, for instance because the disk is full.
            ReadFailedError: The disk does not give back its bytes.
        """
        path = store / WATERMARK_PATH
        if file_system.is_directory(path):
            raise NotAStoreError(store, f"{WATERMARK_PATH} is a directory")
        file_system.make_directories(path.parent)
        self._file = file_system.open(path, create=True)
        try:
            if self._file.size() != FILE_BYTES:
                self._file.allocate(0, FILE_BYTES)
                self._file.truncate(FILE_BYTES)
            data = read_at(self._file, FILE_BYTES, 0)
        except BaseException:
            self._file.close()
            raise
        self._values = [decode_slot(data[at : at + _SLOT.size]) for at in _SLOT_POSITIONS]
        first, second = (-1 if value is None else value for value in self._values)
        self._slot = 1 if first > second else 0

    @property
    def value(self) -> PhysicalOffset | None:
        """The watermark as the file has it."""
        return max((value for value in self._values if value is not None), default=None)

    def publish(self, watermark: PhysicalOffset) -> None:
        """Store a watermark that an fdatasync has made true. Survives the process at once.

        Raises:
            FlushFailedError: It could not be written. The slot before it is still valid.
        """
        try:
            self._file.pwrite(encode_slot(watermark), _SLOT_POSITIONS[self._slot])
        except OSError as error:
            raise FlushFailedError(self._file.path, error) from error
        self._values[self._slot] = watermark
        self._slot ^= 1

    def sync(self) -> None:
        """Make the file itself durable. A loss would only lower the watermark.

        Raises:
            FlushFailedError: It failed. Never try again.
        """
        try:
            self._file.sync_data()
        except OSError as error:
            raise FlushFailedError(self._file.path, error) from error

    def close(self) -> None:
        """Close the file; does not sync."""
        self._file.close()
