"""RocketMQ's checkpoint file: up to which store time the log, the queues and the index are durable.

```
STORE/checkpoint, 4096 bytes, big-endian
   0                8                16               24               32               40     4096
   +----------------+----------------+----------------+----------------+----------------+-- 0 --+
   | physic_msg_    | logics_msg_    | index_msg_     | master_        | confirm_phy_   | zeros |
   | timestamp      | timestamp      | timestamp      | flushed_offset | offset         |       |
   | i64 ms: log    | i64 ms: queues | i64 ms: index  | i64            | i64            |       |
   +----------------+----------------+----------------+----------------+----------------+-------+
```
After an unclean stop recovery starts at the newest log file whose first record is not younger than
the smaller of the first two, so a timestamp must never promise more than was flushed. The last two
belong to RocketMQ's replication and are 0 on a broker without it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from commitbus.commitlog.errors import FlushFailedError, NotAStoreError
from commitbus.commitlog.file_system import FileSystem
from commitbus.flush.flushed_offsets import FlushedOffsets, FlushedOffsetsFile

CHECKPOINT_NAME: Final = "checkpoint"
FILE_BYTES: Final = 4096
_MARGIN_MS: Final = 3000
_ANY_OFFSET: Final = 1 << 62
_FIELDS: Final = struct.Struct(">qqqqq")


@final
@dataclass(frozen=True, slots=True)
class StoreCheckpoint:
    """The five numbers of the file. All 0 where nothing is vouched for."""

    physic_msg_timestamp: int = 0
    """Store time of the newest message that is durable in the log."""
    logics_msg_timestamp: int = 0
    """Store time of the newest message that is durable in its consume queue."""
    index_msg_timestamp: int = 0
    """Store time up to which full, flushed index files reach."""
    master_flushed_offset: int = 0
    confirm_phy_offset: int = 0

    @property
    def trusted_timestamp(self) -> int:
        """What both the log and the queues vouch for: recovery begins at or before it.

        Three seconds less than the smaller one, as in RocketMQ, whose own logics timestamp moves
        when a unit is written, up to a second before that is flushed.
        """
        return max(0, min(self.physic_msg_timestamp, self.logics_msg_timestamp) - _MARGIN_MS)

    def encode(self) -> bytes:
        """Return the 40 bytes at the start of the file."""
        return _FIELDS.pack(
            self.physic_msg_timestamp,
            self.logics_msg_timestamp,
            self.index_msg_timestamp,
            self.master_flushed_offset,
            self.confirm_phy_offset,
        )


def decode_checkpoint(data: bytes) -> StoreCheckpoint | None:
    """Return the checkpoint in the bytes of the file; None if they are too few or make no sense."""
    if len(data) < _FIELDS.size:
        return None
    fields = _FIELDS.unpack_from(data)
    return StoreCheckpoint(*fields) if min(fields) >= 0 else None


def read_checkpoint(store: Path, file_system: FileSystem) -> StoreCheckpoint | None:
    """Return the checkpoint of a store, None if there is none that makes sense.

    Raises:
        OSError: The file is there and cannot be read.
    """
    path = store / CHECKPOINT_NAME
    if not file_system.exists(path) or file_system.is_directory(path):
        return None
    file = file_system.open(path, writable=False)
    try:
        return decode_checkpoint(file.pread(_FIELDS.size, 0))
    finally:
        file.close()


@final
class CheckpointFile:
    """Writes the checkpoint and the physical offsets beside it. One thread at a time."""

    __slots__ = ("_file", "_flushed")

    def __init__(self, store: Path, file_system: FileSystem) -> None:
        """Open both files, creating them with zeros, allocated: `save` needs no more room.

        Raises:
            NotAStoreError: Something else lies where the file should be.
            OSError: It cannot be created, for instance because the disk is full.
        """
        path = store / CHECKPOINT_NAME
        if file_system.is_directory(path):
            raise NotAStoreError(store, f"{CHECKPOINT_NAME} is a directory")
        self._file = file_system.open(path, create=True)
        try:
            if self._file.size() != FILE_BYTES:
                self._file.allocate(0, FILE_BYTES)
                self._file.truncate(FILE_BYTES)
            self._flushed = FlushedOffsetsFile(store, file_system)
        except BaseException:
            self._file.close()
            raise

    def save(self, checkpoint: StoreCheckpoint, flushed: FlushedOffsets | None = None) -> None:
        """Write and fdatasync. 40 bytes lie in one sector, so a power cut cannot tear them.

        Args:
            checkpoint: Timestamps up to which it vouches.
            flushed: The same as physical offsets. Without them, the old offsets are withdrawn.

        Raises:
            FlushFailedError: It failed. Never try again.
        """
        # First: the offsets count only together with this checkpoint.
        if flushed is None:
            self._flushed.lower()
        else:
            self._flushed.save(flushed, checkpoint)
        try:
            self._file.pwrite(checkpoint.encode(), 0)
            self._file.sync_data()
        except OSError as error:
            raise FlushFailedError(self._file.path, error) from error

    def lower_offsets(self, *, queues_end: int = _ANY_OFFSET, index_end: int = _ANY_OFFSET) -> None:
        """Lower the durable offsets to at most these; the timestamps stay.

        Called before the files behind them are derived anew. Timestamps do not suffice where all
        are the same because a clock was ahead.

        Raises:
            FlushFailedError: It failed. Never try again.
        """
        self._flushed.lower(queues_end, index_end)

    def close(self) -> None:
        """Close; `save` has synced."""
        self._flushed.close()
        self._file.close()
