"""The thread that saves checkpoints, and what they promise."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from commitbus.broker.store.checkpoint_service import CheckpointService
from commitbus.broker.store.reput import DispatchedTo
from commitbus.commitlog.errors import (
    DiskFullError,
    FlushFailedError,
    OutOfResourcesError,
    StoreError,
)
from commitbus.commitlog.file_system import RealFileSystem
from commitbus.commitlog.types import PhysicalOffset
from commitbus.flush.checkpoint import CheckpointFile, StoreCheckpoint, read_checkpoint
from commitbus.flush.flushed_offsets import (
    FlushedOffsets,
    read_flushed_offsets,
)
from commitbus.flush.watermark_file import WatermarkFile

PATIENCE_S = 20
FILES = RealFileSystem()


class Surroundings:
    """Queues, index, log and reput of a checkpoint service, as calls in the order they came."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.calls: list[str] = []
        self.dispatched = DispatchedTo(PhysicalOffset(100), 1111)
        self.failure: StoreError | None = None
        self.saved, self.failed = threading.Event(), threading.Event()
        self.failures: list[StoreError] = []
        self.states_saved_for = -1
        self.last_full_timestamp, self.last_full_offset = 99, PhysicalOffset(90)
        durable: Any = self
        self.service = CheckpointService(
            CheckpointFile(directory, FILES),
            WatermarkFile(directory, FILES),
            queues=self,
            index=self,
            dispatched_to=lambda: self.dispatched,
            durable=durable,
            interval_ms=1,
            on_failure=self.fail,
        )

    def fail(self, failure: StoreError) -> None:
        """Note that the service failed."""
        self.failures.append(failure)
        self.failed.set()

    def flush(self) -> None:
        """Fail, or be the flush of queues or index; meanwhile reput goes on."""
        if self.failure is not None:
            raise self.failure
        self.calls.append("flush")
        self.dispatched = DispatchedTo(PhysicalOffset(200), 2222)

    def save_states(self, queues_end: PhysicalOffset) -> None:
        """Note for which checkpoint it is."""
        self.states_saved_for = queues_end

    def settle(self, _count: int) -> bool:
        """Say that all queues are looked at."""
        return False

    def wait(self, end: PhysicalOffset) -> bool:
        """Note what was waited for."""
        self.calls.append(f"durable {end}")
        self.saved.set()
        return True

    @property
    def checkpoint(self) -> StoreCheckpoint | None:
        """What is in the file."""
        return read_checkpoint(self.directory, FILES)


@pytest.fixture
def surroundings(tmp_path: Path) -> Iterator[Surroundings]:
    """A service that is stopped at the end."""
    surroundings = Surroundings(tmp_path)
    yield surroundings
    surroundings.service.stop()


def test_it_promises_what_was_dispatched_before_the_flushes(surroundings: Surroundings) -> None:
    """What came during them may have missed them; the log must be as far, too."""
    surroundings.service.save()
    assert surroundings.calls == ["flush", "flush", "durable 100"]
    assert surroundings.checkpoint == StoreCheckpoint(1111, 1111, 99)
    surroundings.service.save()
    assert surroundings.checkpoint == StoreCheckpoint(2222, 2222, 99)


def test_it_saves_within_the_interval_when_asked(surroundings: Surroundings) -> None:
    """And not unasked: an idle store wakes nobody."""
    surroundings.service.start()
    assert not surroundings.saved.wait(0.02)
    surroundings.service.request()
    assert surroundings.saved.wait(PATIENCE_S)
    surroundings.service.stop()
    assert surroundings.checkpoint == StoreCheckpoint(1111, 1111, 99)


def test_a_failed_flush_is_told_and_promises_nothing(surroundings: Surroundings) -> None:
    """The file stays as it was."""
    surroundings.failure = FlushFailedError(Path("queue"), OSError(errno.EIO, "I/O error"))
    surroundings.service.start()
    surroundings.service.request()
    assert surroundings.failed.wait(PATIENCE_S)
    assert surroundings.failures == [surroundings.failure]
    assert surroundings.checkpoint == StoreCheckpoint()


@pytest.mark.parametrize(
    "refusal",
    [
        DiskFullError(Path("index"), 4096),
        OutOfResourcesError(Path("queue"), OSError(errno.EMFILE, "too many open files")),
    ],
)
def test_a_checkpoint_without_room_is_put_off(
    surroundings: Surroundings, refusal: StoreError
) -> None:
    """No flush has failed, and no thread died: it is saved when there is room."""
    surroundings.failure = refusal
    surroundings.service.start()
    surroundings.service.request()
    assert not surroundings.saved.wait(0.05)
    surroundings.failure = None
    assert surroundings.saved.wait(PATIENCE_S)
    surroundings.service.stop()
    assert surroundings.failures == []
    assert surroundings.checkpoint == StoreCheckpoint(1111, 1111, 99)


def test_an_index_of_later_timestamps_vouches_for_nothing(surroundings: Surroundings) -> None:
    """Retention let go what was stored while the clock was ahead: later timestamps are lower."""
    surroundings.last_full_timestamp = 1112
    surroundings.service.save()
    assert surroundings.checkpoint == StoreCheckpoint(1111, 1111, 0)


def test_it_notes_physical_offsets_with_the_checkpoint(surroundings: Surroundings) -> None:
    """Those of before the flushes, as the timestamps."""
    surroundings.service.save()
    found = read_flushed_offsets(
        surroundings.directory, StoreCheckpoint(1111, 1111, 99), PhysicalOffset(100), FILES
    )
    assert found == FlushedOffsets(PhysicalOffset(100), PhysicalOffset(90))


def test_a_checkpoint_without_descriptors_is_put_off(surroundings: Surroundings) -> None:
    """It was taken for a failed flush, which made the store read-only for good."""
    surroundings.failure = OutOfResourcesError(Path("q"), OSError(errno.EMFILE, "Too many"))
    surroundings.service.start()
    surroundings.service.request()
    assert not surroundings.saved.wait(0.1)
    surroundings.failure = None
    assert surroundings.saved.wait(PATIENCE_S)
    assert surroundings.failures == []
