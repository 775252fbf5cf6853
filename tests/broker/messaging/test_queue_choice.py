"""Which queue a message goes to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from commitbus.broker.messaging.queue_choice import queue_of_group
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb

Run = Callable[..., None]
Make = Callable[..., pb.Message]


@pytest.mark.parametrize(
    ("message_group", "queue_id"), [("gA", 3), ("g" * 63, 2), ("s-1", 0), ("s-2", 0)]
)
def test_a_message_group_has_the_queue_that_rocketmq_gives_it(
    message_group: str, queue_id: int
) -> None:
    """Measured at RocketMQ 5.5.0, with 4 queues."""
    assert queue_of_group(message_group, 4) == queue_id


def test_groups_are_spread_and_few_move_when_queues_are_added() -> None:
    """What the hash is for: of 2,000 groups a fifth moves, all of them to the new queue."""
    groups = [f"group-{number}" for number in range(2_000)]
    before = {group: queue_of_group(group, 4) for group in groups}
    after = {group: queue_of_group(group, 5) for group in groups}
    assert all(400 < count < 600 for count in Counter(before.values()).values())
    moved = [group for group in groups if before[group] != after[group]]
    assert 300 < len(moved) < 500
    assert {after[group] for group in moved} == {4}
    assert {queue_of_group(group, 1) for group in groups} == {0}


def test_a_request_goes_to_the_queue_of_its_group(run: Run, message: Make) -> None:
    """One message or several of one group; several groups in one request go in turn."""

    async def scenario(bus: Any) -> None:
        await bus.topic("F", queues=4, attributes={"message.type": "FIFO"})
        ends = [0] * 4

        async def send(*groups: str) -> int:
            messages = [message(topic="F") for _ in groups]
            for made, group in zip(messages, groups, strict=True):
                made.system_properties.message_group = group
            response = await bus.unary("SendMessage", pb.SendMessageRequest(messages=messages))
            assert response.status.code == pb.OK
            assert len(response.entries) == len(groups)
            bus.settle()
            before, ends[:] = ends[:], [bus.context.store.max_offset("F", q) for q in range(4)]
            (queue_id,) = (q for q in range(4) if ends[q] == before[q] + len(groups))
            return int(queue_id)

        assert [await send("gA"), await send("s-1"), await send("gA", "gA")] == [3, 0, 3]
        assert [await send("gA", "s-1") for _ in range(5)] == [0, 1, 2, 3, 0]

    run(scenario)


def test_without_a_writable_queue_a_group_is_refused(run: Run, message: Make) -> None:
    """Like every other message."""

    async def scenario(bus: Any) -> None:
        await bus.topic("F", perm=4, attributes={"message.type": "FIFO"})
        made = message(topic="F")
        made.system_properties.message_group = "g"
        response = await bus.unary("SendMessage", pb.SendMessageRequest(messages=[made]))
        assert response.status.code == pb.FORBIDDEN

    run(scenario)


def test_a_consumer_sees_the_group_and_no_trace_of_how_it_is_stored(
    run: Run, message: Make
) -> None:
    """`__SHARDINGKEY` is no property of the producer's, and its own of that name is not kept."""

    async def scenario(bus: Any) -> None:
        await bus.topic("F", attributes={"message.type": "FIFO"})
        made = message(topic="F")
        made.system_properties.message_group = "örder 7"
        made.user_properties["__SHARDINGKEY"] = "forged"
        made.user_properties["p"] = "v"
        response = await bus.unary("SendMessage", pb.SendMessageRequest(messages=[made]))
        assert response.status.code == pb.OK
        bus.settle()
        (got,) = (await bus.receive(topic="F")).messages
        assert dict(got.user_properties) == {"p": "v"}
        system = got.system_properties
        assert (system.message_type, system.message_group) == (pb.FIFO, "örder 7")

    run(scenario)
