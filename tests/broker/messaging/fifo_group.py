"""Shorthands for a FIFO group O that receives from topic F."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio.testing

from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb


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


@asynccontextmanager
async def waiting(bus: Any, **options: Any) -> AsyncIterator[list[Any]]:
    """Receive beside the block, for at most 20 s; what comes is in the list after it."""
    async with bus.receiving(topic="F", group="O", **options) as results:
        yield results
        await trio.testing.wait_all_tasks_blocked()
        assert results, "nobody woke the receiver"


async def finds_nothing(bus: Any, **options: Any) -> bool:
    """Receive in vain. Takes the shortest polling time, and nothing may become visible in it."""
    async with waiting(bus, polling_s=5, **options) as results:
        await bus.sleep(5.1)
    messages: list[Any] = results[0].messages
    return not messages
