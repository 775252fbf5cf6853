"""Who is woken: enough receivers for what arrived, never all, and no wake-up is lost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from math import inf
from typing import Any, NoReturn

import pytest
import trio
import trio.testing

from commitbus.broker.common.errors import TooManyRequestsError
from commitbus.broker.common.trio_thread import TrioThread
from commitbus.broker.consuming.deadlines import shared_deadline_s
from commitbus.broker.consuming.long_polling import (
    EXPIRIES_MIN,
    WAITING_POLLS_MAX,
    LongPolling,
    Receiver,
)
from commitbus.broker.store.reput import Arrival
from commitbus.commitlog.types import QueueOffset


class TrioClock:
    def __init__(self) -> None:
        self.offset_ms = 0

    def now_ms(self) -> int:
        return self.offset_ms + round(trio.current_time() * 1000)

    def monotonic_s(self) -> float:
        return trio.current_time()


async def wait(receiver: Receiver, until_s: float = inf) -> None:
    """Be parked."""
    is_over = trio.Event()
    receiver.park(until_s, is_over.set)
    await is_over.wait()


class Line:
    """Receivers that wait, and a record of who was woken."""

    def __init__(self) -> None:
        self.clock = TrioClock()
        self.trio_thread = TrioThread()
        self.polls = LongPolling(self.clock, self.trio_thread)
        self.woken: list[str] = []

    async def receive(
        self, name: str, group: str = "G", topic: str = "T", capacity: int = 1
    ) -> None:
        receiver = self.polls.join(group, topic, capacity)
        try:
            await wait(receiver)
            receiver.begin_look()
            self.woken.append(name)
        finally:
            receiver.leave()

    async def arrive(self, end: int, topic: str = "T", queue_id: int = 0) -> None:
        arrival = Arrival(topic, queue_id, QueueOffset(end))
        await trio.to_thread.run_sync(self.polls.on_arrival, [arrival])
        await trio.testing.wait_all_tasks_blocked()


Scenario = Callable[[Line, trio.Nursery, trio.testing.MockClock], Awaitable[None]]


def run(scenario: Scenario) -> None:
    clock = trio.testing.MockClock()

    async def main() -> None:
        line = Line()
        line.trio_thread.attach()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(line.polls.run_timer)
            nursery.start_soon(line.polls.deadlines.run)
            await scenario(line, nursery, clock)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=clock)


async def line_up(line: Line, nursery: trio.Nursery, names: str, capacity: int = 1) -> None:
    for name in names:
        nursery.start_soon(line.receive, name, "G", "T", capacity)
        await trio.testing.wait_all_tasks_blocked()


def test_as_many_are_woken_as_there_are_messages_the_first_first() -> None:
    """Ten wait, two messages come."""

    async def scenario(line: Line, nursery: trio.Nursery, _: trio.testing.MockClock) -> None:
        await line_up(line, nursery, "abcdefghij")
        await line.arrive(2)
        # Which of two that are woken together runs first is trio's choice.
        assert sorted(line.woken) == ["a", "b"]
        await line.arrive(3)
        assert line.woken[2:] == ["c"]

    run(scenario)


def test_receivers_of_batches_are_woken_by_the_batch() -> None:
    """Forty messages are two batches of 32."""

    async def scenario(line: Line, nursery: trio.Nursery, _: trio.testing.MockClock) -> None:
        await line_up(line, nursery, "abcd", capacity=32)
        await line.arrive(40)
        assert sorted(line.woken) == ["a", "b"]

    run(scenario)


def test_every_group_of_the_topic_is_woken_and_no_other_topic() -> None:
    """Each group gets each message."""

    async def scenario(line: Line, nursery: trio.Nursery, _: trio.testing.MockClock) -> None:
        nursery.start_soon(line.receive, "g", "G")
        nursery.start_soon(line.receive, "h", "H")
        nursery.start_soon(line.receive, "other", "G", "U")
        await trio.testing.wait_all_tasks_blocked()
        await line.arrive(1)
        assert sorted(line.woken) == ["g", "h"]

    run(scenario)


def test_a_receiver_that_leaves_unused_hands_its_wake_up_on() -> None:
    """Its client has gone in the very moment in which a message came."""

    async def scenario(line: Line, nursery: trio.Nursery, _: trio.testing.MockClock) -> None:
        receiver = line.polls.join("G", "T", 1)
        await line_up(line, nursery, "b")
        await line.arrive(1)
        assert line.woken == []
        receiver.leave()
        await trio.testing.wait_all_tasks_blocked()
        assert line.woken == ["b"]

    run(scenario)


def test_what_arrives_while_a_receiver_looks_ends_its_next_wait() -> None:
    """Otherwise a message could lie there for the whole polling time."""

    async def scenario(line: Line, _: trio.Nursery, __: trio.testing.MockClock) -> None:
        receiver = line.polls.join("G", "T", 1)
        receiver.begin_look()
        await line.arrive(1)
        await wait(receiver)
        receiver.begin_look()
        with trio.move_on_after(0) as scope:
            await wait(receiver)
        assert scope.cancelled_caught
        receiver.leave()

    run(scenario)


def test_a_queue_that_begins_again_wakes_as_well() -> None:
    """Its topic was deleted and made anew."""

    async def scenario(line: Line, nursery: trio.Nursery, _: trio.testing.MockClock) -> None:
        await line.arrive(100)
        await line_up(line, nursery, "abc")
        await line.arrive(1)
        assert line.woken == ["a"]

    run(scenario)


def test_a_topic_that_is_deleted_takes_no_arrivals_of_others_with_it() -> None:
    """Its name is the beginning of the other's."""

    async def scenario(line: Line, nursery: trio.Nursery, _: trio.testing.MockClock) -> None:
        nursery.start_soon(line.receive, "a", "G", "Tea")
        await trio.testing.wait_all_tasks_blocked()
        line.polls.on_arrival([Arrival("Tea", 0, QueueOffset(1))])
        line.polls.forget_topic("T")
        await trio.testing.wait_all_tasks_blocked()
        assert line.woken == ["a"]

    run(scenario)


