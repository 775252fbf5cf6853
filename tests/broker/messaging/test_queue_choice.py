"""Which queue a message goes to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from commitbus.broker.core.queue_choice import queue_of_group
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


async def send_groups(bus: Any, make: Make, topic: str, *groups: str) -> Any:
    """Send one request with a message for each group; its body is its group and its number."""
    messages = []
    for number, group in enumerate(groups):
        made = make(f"{group}{number}".encode(), topic=topic, message_id=f"id-{number}")
        made.system_properties.message_group = group
        messages.append(made)
    response = await bus.unary("SendMessage", pb.SendMessageRequest(messages=messages))
    assert response.status.code == pb.OK, response.status.message
    bus.settle()
    return response


def ends(bus: Any, topic: str, count: int) -> list[int]:
    return [bus.context.store.max_offset(topic, queue_id) for queue_id in range(count)]


def test_a_request_goes_to_the_queue_of_its_group(run: Run, message: Make) -> None:
    """One message, or several of one group."""

    async def scenario(bus: Any) -> None:
        await bus.topic("F", queues=4, attributes={"message.type": "FIFO"})
        for groups, expected in (
            (["gA"], [0, 0, 0, 1]),
            (["s-1"], [1, 0, 0, 1]),
            (["gA", "gA"], [1, 0, 0, 3]),
        ):
            await send_groups(bus, message, "F", *groups)
            assert ends(bus, "F", 4) == expected

    run(scenario)


def test_a_request_with_several_groups_is_split_by_group(run: Run, message: Make) -> None:
    """Each group's messages go to its own queue, in their order, as if they were sent alone."""

    async def scenario(bus: Any) -> None:
        await bus.topic("F", queues=4, attributes={"message.type": "FIFO"})
        offsets: list[int] = []
        for _ in range(3):
            response = await send_groups(bus, message, "F", "gA", "s-1", "gA", "gggA", "s-1")
            ids = [entry.message_id for entry in response.entries]
            assert ids == [f"id-{number}" for number in range(5)]
            offsets = [entry.offset for entry in response.entries]
        of_third = queue_of_group("gggA", 4)
        expected = Counter({3: 6, 0: 6})
        expected[of_third] += 3
        assert ends(bus, "F", 4) == [expected[queue_id] for queue_id in range(4)]
        # The offsets in the answer are those in each message's own queue.
        assert offsets[:3] == [4, 4, 5]
        await bus.group("O", consume_message_orderly=True)
        bodies: list[bytes] = []
        while len(bodies) < 15:
            received = await bus.receive(topic="F", group="O")
            bodies += received.bodies
            await bus.ack(*received.handles, topic="F", group="O")
        assert [body for body in bodies if body.startswith(b"gA")] == [b"gA0", b"gA2"] * 3
        assert [body for body in bodies if body.startswith(b"s-1")] == [b"s-11", b"s-14"] * 3

    run(scenario)


def test_messages_with_and_without_a_group_in_one_request(run: Run, message: Make) -> None:
    """In a topic of mixed messages those with a group go to its queue, the others in turn."""

    async def scenario(bus: Any) -> None:
        await bus.topic("M", queues=4, attributes={"message.type": "MIXED"})
        for turn in range(3):
            await send_groups(bus, message, "M", "", "gA", "")
            expected = [0, 0, 0, turn + 1]
            for queue_id in range(turn + 1):
                expected[queue_id] += 2
            assert ends(bus, "M", 4) == expected

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
