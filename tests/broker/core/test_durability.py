"""Waiting for the disk: each waiter until its own bytes are safe, or until that is hopeless."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing

from commitbus.broker.common.errors import TooManyRequestsError
from commitbus.broker.common.trio_thread import TrioThread
from commitbus.broker.core.durability import WAITING_MAX, Durability
from commitbus.commitlog.errors import FlushFailedError
from commitbus.commitlog.types import PhysicalOffset
from commitbus.flush.watermark import AppendedEnd, Watermark


class Disk:
    """A flush thread, as far as `Durability` can tell."""

    def __init__(self) -> None:
        self.watermark, self.trio_thread = Watermark(PhysicalOffset(0)), TrioThread()
        self.durability = Durability(self.watermark, self.trio_thread)

    async def flush(self, end: int) -> None:
        await trio.to_thread.run_sync(self.watermark.advance, PhysicalOffset(end))
        await trio.testing.wait_all_tasks_blocked()


def run(scenario: Callable[[Disk, list[int], trio.Nursery], Awaitable[None]]) -> None:
    async def main() -> None:
        disk, done = Disk(), list[int]()
        disk.trio_thread.attach()
        async with trio.open_nursery() as nursery:
            await scenario(disk, done, nursery)
            nursery.cancel_scope.cancel()

    trio.run(main)


async def waiter(disk: Disk, done: list[int], end: int) -> None:
    await disk.durability.wait(PhysicalOffset(end))
    done.append(end)


def test_a_flush_releases_those_it_covers_and_no_others() -> None:
    """In whatever order they came."""

    async def scenario(disk: Disk, done: list[int], nursery: trio.Nursery) -> None:
        for end in (30, 10, 20):
            nursery.start_soon(waiter, disk, done, end)
        await disk.flush(19)
        assert done == [10]
        await disk.flush(20)
        assert done == [10, 20]
        await disk.flush(100)
        assert done == [10, 20, 30]
        await disk.durability.wait(PhysicalOffset(100))

    run(scenario)


def test_a_failed_flush_fails_all_that_wait_and_all_that_come() -> None:
    """What was durable before still is."""

    async def scenario(disk: Disk, done: list[int], nursery: trio.Nursery) -> None:
        await disk.flush(5)
        failed: list[Exception] = []

        async def expect() -> None:
            try:
                await disk.durability.wait(PhysicalOffset(9))
            except FlushFailedError as error:
                failed.append(error)

        nursery.start_soon(expect)
        nursery.start_soon(expect)
        await trio.testing.wait_all_tasks_blocked()
        error = FlushFailedError(Path("log"), OSError(5, "Input/output error"))
        await trio.to_thread.run_sync(disk.watermark.fail, error)
        await trio.testing.wait_all_tasks_blocked()
        assert len(failed) == 2
        await expect()
        assert len(failed) == 3
        await waiter(disk, done, 5)

    run(scenario)


def test_room_is_refused_when_too_many_wait() -> None:
    """Cancelled ones count until their bytes are flushed: they were stored all the same."""

    async def scenario(disk: Disk, done: list[int], nursery: trio.Nursery) -> None:
        async with trio.open_nursery() as inner:
            for end in range(1, WAITING_MAX + 1):
                inner.start_soon(waiter, disk, done, end)
            await trio.testing.wait_all_tasks_blocked()
            inner.cancel_scope.cancel()
        with pytest.raises(TooManyRequestsError):
            disk.durability.check_room()
        await disk.flush(1)
        disk.durability.check_room()
        assert done == []
        assert nursery.child_tasks == set()

    run(scenario)


def test_where_an_append_is_enough_nobody_waits() -> None:
    """ASYNC_FLUSH."""
    durability = Durability(AppendedEnd(lambda: PhysicalOffset(10)), TrioThread())
    assert durability.reached(PhysicalOffset(10))
    trio.run(durability.wait, PhysicalOffset(10))


def test_a_flush_after_the_run_ended_wakes_nobody() -> None:
    """The store is closed after the trio run that served it."""
    disk = Disk()

    async def main() -> None:
        disk.trio_thread.attach()
        disk.trio_thread.detach()

    trio.run(main)
    disk.watermark.advance(PhysicalOffset(1))


def test_a_function_is_called_when_the_wait_is_over_either_way() -> None:
    """Once; not if it was forgotten; and `check` tells which way it went."""

    async def scenario(disk: Disk, done: list[int], _: trio.Nursery) -> None:
        durability = disk.durability
        for end in (20, 10, 30):
            durability.call_when_over(PhysicalOffset(end), partial(done.append, end))
        durability.call_when_over(PhysicalOffset(15), partial(done.append, 15)).cancel()
        await disk.flush(20)
        assert done == [10, 20]
        durability.check(PhysicalOffset(20))
        disk.watermark.fail(FlushFailedError(Path("log"), OSError()))
        await trio.testing.wait_all_tasks_blocked()
        assert done == [10, 20, 30]
        with pytest.raises(FlushFailedError):
            durability.check(PhysicalOffset(30))
        durability.call_when_over(PhysicalOffset(40), partial(done.append, 40))
        await trio.testing.wait_all_tasks_blocked()
        assert done == [10, 20, 30, 40]

    run(scenario)
