"""RocketMQ's checkpoint file."""

from __future__ import annotations

import errno
import tarfile
from pathlib import Path
from typing import Any

import pytest

from commitbus.commitlog.errors import FlushFailedError, NotAStoreError
from commitbus.commitlog.file_system import RealFileSystem
from commitbus.commitlog.types import PhysicalOffset
from commitbus.flush.checkpoint import (
    CHECKPOINT_NAME,
    FILE_BYTES,
    CheckpointFile,
    StoreCheckpoint,
    decode_checkpoint,
    read_checkpoint,
)
from commitbus.flush.flushed_offsets import FlushedOffsets, read_flushed_offsets
from tests.failing_files import FailingFileSystem

FILES = RealFileSystem()
CHECKPOINT = StoreCheckpoint(1_795_000_000_123, 1_795_000_000_100, 1_795_000_000_000, 7, 9)


def test_what_was_saved_is_read_again(tmp_path: Path) -> None:
    """And the file has RocketMQ's size."""
    file = CheckpointFile(tmp_path, FILES)
    assert read_checkpoint(tmp_path, FILES) == StoreCheckpoint()
    file.save(CHECKPOINT)
    file.close()
    assert read_checkpoint(tmp_path, FILES) == CHECKPOINT
    data = (tmp_path / CHECKPOINT_NAME).read_bytes()
    assert len(data) == FILE_BYTES
    assert data[40:] == bytes(FILE_BYTES - 40)


def test_recovery_trusts_the_older_of_log_and_queues() -> None:
    """Index files are not part of it: they are rebuilt on their own."""
    assert CHECKPOINT.trusted_timestamp == 1_795_000_000_100 - 3000
    assert StoreCheckpoint(9000, 3005, 1).trusted_timestamp == 5
    assert StoreCheckpoint(9000, 0, 9000).trusted_timestamp == 0


def test_a_store_without_the_file_vouches_for_nothing(tmp_path: Path) -> None:
    """None, so that the caller decides."""
    assert read_checkpoint(tmp_path, FILES) is None


def test_bytes_that_make_no_sense_are_no_checkpoint() -> None:
    """Too short, or a time before 1970."""
    data = CHECKPOINT.encode()
    for length in range(len(data)):
        assert decode_checkpoint(data[:length]) is None
    assert decode_checkpoint(b"\xff" + data[1:]) is None
    assert decode_checkpoint(data + b"\xff" * 100) == CHECKPOINT


def test_a_directory_in_its_place_is_named(tmp_path: Path) -> None:
    """For the writer; a reader sees no checkpoint."""
    (tmp_path / CHECKPOINT_NAME).mkdir()
    assert read_checkpoint(tmp_path, FILES) is None
    with pytest.raises(NotAStoreError, match="checkpoint is a directory"):
        CheckpointFile(tmp_path, FILES)


@pytest.mark.parametrize("operation", ["pwrite", "sync_data"])
def test_a_file_that_cannot_be_saved_is_named(tmp_path: Path, operation: str) -> None:
    """It is the flush of a store that has failed."""
    files: Any = FailingFileSystem()
    file = CheckpointFile(tmp_path, files)
    files.fails[operation] = errno.EIO
    with pytest.raises(FlushFailedError) as caught:
        file.save(CHECKPOINT)
    assert caught.value.path == tmp_path / CHECKPOINT_NAME
    files.fails.clear()
    file.close()


@pytest.mark.shared
def test_rocketmqs_own_file_is_read(shared_dir: Path) -> None:
    """The file of a RocketMQ 5.4.0 broker that was stopped cleanly."""
    with tarfile.open(shared_dir / "fixtures" / "broker-store.tar.gz") as archive:
        member = archive.extractfile("store/checkpoint")
        assert member is not None
        data = member.read()
    assert len(data) == FILE_BYTES
    checkpoint = decode_checkpoint(data)
    assert checkpoint == StoreCheckpoint(
        physic_msg_timestamp=0x1A1FCD1CE1D,
        logics_msg_timestamp=0x1A1FCD1CFE2,
        index_msg_timestamp=0x1A1FCD18E2D,
    )
    assert checkpoint.encode() == data[:40]


def test_offsets_are_taken_back_with_a_checkpoint_that_has_none(tmp_path: Path) -> None:
    """Such a one is saved before what was flushed is derived anew; its times may be the same."""
    file = CheckpointFile(tmp_path, FILES)
    checkpoint, durable = StoreCheckpoint(1000, 1000, 10), PhysicalOffset(200)
    file.save(checkpoint, FlushedOffsets(PhysicalOffset(100), PhysicalOffset(50)))
    assert read_flushed_offsets(tmp_path, checkpoint, durable, FILES) is not None
    file.lower_offsets(queues_end=60)
    lowered = FlushedOffsets(PhysicalOffset(60), PhysicalOffset(50))
    assert read_flushed_offsets(tmp_path, checkpoint, durable, FILES) == lowered
    file.save(checkpoint)
    file.close()
    assert read_checkpoint(tmp_path, FILES) == checkpoint
    assert read_flushed_offsets(tmp_path, checkpoint, durable, FILES) is None
