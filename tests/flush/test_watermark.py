"""A point of the log: who waits for it, who is told of it, and how that ends."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from commitbus.commitlog.errors import FlushFailedError, StoreClosedError, StoreError
from commitbus.commitlog.types import PhysicalOffset
from commitbus.flush.watermark import AppendedEnd, Watermark

PATIENCE_S = 20


def failure() -> StoreError:
    return FlushFailedError(Path("log"), OSError(5, "Input/output error"))


def test_a_waiter_goes_on_once_its_offset_is_reached() -> None:
    """Not before, and at the time limit with False."""
    watermark = Watermark(PhysicalOffset(10))
    assert watermark.wait(PhysicalOffset(10), 0)
    assert not watermark.wait(PhysicalOffset(11), 0.001)
    outcome: list[bool] = []
    waiter = threading.Thread(
        target=lambda: outcome.append(watermark.wait(PhysicalOffset(20), PATIENCE_S))
    )
    waiter.start()
    watermark.advance(PhysicalOffset(15))
    assert not outcome
    watermark.advance(PhysicalOffset(20))
    waiter.join()
    assert outcome == [True]


def test_a_failure_ends_the_waits_that_it_leaves_without_hope() -> None:
    """What is still reachable is waited for; a failure that ends it earlier takes over."""
    watermark = Watermark(PhysicalOffset(10))
    first, earlier = failure(), StoreClosedError()
    told: list[StoreError] = []
    watermark.listen(None, told.append)
    watermark.fail(first, reachable=PhysicalOffset(20))
    with pytest.raises(FlushFailedError):
        watermark.wait(PhysicalOffset(21), PATIENCE_S)
    assert not watermark.wait(PhysicalOffset(20), 0.001)
    watermark.advance(PhysicalOffset(15))
    watermark.fail(earlier)
    watermark.fail(failure())
    with pytest.raises(StoreClosedError):
        watermark.wait(PhysicalOffset(16), PATIENCE_S)
    assert watermark.wait(PhysicalOffset(15))
    assert told == [first, earlier]


def test_listeners_are_told_of_moves_and_late_ones_of_the_failure() -> None:
    """A listener that raises keeps no other from being told."""
    watermark = Watermark(PhysicalOffset(0))
    moves: list[int] = []
    told: list[StoreError] = []

    def broken(_: object) -> None:
        raise RuntimeError("broken listener")

    watermark.listen(broken, broken)
    watermark.listen(moves.append)
    watermark.advance(PhysicalOffset(7))
    watermark.fail(error := failure())
    watermark.listen(None, told.append)
    assert moves == [7]
    assert told == [error]


def test_a_listener_without_memory_fails_the_thread_that_moves() -> None:
    """The others are told first."""
    watermark = Watermark(PhysicalOffset(0))
    moves: list[int] = []

    def too_little(_: object) -> None:
        raise MemoryError

    watermark.listen(too_little)
    watermark.listen(moves.append)
    with pytest.raises(MemoryError):
        watermark.advance(PhysicalOffset(3))
    assert moves == [3]


def test_the_appended_end_is_where_the_log_ends() -> None:
    """It has no failure: what was appended is confirmed."""
    ends = [PhysicalOffset(1), PhysicalOffset(5)]
    point = AppendedEnd(lambda: ends[-1])
    assert (point.offset, point.failure) == (5, None)
