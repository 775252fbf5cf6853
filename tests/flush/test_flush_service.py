"""The flush thread, over a target that is made to wait and to fail."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import final

import pytest

from commitbus.commitlog.errors import FlushFailedError, OutOfResourcesError, StoreError
from commitbus.commitlog.types import PhysicalOffset
from commitbus.flush.flush_service import FlushService
from commitbus.flush.policy import FlushMode, FlushPolicy
from commitbus.flush.watermark import Watermark

NEVER_MS = 3_600_000
PATIENCE_S = 20
SYNC = FlushPolicy(FlushMode.SYNC_FLUSH)


@final
class FakeLog:
    """A log that only counts, whose fdatasync can be held up or broken."""

    def __init__(self) -> None:
        self.end = 0
        self.durable, self.moves = Watermark(PhysicalOffset(0)), list[int]()
        self.durable.listen(self.moves.append)
        self.flushes: list[int] = []
        self.begun, self.may_finish = threading.Semaphore(0), threading.Semaphore(0)
        self.gated = False
        self.failure: StoreError | None = None

    def append(self, size: int) -> PhysicalOffset:
        self.end += size
        return PhysicalOffset(self.end)

    def flush(self) -> PhysicalOffset:
        covered = self.end
        if self.gated:
            self.begun.release()
            assert self.may_finish.acquire(timeout=PATIENCE_S)
        if self.failure is not None:
            raise self.failure
        self.flushes.append(covered)
        return PhysicalOffset(covered)


@contextmanager
def running(log: FakeLog, policy: FlushPolicy) -> Iterator[FlushService]:
    service = FlushService(log, policy, log.durable)
    service.start()
    try:
        yield service
    finally:
        log.gated = False
        log.may_finish.release()
        service.stop()


def test_sync_mode_covers_what_arrives_meanwhile_with_one_more_round() -> None:
    """Group commit: a hundred appends during an fdatasync cost one fdatasync."""
    log = FakeLog()
    log.gated = True
    with running(log, SYNC) as service:
        service.request(log.append(10))
        assert log.begun.acquire(timeout=PATIENCE_S)
        for _ in range(100):
            service.request(log.append(10))
        assert not log.durable.wait(PhysicalOffset(10), timeout_s=0.001)
        log.may_finish.release(2)
        assert log.durable.wait(PhysicalOffset(1010), PATIENCE_S)
        assert log.flushes[:2] == log.moves[:2] == [10, 1010]


def test_listeners_are_told_of_each_flush_that_moved_the_end() -> None:
    """On the flush thread, with the durable end, when the watermark has it."""
    log = FakeLog()
    heard: list[tuple[int, int, str]] = []
    with running(log, SYNC) as service:
        log.durable.listen(
            lambda end: heard.append((end, log.durable.offset, threading.current_thread().name))
        )
        for _ in range(3):
            end = log.append(7)
            service.request(end)
            assert log.durable.wait(end, PATIENCE_S)
    service.request(log.append(0))
    assert heard == [(end, end, "commitbus-flush") for end in (7, 14, 21)]


def test_async_mode_flushes_after_the_interval() -> None:
    """Without any further request."""
    log = FakeLog()
    policy = FlushPolicy(interval_ms=1)
    with running(log, policy) as service:
        service.request(log.append(5))
        assert log.durable.wait(PhysicalOffset(5), PATIENCE_S)
        assert log.moves == [5]


def test_async_mode_does_not_wait_once_too_many_bytes_are_pending() -> None:
    """The byte bound cuts an interval short that would last an hour."""
    log = FakeLog()
    policy = FlushPolicy(interval_ms=NEVER_MS, pending_bytes_max=100)
    with running(log, policy) as service:
        service.request(log.append(99))
        assert not log.durable.wait(PhysicalOffset(99), timeout_s=0.01)
        service.request(log.append(1))
        assert log.durable.wait(PhysicalOffset(100), PATIENCE_S)


@pytest.mark.parametrize("mode", FlushMode)
def test_stopping_flushes_what_is_left(mode: FlushMode) -> None:
    """Even what nobody asked for; stopping twice is allowed."""
    log = FakeLog()
    with running(log, FlushPolicy(mode, interval_ms=NEVER_MS)) as service:
        log.append(42)
    assert log.moves == [42]
    assert log.durable.offset == 42
    service.stop()


def test_a_failed_flush_is_told_once_and_never_retried() -> None:
    """Neither the watermark nor any waiter moves after it."""
    log = FakeLog()
    failures: list[StoreError] = []
    told = threading.Event()
    with running(log, SYNC) as service:
        log.durable.listen(None, failures.append)
        log.durable.listen(None, lambda _: told.set())
        end = log.append(10)
        service.request(end)
        assert log.durable.wait(end, PATIENCE_S)
        log.failure = FlushFailedError(Path("commitlog/0"), OSError(errno.EIO, "I/O error"))
        end = log.append(10)
        service.request(end)
        with pytest.raises(FlushFailedError, match="I/O error"):
            log.durable.wait(end, PATIENCE_S)
        assert told.wait(PATIENCE_S)
        log.failure = None
        service.request(log.append(10))
        with pytest.raises(FlushFailedError):
            log.durable.wait(end, PATIENCE_S)
        assert log.durable.wait(PhysicalOffset(10), PATIENCE_S)
    assert failures == [log.durable.failure]
    assert log.moves == log.flushes == [10]


@pytest.mark.parametrize("mode", FlushMode)
def test_a_flush_without_descriptors_is_put_off_and_no_failure(mode: FlushMode) -> None:
    """Those who wait go on waiting, and have what they wait for once there are some again."""
    log = FakeLog()
    with running(log, FlushPolicy(mode, interval_ms=1)) as service:
        log.failure = OutOfResourcesError(Path("log"), OSError(errno.EMFILE, "Too many open files"))
        end = log.append(10)
        service.request(end)
        assert not log.durable.wait(end, 0.05)
        assert log.durable.failure is None
        log.failure = None
        assert log.durable.wait(end, PATIENCE_S)
    assert log.moves == [10]


def test_a_stop_without_descriptors_is_a_failure() -> None:
    """Appended bytes cannot become durable any more, and no caller may wait for ever."""
    log = FakeLog()
    with running(log, SYNC) as service:
        end = log.append(10)
        log.failure = OutOfResourcesError(Path("log"), OSError(errno.EMFILE, "Too many open files"))
        service.stop()
        with pytest.raises(OutOfResourcesError):
            log.durable.wait(end, PATIENCE_S)
