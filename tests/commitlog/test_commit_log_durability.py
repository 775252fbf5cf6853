"""Durability of the log, and the failures that end or interrupt appending."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from typing import Any

import pytest

from commitbus.commitlog import file_system
from commitbus.commitlog.errors import (
    DiskFullError,
    FlushFailedError,
    ReadFailedError,
    StoreError,
    StoreReadOnlyError,
)
from commitbus.commitlog.types import (
    PhysicalOffset,
)
from tests.commitlog.test_commit_log import FILE, Make, OpenLog, body_for, offsets


def test_a_flush_covers_what_was_appended_before_it(
    open_log: OpenLog, message: Make, faulty: Any
) -> None:
    """All files since the last flush, nothing when nothing is new."""
    log = open_log(FILE)
    assert log.flush() == 0
    for _ in range(3):
        log.append(message(body_for(FILE - 8)))
    assert log.flushed_where == 0
    faulty.synced.clear()
    assert log.flush() == log.flushed_where == log.end_offset
    assert faulty.synced == [f"{number * FILE:020d}" for number in range(3)]
    faulty.synced.clear()
    log.flush()
    assert faulty.synced == []


def test_a_failed_flush_is_final(open_log: OpenLog, message: Make, faulty: Any) -> None:
    """No append, no second attempt, no byte called durable after it; reading works."""
    log = open_log()
    log.append(message())
    faulty.failing["sync_data"] = errno.EIO
    with pytest.raises(FlushFailedError) as caught:
        log.flush()
    assert log.flushed_where == 0
    faulty.failing.clear()
    with pytest.raises(FlushFailedError) as again:
        log.flush()
    assert again.value is caught.value
    assert log.flushed_where == 0
    for append in (lambda: log.append(message()), lambda: log.append_batch([message()])):
        with pytest.raises(StoreReadOnlyError, match="flushing"):
            append()
    assert log.read(PhysicalOffset(0)).body == b"body"


@pytest.mark.parametrize("operation", ["sync_data", "sync_directory"])
def test_a_file_that_cannot_be_made_durable_takes_no_message(
    open_log: OpenLog, message: Make, faulty: Any, operation: str
) -> None:
    """No message is lost with it, so the next append tries again."""
    log = open_log()
    faulty.failing[operation] = errno.EIO
    with pytest.raises(FlushFailedError):
        log.append(message())
    faulty.failing.clear()
    assert log.append(message()).physical_offset == 0


def test_a_full_disk_refuses_and_recovers(open_log: OpenLog, message: Make, faulty: Any) -> None:
    """A message that fits is taken, one that needs a new file refused until there is room."""
    log = open_log(FILE)
    faulty.failing["allocate"] = errno.ENOSPC
    with pytest.raises(DiskFullError):
        log.append(message())
    assert list(log.files.directory.iterdir()) == []
    faulty.failing.clear()
    log.append(message(body_for(FILE // 4)))
    faulty.failing["allocate"] = errno.ENOSPC
    log._preparer.stop()
    (log.files.directory / f"{FILE:020d}").unlink(missing_ok=True)
    with pytest.raises(DiskFullError) as caught:
        log.append(message(body_for(FILE - 8)))
    assert caught.value.needed_bytes == FILE
    small = log.append(message())
    assert small.physical_offset == FILE // 4
    faulty.failing.clear()
    assert log.append(message(body_for(FILE - 8))).physical_offset == FILE
    assert offsets(log) == [0, FILE // 4, FILE]


def test_a_file_that_cannot_be_prepared_is_reported_when_it_is_needed(
    open_log: OpenLog, message: Make, faulty: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """In the background a full disk is a warning; the message that needs the file is refused."""
    log = open_log(FILE)
    created = threading.Event()
    real = log.files.new_file

    def failing(base_offset: int) -> Any:
        faulty.failing["allocate"] = errno.ENOSPC if base_offset else 0
        try:
            return real(base_offset)
        finally:
            if base_offset:
                created.set()

    log._preparer._files = type(
        "Files", (), {"new_file": staticmethod(failing), "file_size": FILE}
    )()
    log.append(message(body_for(FILE // 2)))
    assert created.wait(10)
    with pytest.raises(DiskFullError):
        log.append(message(body_for(FILE - 8)))
    assert "could not be prepared" in caplog.text


def test_a_log_opened_for_reading_is_not_written(
    open_log: OpenLog, message: Make, tmp_path: Path
) -> None:
    """Tools may look at the files of a running broker."""
    writer = open_log()
    writer.append(message())
    log = open_log(writable=False)
    log.truncate(writer.end_offset)
    assert offsets(log) == [0]
    assert log.flush() == writer.end_offset
    with pytest.raises(StoreReadOnlyError, match="reading"):
        log.append(message())
    writer.append(message())
    assert offsets(log) == [0]


def test_a_page_that_does_not_come_back_where_the_log_goes_on_ends_appending(
    open_log: OpenLog, message: Make, faulty: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store to it would be a SIGBUS; after a flush it may have been evicted."""
    log = open_log()
    failures: list[StoreError] = []
    log.on_failure = failures.append
    first = log.append(message())
    log.flush()
    monkeypatch.setattr(file_system, "populate_memory", lambda *_: False)
    faulty.failing["pread"] = errno.EIO
    with pytest.raises(ReadFailedError) as caught:
        log.append(message())
    assert failures == [caught.value]
    faulty.failing.clear()
    with pytest.raises(StoreReadOnlyError, match="at position 100 failed"):
        log.append(message())
    assert (log.end_offset, log.flush()) == (first.end_offset, first.end_offset)
    failures.clear()  # Or they keep the file open.