def test_an_expiry_wakes_one_receiver_at_its_time() -> None:
    """The earliest that anybody noted counts; one timer serves all lines."""

    async def scenario(line: Line, nursery: trio.Nursery, clock: trio.testing.MockClock) -> None:
        await line_up(line, nursery, "ab")
        line.polls.note_expiry("G", "T", 9000)
        line.polls.note_expiry("G", "T", 5000)
        line.polls.note_expiry("G", "T", 7000)
        line.polls.note_expiry("Nobody", "T", 1000)
        await trio.testing.wait_all_tasks_blocked()
        for seconds, woken in [(4.9, []), (0.2, ["a"]), (10, ["a"])]:
            clock.jump(seconds)
            await trio.testing.wait_all_tasks_blocked()
            assert line.woken == woken
        line.polls.note_expiry("G", "T", 0)
        await trio.testing.wait_all_tasks_blocked()
        assert line.woken == ["a", "b"]

    run(scenario)


def test_what_is_due_after_the_wall_clock_was_set_forward_wakes_within_a_second() -> None:
    """And after it was set back, not before the wall clock says so."""

    async def scenario(line: Line, nursery: trio.Nursery, clock: trio.testing.MockClock) -> None:
        await line_up(line, nursery, "ab")

        async def passed(seconds: float) -> list[str]:
            await trio.testing.wait_all_tasks_blocked()
            clock.jump(seconds)
            await trio.testing.wait_all_tasks_blocked()
            return line.woken

        line.polls.note_expiry("G", "T", 3_601_500)
        assert await passed(1) == []
        line.clock.offset_ms = 3_600_500
        assert await passed(1) == ["a"]
        line.clock.offset_ms = 0
        line.polls.note_expiry("G", "T", 3_601_500)
        assert await passed(3599) == ["a"]
        assert await passed(1) == ["a", "b"]

    run(scenario)


