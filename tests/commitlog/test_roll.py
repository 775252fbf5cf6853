"""Ending a log file before it is full."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commitbus.commitlog.commit_log import CommitLog
from commitbus.commitlog.errors import (
    DiskFullError,
    OutOfResourcesError,
    StoreClosedError,
    StoreReadOnlyError,
)
from commitbus.commitlog.record_format import BLANK_MAGIC_CODE, SIZE_AND_MAGIC
from commitbus.commitlog.recovery import recover_normally
from commitbus.commitlog.types import OutgoingMessage, PhysicalOffset

OpenLog = Callable[..., CommitLog]
Make = Callable[..., OutgoingMessage]
FILE = 4096


def test_the_next_message_goes_into_the_next_file(open_log: OpenLog, message: Make) -> None:
    """Behind a blank record that fills the rest, as when a file is full; readers step over it."""
    log = open_log()
    first = log.append(message())
    assert log.roll() == 0
    assert log.end_offset == FILE
    blank = log.files.files[0].read(first.end_offset, 8)
    assert SIZE_AND_MAGIC.unpack(blank) == (FILE - first.end_offset, BLANK_MAGIC_CODE)
    second = log.append(message())
    assert (second.physical_offset, second.queue_offset) == (FILE, 1)
    requests, end = log.dispatch_requests(PhysicalOffset(0), log.end_offset, 10)
    assert [request.physical_offset for request in requests] == [0, FILE]
    assert end == log.end_offset


def test_a_file_without_a_record_is_not_ended(open_log: OpenLog, message: Make) -> None:
    """It would cost a file each time."""
    log = open_log()
    assert log.roll() is None
    log.append(message())
    assert log.roll() == 0
    assert log.roll() is None
    assert len(log.files.files) == 2


def test_a_flush_makes_the_end_of_the_file_durable(
    open_log: OpenLog, message: Make, faulty: Any
) -> None:
    """The blank record too."""
    log = open_log()
    log.append(message())
    log.flush()
    faulty.synced.clear()
    log.roll()
    assert log.flush() == log.flushed_where == FILE
    assert faulty.synced[-1] == "0" * 20
    assert log.dispatch_requests(PhysicalOffset(0), log.end_offset, 10)[1] == FILE


def test_recovery_goes_on_behind_the_blank_record(
    open_log: OpenLog, message: Make, tmp_path: Path
) -> None:
    """With the next file, or without it when a power cut took it."""
    log = open_log()
    log.append(message())
    log.roll()
    log.close()
    for has_next in (True, False):
        if not has_next:
            (tmp_path / "commitlog" / f"{FILE:020}").unlink()
        log = open_log()
        outcome = recover_normally(log, durable_watermark=PhysicalOffset(FILE))
        assert (outcome.end, outcome.cut_bytes, outcome.records) == (FILE, 0, 1)
        log.set_queue_ends(outcome.queue_ends)
        log.close()
    log = open_log()
    recover_normally(log, durable_watermark=PhysicalOffset(FILE))
    assert log.append(message()).physical_offset == FILE


def test_without_room_for_the_next_file_nothing_changes(
    open_log: OpenLog, message: Make, faulty: Any
) -> None:
    """Messages still fit into the current one."""
    # So large that one message does not have the next file prepared meanwhile.
    log = open_log(file_size=1 << 26)
    faulty.failing["allocate"] = errno.ENOSPC
    with pytest.raises(DiskFullError):
        log.append(message())
    faulty.failing.clear()
    first = log.append(message())
    faulty.failing["allocate"] = errno.ENOSPC
    with pytest.raises(DiskFullError):
        log.roll()
    assert log.end_offset == first.end_offset
    assert log.append(message()).physical_offset == first.end_offset


def test_a_file_that_cannot_be_mapped_is_not_one_of_the_log(
    open_log: OpenLog, message: Make, faulty: Any
) -> None:
    """Without memory for its mapping the next file would stay empty, and the log have a hole."""
    log = open_log()
    faulty.failing["map"] = errno.ENOMEM
    for _ in range(2):
        with pytest.raises(OutOfResourcesError):
            log.append(message())
    faulty.failing.clear()
    first = log.append(message())
    assert first.physical_offset == 0
    faulty.failing["map"] = errno.ENOMEM
    for _ in range(2):
        with pytest.raises(OutOfResourcesError):
            log.roll()
    assert log.append(message()).physical_offset == first.end_offset
    faulty.failing.clear()
    log.roll()
    assert log.append(message()).physical_offset == FILE
    requests, _ = log.dispatch_requests(PhysicalOffset(0), log.end_offset, 10)
    assert [request.queue_offset for request in requests] == [0, 1, 2]


def test_a_log_that_takes_no_messages_is_not_rolled(open_log: OpenLog, message: Make) -> None:
    """For the same reasons."""
    log = open_log()
    log.append(message())
    log.close()
    with pytest.raises(StoreClosedError):
        log.roll()
    with pytest.raises(StoreReadOnlyError):
        open_log(writable=False).roll()
