"""A toy kind: delayed messages in one entry of the table and one function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import trio

from commitbus.broker.core import properties as names
from commitbus.broker.core.broker import BrokerCore
from commitbus.broker.core.kinds import DELAY, KINDS
from commitbus.broker.core.outgoing import stored_again
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from commitbus.commitlog.types import QueueOffset


async def deliver(broker: BrokerCore) -> None:
    offset = QueueOffset(0)
    while True:
        await trio.sleep(1)
        for unit in broker.store.fetch(TOY.held_in, 0, offset, 32).units:
            record = broker.store.read(unit.physical_offset)
            properties = dict(record.properties)
            if int(properties[names.DELIVERY_TIME_MS]) > broker.clock.now_ms():
                break
            topic, queue_id = properties.pop(names.REAL_TOPIC), properties.pop(names.REAL_QUEUE_ID)
            broker.store.put(stored_again(record, topic, int(queue_id), properties))
            offset = QueueOffset(unit.queue_offset + 1)


TOY = replace(
    DELAY,
    properties=lambda fields: {names.DELIVERY_TIME_MS: str(fields.delivery_ms)},
    held_in="rmq_sys_toy_timer",
    deliver=deliver,
    is_supported=True,
)


def test_a_delayed_message_arrives_at_its_time(
    run: Callable[..., None], message: Callable[..., pb.Message], monkeypatch: Any
) -> None:
    monkeypatch.setitem(KINDS, DELAY.type, TOY)

    async def scenario(bus: Any) -> None:
        await bus.topic("Delayed", queues=4, attributes={"message.type": "DELAY"})
        made = message(b"later", topic="Delayed")
        made.system_properties.delivery_timestamp.FromMilliseconds(bus.now_ms() + 10_000)
        await bus.unary("SendMessage", pb.SendMessageRequest(messages=[made]))
        bus.settle()
        async with bus.receiving(topic="Delayed") as received:
            await bus.sleep(9)
            assert not received
            await bus.sleep(2)
        assert received[0].messages[0].system_properties.message_type == pb.DELAY

    run(scenario)