def test_the_time_of_a_receiver_ends_without_a_wake_up() -> None:
    """Each at its own; one that was woken or has left before is left alone."""

    async def scenario(line: Line, nursery: trio.Nursery, clock: trio.testing.MockClock) -> None:
        over: list[str] = []
        begin_s = shared_deadline_s(trio.current_time())
        receivers = [line.polls.join("G", "T", 1) for _ in "abcd"]
        for name, receiver, after_s in zip("abcd", receivers, (5, 7, 5, 5), strict=True):
            receiver.park(begin_s + after_s, partial(over.append, name))
        await line.arrive(1)
        assert over == ["a"]
        receivers[2].leave()
        for seconds, names in ((4.9, "a"), (0.2, "ad"), (2, "adb"), (20, "adb")):
            clock.jump(seconds)
            await trio.testing.wait_all_tasks_blocked()
            assert over == list(names)
        # All of them are still in line, and only the first has a wake-up that it did not use.
        assert [receiver.woken for receiver in receivers] == [True, False, False, False]

    run(scenario)


def test_a_full_line_turns_receivers_away() -> None:
    """And has room again when one leaves."""

    async def scenario(line: Line, _: trio.Nursery, __: trio.testing.MockClock) -> None:
        async with trio.open_nursery() as inner:
            for _number in range(WAITING_POLLS_MAX):
                inner.start_soon(line.receive, "x")
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(TooManyRequestsError, match="polling full"):
                await line.receive("y")
            line.polls.join("Other", "T", 1).leave()
            inner.cancel_scope.cancel()
        line.polls.join("G", "T", 1).leave()
        assert line.polls._lines == {}

    run(scenario)


def test_the_loop_is_not_woken_for_what_nobody_waits_for() -> None:
    """Nor does a line that is joined later count messages of before."""

    async def scenario(line: Line, nursery: trio.Nursery, _: trio.testing.MockClock) -> None:
        rounds = trio.lowlevel.current_statistics().run_sync_soon_queue_size
        line.polls.on_arrival([Arrival("T", 0, QueueOffset(5))])
        assert trio.lowlevel.current_statistics().run_sync_soon_queue_size == rounds
        for name in ("first", "second"):
            nursery.start_soon(line.receive, name)
            await trio.testing.wait_all_tasks_blocked()
        line.polls.on_arrival([Arrival("T", 0, QueueOffset(6))])
        assert trio.lowlevel.current_statistics().run_sync_soon_queue_size == rounds + 1
        await trio.testing.wait_all_tasks_blocked()
        assert line.woken == ["first"]

    run(scenario)


def test_arrivals_after_the_run_ended_wake_nobody() -> None:
    """The store is closed after the trio run that served it."""
    trio_thread = TrioThread()
    polls = LongPolling(TrioClock(), trio_thread)

    async def main() -> None:
        trio_thread.attach()
        trio_thread.detach()

    trio.run(main)
    polls.on_arrival([Arrival("T", 0, QueueOffset(1))])


class UnwalkedLines(dict[str, Any]):
    """The lines by topic, of which nobody may look at all."""

    def values(self) -> NoReturn:
        raise AssertionError("it looks through all lines")


def test_an_expiry_looks_at_no_other_line() -> None:
    """Ten thousand may wait, each in a topic of its own."""

    async def scenario(line: Line, nursery: trio.Nursery, clock: trio.testing.MockClock) -> None:
        line.polls._lines = UnwalkedLines()
        for number in range(50):
            nursery.start_soon(line.receive, f"{number}", "G", f"T{number}")
        await trio.testing.wait_all_tasks_blocked()
        for number in range(50):
            line.polls.note_expiry("G", f"T{number}", line.clock.now_ms() + 1_000 * (50 - number))
        for number in range(49, 39, -1):
            await trio.testing.wait_all_tasks_blocked()
            clock.jump(1)
            await trio.testing.wait_all_tasks_blocked()
            assert line.woken[-1] == f"{number}"

    run(scenario)


def test_times_of_receivers_that_are_gone_do_not_pile_up() -> None:
    """A time may be hours away, and each receive notes one."""

    async def scenario(line: Line, _: trio.Nursery, __: trio.testing.MockClock) -> None:
        for number in range(1_000):
            receiver = line.polls.join("G", "T", 1)
            line.polls.note_expiry("G", "T", line.clock.now_ms() + 3_600_000 + number)
            receiver.leave()
        assert len(line.polls._expiries) <= 2 * EXPIRIES_MIN

    run(scenario)
