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

NEVER_MS = 3_600_000
PATIENCE_S = 20
SYNC = FlushPolicy(FlushMode.SYNC_FLUSH)


@final
class FakeLog:
    """A log that only counts, whose fdatasync can be held up or broken."""

    def __init__(self) -> None:
        self.end = 0
        self.flushed_where = PhysicalOffset(0)
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
        self.flushed_where = PhysicalOffset(covered)
        return self.flushed_where


@contextmanager
def running(log: FakeLog, policy: FlushPolicy, published: list[int]) -> Iterator[FlushService]:
    service = FlushService(log, policy, published.append)
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
    published: list[int] = []
    log.gated = True
    with running(log, SYNC, published) as service:
        service.request(log.append(10))
        assert log.begun.acquire(timeout=PATIENCE_S)
        for _ in range(100):
            service.request(log.append(10))
        assert not service.wait_durable(PhysicalOffset(10), timeout_s=0.001)
        log.may_finish.release(2)
        assert service.wait_durable(PhysicalOffset(1010), PATIENCE_S)
        assert log.flushes[:2] == [10, 1010]
        assert published[:2] == [10, 1010]


def test_listeners_hear_of_a_flush_after_the_watermark_is_stored() -> None:
    """On the flush thread, with the durable end, and only when it moved."""
    log = FakeLog()
    published: list[int] = []
    heard: list[tuple[int, int, int, str]] = []
    with running(log, SYNC, published) as service:
        service.add_listener(
            lambda end: heard.append(
                (end, service.durable, published[-1], threading.current_thread().name)
            )
        )
        for _ in range(3):
            end = log.append(7)
            service.request(end)
            assert service.wait_durable(end, PATIENCE_S)
    service.request(log.append(0))
    assert heard == [(end, end, end, "commitbus-flush") for end in (7, 14, 21)]


def test_async_mode_flushes_after_the_interval() -> None:
    """Without any further request."""
    log = FakeLog()
    published: list[int] = []
    policy = FlushPolicy(interval_ms=1)
    with running(log, policy, published) as service:
        service.request(log.append(5))
        assert service.wait_durable(PhysicalOffset(5), PATIENCE_S)
        assert published == [5]


def test_async_mode_does_not_wait_once_too_many_bytes_are_pending() -> None:
    """The byte bound cuts an interval short that would last an hour."""
    log = FakeLog()
    published: list[int] = []
    policy = FlushPolicy(interval_ms=NEVER_MS, pending_bytes_max=100)
    with running(log, policy, published) as service:
        service.request(log.append(99))
        assert not service.wait_durable(PhysicalOffset(99), timeout_s=0.01)
        service.request(log.append(1))
        assert service.wait_durable(PhysicalOffset(100), PATIENCE_S)


@pytest.mark.parametrize("mode", FlushMode)
def test_stopping_flushes_what_is_left(mode: FlushMode) -> None:
    """Even what nobody asked for; stopping twice is allowed."""
    log = FakeLog()
    published: list[int] = []
    with running(log, FlushPolicy(mode, interval_ms=NEVER_MS), published) as service:
        log.append(42)
    assert published == [42]
    assert service.durable == 42
    service.stop()


def test_a_failed_flush_is_told_once_and_never_retried() -> None:
    """Neither the watermark nor any waiter moves after it."""
    log = FakeLog()
    published: list[int] = []
    failures: list[StoreError] = []
    told = threading.Event()
    with running(log, SYNC, published) as service:
        service.add_failure_listener(failures.append)
        service.add_failure_listener(lambda _: told.set())
        end = log.append(10)
        service.request(end)
        assert service.wait_durable(end, PATIENCE_S)
        log.failure = FlushFailedError(Path("commitlog/0"), OSError(errno.EIO, "I/O error"))
        end = log.append(10)
        service.request(end)
        with pytest.raises(FlushFailedError, match="I/O error"):
            service.wait_durable(end, PATIENCE_S)
        assert told.wait(PATIENCE_S)
        log.failure = None
        service.request(log.append(10))
        with pytest.raises(FlushFailedError):
            service.wait_durable(end, PATIENCE_S)
        assert service.wait_durable(PhysicalOffset(10), PATIENCE_S)
    assert failures == [service.failure]
    assert published == log.flushes == [10]


@pytest.mark.parametrize("mode", FlushMode)
def test_a_flush_without_descriptors_is_put_off_and_no_failure(mode: FlushMode) -> None:
    """Those who wait go on waiting, and have what they wait for once there are some again."""
    log = FakeLog()
    published: list[int] = []
    with running(log, FlushPolicy(mode, interval_ms=1), published) as service:
        log.failure = OutOfResourcesError(Path("log"), OSError(errno.EMFILE, "Too many open files"))
        end = log.append(10)
        service.request(end)
        assert not service.wait_durable(end, 0.05)
        assert service.failure is None
        log.failure = None
        assert service.wait_durable(end, PATIENCE_S)
    assert published == [10]


def test_a_stop_without_descriptors_is_a_failure() -> None:
    """Appended bytes cannot become durable any more, and no caller may wait for ever."""
    log = FakeLog()
    with running(log, SYNC, []) as service:
        end = log.append(10)
        log.failure = OutOfResourcesError(Path("log"), OSError(errno.EMFILE, "Too many open files"))
        service.stop()
        with pytest.raises(OutOfResourcesError):
            service.wait_durable(end, PATIENCE_S)


def test_a_watermark_that_cannot_be_stored_is_a_failed_flush() -> None:
    """Waiters get an error: readers and recovery would not know that the bytes are durable."""
    log = FakeLog()
    failure = FlushFailedError(Path("watermark"), OSError(errno.EIO, "I/O error"))

    def publish(_: PhysicalOffset) -> None:
        raise failure

    service = FlushService(log, SYNC, publish)
    heard: list[object] = []
    told = threading.Event()
    service.add_listener(heard.append)
    service.add_failure_listener(heard.append)
    service.add_failure_listener(lambda _: told.set())
    service.start()
    end = log.append(10)
    service.request(end)
    with pytest.raises(FlushFailedError, match="watermark"):
        service.wait_durable(end, PATIENCE_S)
    assert told.wait(PATIENCE_S)
    service.stop()
    assert heard == [failure]
