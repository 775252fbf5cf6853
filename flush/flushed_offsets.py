"""The physical offsets up to which queues and index are durable, beside the checkpoint.

RocketMQ's checkpoint has store timestamps for this. After a clock was ahead they stay the same
until the time has caught up: an unclean stop in between would check and derive all messages since
again.
Physical offsets always rise.

```
STORE/commitbus/flushed, 1024 bytes, big-endian: two slots, 512 bytes apart
   0       4        8            16           24           32           40           48       52
   +-------+--------+------------+------------+------------+------------+------------+--------+---
   | magic |version | queues_end | index_end  | physic_msg_| logics_msg_| index_msg_ | CRC-32 | 0
   | CBFL  |u32 = 1 | i64        | i64        | timestamp  | timestamp  | timestamp  | of 0-48|
   +-------+--------+------------+------------+------------+------------+------------+--------+---
```
A slot counts only together with the checkpoint that it was written for, whose timestamps it
repeats: not if RocketMQ has used the store since, and not if the checkpoint was lowered to rebuild
the queues. Writes alternate between the slots, so a torn one leaves the other.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, final

from isal import isal_zlib

from commitbus.commitlog.errors import FlushFailedError
from commitbus.commitlog.file_system import File, FileSystem
from commitbus.commitlog.types import PhysicalOffset

if TYPE_CHECKING:
    from commitbus.flush.checkpoint import StoreCheckpoint

FLUSHED_PATH: Final = Path("commitbus", "flushed")
"""Relative to the store."""
FILE_BYTES: Final = 1024
VERSION: Final = 1
_MAGIC: Final = b"CBFL"
_SLOT_POSITIONS: Final = (0, 512)
_SLOT: Final = struct.Struct(">4sIqqqqq")
_CRC_BYTES: Final = 4


@final
class FlushedOffsets(NamedTuple):
    """Physical offsets up to which a checkpoint vouches for queues and index."""

    queues_end: PhysicalOffset
    """The log below it is durable, and so is every consume queue unit of it."""
    index_end: PhysicalOffset
    """Full index files that end at or before it are durable."""


def encode_slot(offsets: FlushedOffsets, checkpoint: StoreCheckpoint) -> bytes:
    """Return the bytes of a slot."""
    return _encode(offsets, _timestamps(checkpoint))


def _encode(offsets: FlushedOffsets, timestamps: tuple[int, ...]) -> bytes:
    checked = _SLOT.pack(_MAGIC, VERSION, *offsets, *timestamps)
    return checked + isal_zlib.crc32(checked).to_bytes(_CRC_BYTES, "big")


def decode_slot(slot: bytes) -> tuple[FlushedOffsets, tuple[int, ...]] | None:
    """Return what a slot says and the timestamps of its checkpoint; None if it is none, or torn."""
    checked, crc = slot[: _SLOT.size], slot[_SLOT.size : _SLOT.size + _CRC_BYTES]
    if len(crc) < _CRC_BYTES or isal_zlib.crc32(checked) != int.from_bytes(crc, "big"):
        return None
    magic, version, queues_end, index_end, *timestamps = _SLOT.unpack(checked)
    if magic != _MAGIC or version != VERSION or min(queues_end, index_end) < 0:
        return None
    offsets = FlushedOffsets(PhysicalOffset(queues_end), PhysicalOffset(index_end))
    return offsets, tuple(timestamps)


def _timestamps(checkpoint: StoreCheckpoint) -> tuple[int, int, int]:
    return (
        checkpoint.physic_msg_timestamp,
        checkpoint.logics_msg_timestamp,
        checkpoint.index_msg_timestamp,
    )


def read_flushed_offsets(
    store: Path,
    checkpoint: StoreCheckpoint,
    durable_watermark: PhysicalOffset | None,
    file_system: FileSystem,
) -> FlushedOffsets | None:
    """Return what was written for this checkpoint of a store, None if nothing was.

    None, too, if the checkpoint vouches for nothing. The watermark was durable before the offsets
    were written: if it is lost, or behind them, another program has changed the store.

    Raises:
        OSError: The file is there and cannot be read.
    """
    path = store / FLUSHED_PATH
    if durable_watermark is None or not checkpoint.physic_msg_timestamp:
        return None
    if not file_system.exists(path):
        return None
    file = file_system.open(path, writable=False)
    try:
        slots = _slots_of(file)
    finally:
        file.close()
    # If both fit, the later one counts: offsets only rise.
    fitting = (slot[0] for slot in slots if slot and slot[1] == _timestamps(checkpoint))
    offsets = max(fitting, default=None)
    return offsets if offsets and 0 < offsets.queues_end <= durable_watermark else None


def _slots_of(file: File) -> list[tuple[FlushedOffsets, tuple[int, ...]] | None]:
    data = file.pread(FILE_BYTES, 0)
    return [decode_slot(data[at : at + _SLOT.size + _CRC_BYTES]) for at in _SLOT_POSITIONS]


@final
class FlushedOffsetsFile:
    """Writes the offsets. One thread at a time."""

    __slots__ = ("_file", "_slot")

    def __init__(self, store: Path, file_system: FileSystem) -> None:
        """Open the file, creating it with its block allocated: `save` needs no more room.

        Raises:
            OSError: It cannot be created, for instance because the disk is full.
        """
        path = store / FLUSHED_PATH
        file_system.make_directories(path.parent)
        self._file = file_system.open(path, create=True)
        try:
            if self._file.size() != FILE_BYTES:
                self._file.allocate(0, FILE_BYTES)
                self._file.truncate(FILE_BYTES)
            first, second = (slot[0].queues_end if slot else -1 for slot in _slots_of(self._file))
        except BaseException:
            self._file.close()
            raise
        self._slot = 1 if first > second else 0

    def save(self, offsets: FlushedOffsets, checkpoint: StoreCheckpoint) -> None:
        """Write the offsets of a checkpoint that is about to be saved, and fdatasync.

        Raises:
            FlushFailedError: It failed. Never try again.
        """
        try:
            self._file.pwrite(encode_slot(offsets, checkpoint), _SLOT_POSITIONS[self._slot])
            self._file.sync_data()
        except OSError as error:
            raise FlushFailedError(self._file.path, error) from error
        self._slot ^= 1

    def lower(self, queues_end: int = 0, index_end: int = 0) -> None:
        """Lower both slots to at most these offsets, durably.

        Raises:
            FlushFailedError: It failed. Never try again.
        """
        lowered = {}
        for position, slot in zip(_SLOT_POSITIONS, _slots_of(self._file), strict=True):
            if slot is not None and (
                slot[0].queues_end > queues_end or slot[0].index_end > index_end
            ):
                offsets = FlushedOffsets(
                    PhysicalOffset(min(slot[0].queues_end, queues_end)),
                    PhysicalOffset(min(slot[0].index_end, index_end)),
                )
                lowered[position] = _encode(offsets, slot[1])
        if not lowered:
            return
        try:
            for position, data in lowered.items():
                self._file.pwrite(data, position)
            self._file.sync_data()
        except OSError as error:
            raise FlushFailedError(self._file.path, error) from error

    def close(self) -> None:
        """Close; `save` has synced."""
        self._file.close()
