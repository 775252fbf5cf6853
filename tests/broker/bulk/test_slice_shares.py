"""Slices on their way to clients of Fetch that do not read."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest
import trio
import trio.testing

from commitbus.broker.bulk.slice_shares import SliceShares
from commitbus.broker.consuming import delivering

SLICE = 1024


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A total of 100 slices, and a reserve of ten."""
    monkeypatch.setattr(delivering, "DELIVERING_BYTES_MAX", 100 * SLICE)
    monkeypatch.setattr(delivering, "RESERVE_BYTES", 10 * SLICE)


async def hold(shares: SliceShares, connection: str, sent: list[str], until: trio.Event) -> None:
    """Be a stream that sends one slice, to a client that reads after `until`."""
    async with shares.hold(connection, SLICE):
        sent.append(connection)
        await until.wait()


def test_a_thousand_streams_of_a_connection_hold_a_fifth() -> None:
    """The others of it wait, and all get their turn; other connections go on."""

    async def run() -> None:
        shares, sent, reads = SliceShares(), list[str](), trio.Event()
        async with trio.open_nursery() as nursery:
            for _ in range(1000):
                nursery.start_soon(hold, shares, "slow", sent, reads)
            await trio.testing.wait_all_tasks_blocked()
            assert sent == ["slow"] * 20
            assert shares.held_bytes == 20 * SLICE
            with trio.fail_after(10):
                async with shares.hold("other", SLICE):
                    pass
            reads.set()
        assert len(sent) == 1000
        assert vars(shares).items() >= {"_waiting": {}}.items()
        assert shares.held_bytes == 0

    trio.run(run)


def test_however_many_connections_there_are_the_bytes_are_bounded() -> None:
    """Those that find the reserve used up wait for any of the others."""

    async def run() -> None:
        shares, sent, reads = SliceShares(), list[str](), trio.Event()
        async with trio.open_nursery() as nursery:
            for number in range(5000):
                nursery.start_soon(hold, shares, f"slow-{number % 500}", sent, reads)
            await trio.testing.wait_all_tasks_blocked()
            assert shares.held_bytes <= 111 * SLICE
            reads.set()
        assert len(sent) == 5000
        assert shares.held_bytes == 0

    trio.run(run)


def test_a_stream_that_is_cancelled_takes_no_turn_with_it() -> None:
    """Waiting or sending."""

    async def run() -> None:
        shares, sent, never, now = SliceShares(), list[str](), trio.Event(), trio.Event()
        now.set()
        async with AsyncExitStack() as stack:
            senders = await stack.enter_async_context(trio.open_nursery())
            for _ in range(20):
                senders.start_soon(hold, shares, "c", sent, never)
            await trio.testing.wait_all_tasks_blocked()
            async with trio.open_nursery() as waiting:
                for _ in range(50):
                    waiting.start_soon(hold, shares, "c", sent, now)
                await trio.testing.wait_all_tasks_blocked()
                waiting.cancel_scope.cancel()
            senders.start_soon(hold, shares, "c", sent, now)
            await trio.testing.wait_all_tasks_blocked()
            assert len(sent) == 20
            senders.cancel_scope.cancel()
        with trio.fail_after(10):
            await hold(shares, "c", sent, now)
        assert shares.held_bytes == 0

    trio.run(run)


def test_a_stream_goes_on_when_others_have_left_room_for_it() -> None:
    """Even if what its own connection holds is never sent."""

    async def run() -> None:
        shares, sent, never, left = SliceShares(), list[str](), trio.Event(), trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hold, shares, "mine", sent, never)
            await trio.testing.wait_all_tasks_blocked()
            for number in range(98):
                nursery.start_soon(hold, shares, f"other-{number}", sent, left)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(hold, shares, "mine", sent, never)
            await trio.testing.wait_all_tasks_blocked()
            assert sent.count("mine") == 1
            left.set()
            await trio.testing.wait_all_tasks_blocked()
            assert sent.count("mine") == 2
            nursery.cancel_scope.cancel()
        assert vars(shares).items() >= {"_waiting": {}}.items()
        assert shares.held_bytes == 0

    trio.run(run)
