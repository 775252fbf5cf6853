"""Turns: those who keep the thread busy wait for each other, and nobody waits for all of them."""

from __future__ import annotations

import trio
import trio.testing

from commitbus.broker.rpc.http2.turns import TURN_S, Load, Turns


class Thread:
    """The processor time of a thread that works only when it is told to."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def work(self, load: Load, seconds: float) -> None:
        """Have a connection work for a time."""
        begin_s = load.begin()
        self.now_s += seconds
        load.end(begin_s)


async def ticks_until(done: trio.Event) -> int:
    """Return the number of scheduler ticks until an event."""
    ticks = 0
    while not done.is_set():
        await trio.lowlevel.checkpoint()
        ticks += 1
    return ticks


def test_short_reads_never_wait() -> None:
    async def main() -> None:
        thread = Thread()
        turns = Turns(thread)
        busy, light = turns.load_of("192.0.2.1"), turns.load_of("192.0.2.2")
        thread.work(busy, 1.0)
        thread.work(light, 0.0002)
        assert busy.is_busy
        assert not light.is_busy
        with trio.fail_after(0):
            await light.wait()

    trio.run(main)


def test_an_address_with_many_short_reads_is_busy() -> None:
    """Many connections of one host are no more than one connection of it."""
    thread = Thread()
    turns = Turns(thread)
    loads = [turns.load_of("192.0.2.1") for _ in range(100)]
    for load in loads:
        thread.work(load, 0.0002)
    assert all(load.is_busy for load in loads)
    assert not turns.load_of("192.0.2.2").is_busy


def test_the_busy_ones_have_one_turn_in_each_tick() -> None:
    async def main() -> None:
        thread, gaps_s, done = Thread(), [0.0], trio.Event()
        turns = Turns(thread)
        left = 10

        async def connection(number: int) -> None:
            nonlocal left
            load = turns.load_of(f"192.0.2.{number}")
            thread.work(load, TURN_S)
            for _ in range(10):
                await trio.lowlevel.checkpoint()
                await load.wait()
                thread.work(load, TURN_S)
            left -= 1
            if not left:
                done.set()

        async def neighbour() -> None:
            while not done.is_set():
                before_s = thread.now_s
                await trio.lowlevel.checkpoint()
                gaps_s.append(thread.now_s - before_s)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(turns.run)
            for number in range(10):
                nursery.start_soon(connection, number)
            # All begin at once, since nobody is known to be busy.
            await trio.lowlevel.checkpoint()
            await trio.lowlevel.checkpoint()
            nursery.start_soon(neighbour)
            with trio.fail_after(10):
                await done.wait()
            nursery.cancel_scope.cancel()
        assert sum(gaps_s) >= 80 * TURN_S
        assert max(gaps_s) <= 2.5 * TURN_S

    trio.run(main)


def test_those_who_used_least_are_served_first() -> None:
    async def main() -> None:
        thread, served = Thread(), list[str]()
        turns = Turns(thread)
        used_s = {"192.0.2.1": 0.5, "192.0.2.2": 0.02, "192.0.2.3": 0.1}
        loads = {address: turns.load_of(address) for address in used_s}
        for address, seconds in used_s.items():
            thread.work(loads[address], seconds)

        async def waits(address: str) -> None:
            await loads[address].wait()
            served.append(address)
            thread.work(loads[address], TURN_S)

        async with trio.open_nursery() as nursery:
            for address in used_s:
                nursery.start_soon(waits, address)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(turns.run)
            with trio.fail_after(10):
                while len(served) < 3:
                    await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        assert served == ["192.0.2.2", "192.0.2.3", "192.0.2.1"]

    trio.run(main)


def test_one_that_leaves_while_it_waits_keeps_nobody_waiting() -> None:
    async def main() -> None:
        thread, done = Thread(), trio.Event()
        turns = Turns(thread)
        leaves, stays = turns.load_of("192.0.2.1"), turns.load_of("192.0.2.2")
        thread.work(leaves, 0.01)
        thread.work(stays, 0.02)

        async def waits() -> None:
            await stays.wait()
            done.set()

        async with trio.open_nursery() as nursery:
            async with trio.open_nursery() as left:
                left.start_soon(leaves.wait)
                await trio.testing.wait_all_tasks_blocked()
                left.cancel_scope.cancel()
            nursery.start_soon(waits)
            nursery.start_soon(turns.run)
            assert await ticks_until(done) < 30
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_whoever_used_much_is_served_all_the_same() -> None:
    """Four others that are busy for ever come before it for a quarter of a second at most."""

    async def main() -> None:
        thread, turns_of = Thread(), dict.fromkeys(range(5), 0)
        turns = Turns(thread)
        loads = {number: turns.load_of(f"192.0.2.{number}") for number in turns_of}
        thread.work(loads[0], 1000.0)

        async def connection(number: int) -> None:
            while True:
                await trio.lowlevel.checkpoint()
                await loads[number].wait()
                thread.work(loads[number], TURN_S)
                turns_of[number] += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(turns.run)
            for number in turns_of:
                nursery.start_soon(connection, number)
            await trio.sleep(1.0)
            nursery.cancel_scope.cancel()
        assert turns_of[0] >= max(turns_of.values()) / 4

    trio.run(main)


def test_short_turns_share_a_tick() -> None:
    """A hundred connections of one address do not need a hundred ticks."""

    async def main() -> None:
        thread = Thread()
        turns = Turns(thread)
        loads = [turns.load_of("192.0.2.1") for _ in range(100)]
        thread.work(loads[0], 0.2)
        left, done = len(loads), trio.Event()

        async def connection(load: Load) -> None:
            nonlocal left
            await load.wait()
            thread.work(load, TURN_S / 20)
            left -= 1
            if not left:
                done.set()

        async with trio.open_nursery() as nursery:
            for load in loads:
                thread.work(load, TURN_S / 20)
                nursery.start_soon(connection, load)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(turns.run)
            assert await ticks_until(done) < 30
            nursery.cancel_scope.cancel()

    trio.run(main)
