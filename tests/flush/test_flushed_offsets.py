"""The note beside the checkpoint: what it says, and when it says nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from commitbus.commitlog.file_system import RealFileSystem
from commitbus.commitlog.types import PhysicalOffset
from commitbus.flush.checkpoint import StoreCheckpoint
from commitbus.flush.flushed_offsets import (
    FILE_BYTES,
    FLUSHED_PATH,
    FlushedOffsets,
    FlushedOffsetsFile,
    decode_slot,
    encode_slot,
    read_flushed_offsets,
)

FILES = RealFileSystem()
FIRST, SECOND = StoreCheckpoint(1000, 1000, 10), StoreCheckpoint(2000, 2000, 20)
DURABLE = PhysicalOffset(1000)


def offsets(queues_end: int, index_end: int = 0) -> FlushedOffsets:
    return FlushedOffsets(PhysicalOffset(queues_end), PhysicalOffset(index_end))


@pytest.fixture
def file(tmp_path: Path) -> Iterator[FlushedOffsetsFile]:
    file = FlushedOffsetsFile(tmp_path, FILES)
    yield file
    file.close()


def read(store: Path, checkpoint: StoreCheckpoint, durable: int | None = 1000) -> int | None:
    watermark = None if durable is None else PhysicalOffset(durable)
    found = read_flushed_offsets(store, checkpoint, watermark, FILES)
    return found.queues_end if found else None


def test_it_counts_with_its_own_checkpoint_only(tmp_path: Path, file: FlushedOffsetsFile) -> None:
    """The one before is still there: the kill may have come before the checkpoint was saved."""
    assert read(tmp_path, FIRST) is None
    file.save(offsets(100), FIRST)
    file.save(offsets(200), SECOND)
    assert read(tmp_path, FIRST) == 100
    assert read(tmp_path, SECOND) == 200
    assert read(tmp_path, StoreCheckpoint(2000, 1999, 20)) is None
    assert (tmp_path / FLUSHED_PATH).stat().st_size == FILE_BYTES


def test_of_checkpoints_with_one_time_the_later_counts(
    tmp_path: Path, file: FlushedOffsetsFile
) -> None:
    """A clock that was ahead gives all of them one time."""
    for queues_end in (100, 200, 300):
        file.save(offsets(queues_end), FIRST)
        assert read(tmp_path, FIRST) == queues_end


def test_the_older_slot_is_written_first_after_a_start(
    tmp_path: Path, file: FlushedOffsetsFile
) -> None:
    """Should that write be torn, the newest is still there."""
    for queues_end, checkpoint in ((100, FIRST), (200, SECOND)):
        file.save(offsets(queues_end), checkpoint)
        again = FlushedOffsetsFile(tmp_path, FILES)
        again.save(offsets(300), StoreCheckpoint(3000, 3000, 0))
        again.close()
        assert read(tmp_path, checkpoint) == queues_end


def test_it_says_nothing_without_what_it_relies_on(
    tmp_path: Path, file: FlushedOffsetsFile
) -> None:
    """Without a watermark, with one that is behind, and about a checkpoint that says nothing."""
    file.save(offsets(100), FIRST)
    assert read(tmp_path, FIRST, 100) == 100
    assert read(tmp_path, FIRST, 99) is None
    assert read(tmp_path, FIRST, None) is None
    file.save(offsets(100), StoreCheckpoint())
    assert read(tmp_path, StoreCheckpoint()) is None
    (tmp_path / FLUSHED_PATH).unlink()
    assert read(tmp_path, FIRST) is None


def test_it_can_be_taken_back(tmp_path: Path, file: FlushedOffsetsFile) -> None:
    """As far as what it vouches for is about to be changed, in both slots and after a start too."""
    file.save(offsets(100, 90), FIRST)
    file.save(offsets(200, 90), FIRST)
    again = FlushedOffsetsFile(tmp_path, FILES)
    again.lower(150, 200)
    assert read_flushed_offsets(tmp_path, FIRST, DURABLE, FILES) == offsets(150, 90)
    again.lower(50, 10)
    again.close()
    assert read_flushed_offsets(tmp_path, FIRST, DURABLE, FILES) == offsets(50, 10)
    file.lower()
    assert read(tmp_path, FIRST) is None
    file.save(offsets(50), FIRST)
    assert read(tmp_path, FIRST) == 50


def test_a_slot_that_is_torn_anywhere_is_none() -> None:
    whole = encode_slot(offsets(1 << 40, 1 << 39), FIRST)
    assert decode_slot(whole) == (offsets(1 << 40, 1 << 39), (1000, 1000, 10))
    for end in range(len(whole)):
        assert decode_slot(whole[:end]) is None
    for position in range(len(whole)):
        assert (
            decode_slot(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
            is None
        )
