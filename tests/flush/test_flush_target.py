"""A flush of the log and what is noted of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from commitbus.commitlog.errors import FlushFailedError
from commitbus.commitlog.file_system import RealFileSystem
from commitbus.commitlog.types import PhysicalOffset
from commitbus.flush.flush_service import FlushService
from commitbus.flush.flush_target import LocalDisk
from commitbus.flush.policy import FlushMode, FlushPolicy
from commitbus.flush.watermark import Watermark
from commitbus.flush.watermark_file import WatermarkFile, read_durable_watermark

FILES = RealFileSystem()
PATIENCE_S = 20


class FakeLog:
    """A log that is durable as soon as it is asked to be."""

    end = PhysicalOffset(10)

    def flush(self) -> PhysicalOffset:
        return self.end


def test_the_watermark_is_in_its_file_before_anybody_is_told(tmp_path: Path) -> None:
    """A reader in another process must find what a producer was promised."""
    log: Any = FakeLog()
    file, durable = WatermarkFile(tmp_path, FILES), Watermark(PhysicalOffset(0))
    heard: list[tuple[int, int | None]] = []
    durable.listen(lambda end: heard.append((end, read_durable_watermark(tmp_path, FILES))))
    service = FlushService(LocalDisk(log, file), FlushPolicy(FlushMode.SYNC_FLUSH), durable)
    service.start()
    service.request(10)
    assert durable.wait(PhysicalOffset(10), PATIENCE_S)
    service.stop()
    file.close()
    assert heard == [(10, 10)]


def test_a_watermark_that_cannot_be_stored_is_a_failed_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiters get an error: readers and recovery would not know that the bytes are durable."""
    log: Any = FakeLog()
    failure = FlushFailedError(Path("watermark"), OSError(5, "I/O error"))

    def publish(*_: object) -> None:
        raise failure

    monkeypatch.setattr(WatermarkFile, "publish", publish)
    file, durable = WatermarkFile(tmp_path, FILES), Watermark(PhysicalOffset(0))
    heard: list[object] = []
    durable.listen(heard.append, heard.append)
    service = FlushService(LocalDisk(log, file), FlushPolicy(FlushMode.SYNC_FLUSH), durable)
    service.start()
    service.request(10)
    with pytest.raises(FlushFailedError, match="watermark"):
        durable.wait(PhysicalOffset(10), PATIENCE_S)
    service.stop()
    file.close()
    assert heard == [failure]
    assert durable.offset == 0
