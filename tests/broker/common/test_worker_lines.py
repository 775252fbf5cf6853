"""Worker threads are shared fairly between callers, and a caller that hangs up frees its place."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial, wraps
from random import Random
from typing import final

import pytest
import trio
import trio.testing

from commitbus.broker.common import worker_lines
from commitbus.broker.common.errors import TooManyRequestsError
from commitbus.broker.common.worker_lines import (
    OPERATORS,
    READS,
    Share,
    WorkerLines,
    as_operator,
    compute_in_worker,
    run_in_worker,
    serve_caller,
)
from tests.broker.messaging.bus import work_in_turn

GREEDY = [f"10.0.0.1:{port}" for port in range(50)]
WAIT_S = 10


class Stage:
    """Work that runs until it is let go, and notes who runs."""

    def __init__(self, lines: WorkerLines) -> None:
        self.lines, self.go_on = lines, threading.Event()
        self.begun: list[str] = []
        self.ended: list[str] = []

    async def work(self, name: str) -> None:
        """Run a piece of work of a caller."""
        await self.lines.run(name, self._block, name)
        self.ended.append(name)

    def _block(self, name: str) -> None:
        self.begun.append(name)
        assert self.go_on.wait(WAIT_S)


def in_trio(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Make an asynchronous test one that pytest runs."""

    @wraps(test)
    def run(**fixtures: object) -> None:
        trio.run(partial(test, **fixtures))

    return run


async def settled() -> None:
    """Let threads begin and tasks wait."""
    for _ in range(3):
        await trio.testing.wait_all_tasks_blocked(0.02)


@in_trio
async def test_one_address_leaves_threads_to_others() -> None:
    """With any number of connections; each of them has a share of that."""
    stage = Stage(WorkerLines(Share(8, 6, 3)))
    async with trio.open_nursery() as nursery:
        for name in [GREEDY[0]] * 10 + GREEDY[1:4]:
            nursery.start_soon(stage.work, name)
        await settled()
        counts = Counter(stage.begun)
        assert sum(counts.values()) == 6
        assert counts[GREEDY[0]] <= 3
        nursery.start_soon(stage.work, "10.0.0.2:1")
        await settled()
        assert stage.begun[-1] == "10.0.0.2:1"
        stage.go_on.set()
    assert len(stage.ended) == 14
    assert len(stage.lines) == 0


@in_trio
async def test_an_ipv6_network_is_one_address() -> None:
    """Its owner can use any address in it, so one for each connection gives no more turns."""
    stage = Stage(WorkerLines(Share(8, 6, 3)))
    async with trio.open_nursery() as nursery:
        for number in range(1, 11):
            nursery.start_soon(stage.work, f"[2001:db8:0:1::{number}]:5000")
        await settled()
        assert len(stage.begun) == 6
        nursery.start_soon(stage.work, "[2001:db8:0:2::1]:5000")
        await settled()
        assert len(stage.begun) == 7
        stage.go_on.set()
    assert len(stage.lines) == 0
    worker_lines.serve_caller("[2001:db8:0:1::7]:5000")
    assert worker_lines.address_served() == "2001:db8:0:1::/64"


@in_trio
async def test_lines_have_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever comes last with one piece of work is behind one of each other address, not of all."""
    work_in_turn(monkeypatch)
    lines, order = WorkerLines(Share(1, 1, 1)), list[str]()

    async def work(name: str) -> None:
        await lines.run(name, order.append, name)

    async with trio.open_nursery() as nursery:
        for name in [GREEDY[0]] * 20 + GREEDY[1:20] + ["10.0.0.2:1"] * 20:
            nursery.start_soon(work, name)
        await trio.lowlevel.checkpoint()
        nursery.start_soon(work, "10.0.0.3:1")
        nursery.start_soon(work, "10.0.0.1:999")
    assert order.index("10.0.0.3:1") <= 4
    # Of its own address twenty connections have a turn before it.
    assert order.index("10.0.0.1:999") <= 2 * 21 + 2
    assert len(order) == 61


@in_trio
async def test_a_line_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond it the caller is refused, and nobody else."""
    monkeypatch.setattr(worker_lines, "WAITING_MAX", 2)
    stage = Stage(WorkerLines(Share(1, 1, 1)))
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(stage.work, GREEDY[0])
        await settled()
        with pytest.raises(TooManyRequestsError):
            await stage.work(GREEDY[0])
        nursery.start_soon(stage.work, GREEDY[1])
        await settled()
        stage.go_on.set()
    assert sorted(stage.ended) == [GREEDY[0]] * 3 + [GREEDY[1]]


