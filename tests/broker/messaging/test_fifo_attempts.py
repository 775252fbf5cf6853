"""FIFO groups: who asks again for the same attempt gets what it got."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio
import trio.testing

from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from tests.broker.messaging.fifo_group import (
    ack,
    attempts,
    finds_nothing,
    nack,
    receive,
    send,
    set_up,
)

Run = Callable[..., None]


def test_the_same_attempt_gets_the_same_batch_at_once(run: Run) -> None:
    """With new handles and no other attempt counted; another attempt waits."""

    async def scenario(bus: Any) -> None:
        await set_up(bus, b"0", b"1", b"2")
        first = await receive(bus, 2, attempt_id="A")
        await bus.sleep(1)
        again = await receive(bus, 3, attempt_id="A")
        assert (again.bodies, attempts(again)) == ([b"0", b"1"], [1, 1])
        assert set(again.handles).isdisjoint(first.handles)
        assert await finds_nothing(bus, attempt_id="B")
        assert await finds_nothing(bus, attempt_id="A", call=bus.call("other"))
        await ack(bus, again.handles[0])
        third = await receive(bus, attempt_id="A")
        assert third.bodies == [b"1"]
        await ack(bus, *third.handles)
        fourth = await receive(bus, attempt_id="A")
        assert (fourth.bodies, attempts(fourth)) == ([b"2"], [1])

    run(scenario)


def test_an_attempt_is_known_after_a_restart(run: Run) -> None:
    """When it is needed most: the answer may have been lost with the broker."""

    async def before(bus: Any) -> None:
        await set_up(bus, b"0", b"1")
        await receive(bus, 1, attempt_id="A", auto_renew=True, invisible_s=None)

    async def after(bus: Any) -> None:
        assert await finds_nothing(bus, attempt_id="B")
        again = await receive(bus, attempt_id="A")
        assert (again.bodies, attempts(again)) == ([b"0"], [1])

    run(before)
    run(after)


def test_what_another_attempt_took_over_is_not_repeated(run: Run) -> None:
    """The first attempt's batch expired; a part of it is out with the second one."""

    async def scenario(bus: Any) -> None:
        await set_up(bus, b"0", b"1")
        await receive(bus, attempt_id="A")
        await bus.sleep(31)
        second = await receive(bus, 1, attempt_id="B")
        assert second.bodies == [b"0"]
        assert await finds_nothing(bus, attempt_id="A")
        await nack(bus, second.handles[0], 0)
        await bus.sleep(0.1)
        # Nothing is out now, but 0 comes before what A had.
        third = await receive(bus, attempt_id="A")
        assert (third.bodies, attempts(third)) == ([b"0", b"1"], [3, 2])

    run(scenario)


def test_an_attempt_that_took_of_several_queues_gets_them_all_again(run: Run) -> None:
    """Whichever queue the look begins with, and nothing new with them."""

    async def scenario(bus: Any) -> None:
        await set_up(bus)
        await bus.topic("F", queues=4, attributes={"message.type": "FIFO"})
        await send(bus, b"a", message_group="gA")
        await send(bus, b"s", message_group="s-1")
        assert sorted((await receive(bus, attempt_id="A")).bodies) == [b"a", b"s"]
        await send(bus, b"g", message_group="g" * 63)
        assert sorted((await receive(bus, attempt_id="A")).bodies) == [b"a", b"s"]
        assert (await receive(bus, attempt_id="B")).bodies == [b"g"]

    run(scenario)


def test_an_attempt_id_has_a_limit_and_no_meaning_elsewhere(run: Run) -> None:
    """Ordinary groups get what is free, whatever the attempt; the client keeps its name."""

    async def scenario(bus: Any) -> None:
        await set_up(bus, b"0", b"1")
        assert (await receive(bus, attempt_id="A" * 256)).status.code == pb.BAD_REQUEST
        ordinary = [await bus.receive(topic="F", batch=1, attempt_id="A" * 999) for _ in range(2)]
        assert [received.bodies for received in ordinary] == [[b"0"], [b"1"]]
        await receive(bus, attempt_id="A" * 255)
        (entry, _) = bus.context.progress.get("O", "F", 0).in_flight.values()
        assert entry.client_id == "client"

    run(scenario)


def test_two_receivers_of_one_attempt_do_not_get_what_one_of_them_is_burying(run: Run) -> None:
    """To store a dead letter takes a while, and the message is in flight meanwhile."""

    async def scenario(bus: Any) -> None:
        await set_up(bus, b"0", retry_max_times=0)
        assert (await receive(bus, attempt_id="first", invisible_s=1)).bodies == [b"0"]
        await bus.sleep(1.1)
        found: list[bytes] = []

        async def wait() -> None:
            found.extend((await receive(bus, attempt_id="second", polling_s=5)).bodies)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked(0.1)
            await bus.sleep(5.1)
        assert found == []

    run(scenario)
