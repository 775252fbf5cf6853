"""FIFO groups: each queue in order, one batch at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio
import trio.testing

from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb

Run = Callable[..., None]
Receive = Callable[..., Any]


async def set_up(bus: Any, *bodies: bytes, **group: Any) -> None:
    """Make topic F (FIFO, one queue) and group O, and send messages of message group g."""
    await bus.topic("F", attributes={"message.type": "FIFO"})
    await bus.group("O", consume_message_orderly=True, **group)
    await send(bus, *bodies)


async def send(bus: Any, *bodies: bytes, message_group: str = "g") -> None:
    for body in bodies:
        message = pb.Message(body=body)
        message.topic.name = "F"
        message.system_properties.message_id = f"id-{body!r}"
        message.system_properties.message_group = message_group
        response = await bus.unary("SendMessage", pb.SendMessageRequest(messages=[message]))
        assert response.status.code == pb.OK, response.status.message
    bus.settle()


async def receive(bus: Any, batch: int = 32, **options: Any) -> Any:
    return await bus.receive(topic="F", group="O", batch=batch, **options)


async def ack(bus: Any, *handles: str) -> None:
    assert await bus.ack(*handles, topic="F", group="O") == [pb.OK] * len(handles)


async def nack(bus: Any, handle: str, seconds: float, **options: Any) -> str:
    answer = await bus.change(handle, seconds, topic="F", group="O", **options)
    assert answer.status.code == pb.OK, answer.status.message
    return str(answer.receipt_handle)


def attempts(received: Any) -> list[int]:
    return [message.system_properties.delivery_attempt for message in received.messages]


async def finds_nothing(bus: Any) -> bool:
    """Receive in vain. Takes the shortest polling time, and nothing may become visible in it."""
    found: list[Any] = []

    async def wait() -> None:
        found.append(await receive(bus, polling_s=5))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await bus.sleep(5.1)
    return found[0].messages == []


def test_the_next_batch_waits_until_all_of_the_first_is_acknowledged(run: Run) -> None:
    """Whoever asks; and a part that is acknowledged is not enough."""

    async def scenario(bus: Any) -> None:
        await set_up(bus, b"0", b"1", b"2", b"3")
        first = await receive(bus, 2)
        assert first.bodies == [b"0", b"1"]
        await ack(bus, first.handles[1])
        assert await finds_nothing(bus)
        await ack(bus, first.handles[0])
        assert (await receive(bus)).bodies == [b"2", b"3"]

    run(scenario)


def test_an_acknowledgement_wakes_who_waits_for_the_queue(run: Run) -> None:
    """At once, without an arrival."""

    async def scenario(bus: Any) -> None:
        await set_up(bus, b"0", b"1")
        first = await receive(bus, 1)
        async with trio.open_nursery() as nursery:
            results: list[Any] = []

            async def wait() -> None:
                results.append(await receive(bus))

            nursery.start_soon(wait)
            await bus.sleep(1)
            assert not results
            await ack(bus, *first.handles)
            await trio.testing.wait_all_tasks_blocked()
            assert results[0].bodies == [b"1"]

    run(scenario)