@in_trio
async def test_who_hangs_up_leaves_the_line() -> None:
    """Work that has begun is waited for; nothing is left behind."""
    stage = Stage(WorkerLines(Share(1, 1, 1)))
    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as inner:
                for _ in range(2):
                    inner.start_soon(stage.work, GREEDY[0])
                await settled()
                nursery.start_soon(stage.work, GREEDY[1])
                await settled()
                threading.Timer(0.05, stage.go_on.set).start()
                scope.cancel()
    assert stage.begun == [GREEDY[0], GREEDY[1]]
    assert len(stage.lines) == 0


@in_trio
async def test_who_hangs_up_when_its_turn_has_come_gives_it_on() -> None:
    """In the very moment."""
    lines = WorkerLines(Share(1, 1, 1))
    stage, scope = Stage(lines), trio.CancelScope()

    async def hang_up() -> None:
        with scope:
            await stage.work("10.0.0.2:1")

    async def end_and_hang_up() -> None:
        await stage.work("10.0.0.1:1")
        scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(end_and_hang_up)
        await settled()
        nursery.start_soon(hang_up)
        await settled()
        nursery.start_soon(stage.work, "10.0.0.3:1")
        await settled()
        stage.go_on.set()
    assert "10.0.0.3:1" in stage.ended
    assert len(lines) == 0


@final
class Crowd:
    """Random callers that work, fail and hang up."""

    def __init__(self, share: Share) -> None:
        self.lines = WorkerLines(share)
        self.threads, self.random = share.threads, Random(5)  # noqa: S311 - nothing secret
        self.peak = Counter[str]()

    async def run_sync(self, work: Callable[[], None], **_options: object) -> None:
        """Stand in for a thread: others run before and after."""
        for _ in range(self.random.randint(1, 4)):
            await trio.lowlevel.cancel_shielded_checkpoint()
        work()

    async def call(self, name: str) -> None:
        """Call, and perhaps hang up."""
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                if self.random.random() < 0.3:
                    nursery.start_soon(self._hang_up, scope)
                with suppress(ValueError, TooManyRequestsError):
                    await self.lines.run(name, self._work)

    async def _hang_up(self, scope: trio.CancelScope) -> None:
        for _ in range(self.random.randint(0, 8)):
            await trio.lowlevel.checkpoint()
        scope.cancel()

    def _work(self) -> None:
        addresses = self.lines._addresses.values()
        busy = {address.name: address.running for address in addresses}
        for address in addresses:
            busy |= {caller.name: caller.running for caller in address.callers.values()}
        busy["all"] = self.threads - self.lines._free
        self.peak |= Counter(busy)
        if self.random.random() < 0.2:
            raise ValueError


@in_trio
async def test_whatever_happens_the_shares_hold_and_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody has more than its share at any moment."""
    share = Share(4, 3, 2)
    crowd = Crowd(share)
    monkeypatch.setattr(worker_lines, "WAITING_MAX", 5)
    monkeypatch.setattr(trio.to_thread, "run_sync", crowd.run_sync)
    async with trio.open_nursery() as nursery:
        for _ in range(3000):
            address, port = crowd.random.randint(1, 4), crowd.random.randint(1, 4)
            nursery.start_soon(crowd.call, f"10.0.0.{address}:{port}")
            if crowd.random.random() < 0.3:
                await trio.lowlevel.checkpoint()
    peak = crowd.peak
    assert peak.pop("all") <= share.threads
    assert max(count for name, count in peak.items() if ":" in name) <= share.per_caller
    assert max(count for name, count in peak.items() if ":" not in name) <= share.per_address
    lines = crowd.lines
    assert (lines._free, lines._turns, lines._addresses) == (share.threads, {}, {})


@in_trio
async def test_operators_have_threads_of_their_own() -> None:
    """They are answered while every other thread is taken."""
    go_on = threading.Event()

    async def work(name: str) -> None:
        serve_caller(name)
        await run_in_worker(go_on.wait, WAIT_S)

    async with trio.open_nursery() as nursery:
        for number in range(2 * READS.threads):
            nursery.start_soon(work, f"10.0.1.{number}:1")
        await settled()
        with trio.fail_after(WAIT_S):
            assert await as_operator(run_in_worker(len, "abc")) == 3
        go_on.set()
    assert OPERATORS.threads > 0


@in_trio
async def test_few_threads_compute() -> None:
    """And they are others than those that wait for disks."""
    threads, go_on = set[int](), threading.Event()

    def work() -> None:
        threads.add(threading.get_ident())
        go_on.wait(WAIT_S)

    async def compute(run: Callable[..., Awaitable[None]], name: str) -> None:
        serve_caller(name)
        await run(work)

    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(compute, compute_in_worker, f"10.0.2.{number}:1")
        await settled()
        assert len(threads) == worker_lines.COMPUTATIONS.threads
        nursery.start_soon(compute, run_in_worker, "10.0.2.0:1")
        await settled()
        assert len(threads) == worker_lines.COMPUTATIONS.threads + 1
        go_on.set()
