"""Dead letters: what a group gave up on is kept in a topic of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from commitbus.commitlog.errors import DiskFullError
from commitbus.commitlog.types import Host, OutgoingMessage

Run = Callable[..., None]


async def forward(bus: Any, handle: str, **names: str) -> pb.Code:
    request = pb.ForwardMessageToDeadLetterQueueRequest(receipt_handle=handle)
    request.group.name = names.get("group", "G")
    request.topic.name = names.get("topic", "T")
    response = await bus.unary("ForwardMessageToDeadLetterQueue", request)
    code: pb.Code = response.status.code
    return code


def test_a_forwarded_message_moves_to_the_groups_dead_letter_queue(run: Run) -> None:
    """Its copy says where it came from; the original is acknowledged."""

    async def scenario(bus: Any) -> None:
        await bus.send(b"bad", tag="dl")
        received = await bus.receive()
        assert await forward(bus, received.handles[0]) == pb.OK
        topic = bus.context.metadata.topic("%DLQ%G")
        assert (topic.read_queue_nums, topic.write_queue_nums) == (1, 1)
        assert bus.context.progress.get("G", "T", 0).committed_offset == 1
        bus.settle()
        (letter,) = (await bus.receive(topic="%DLQ%G", group="Undertaker")).messages
        system = letter.system_properties
        assert (letter.body, system.tag) == (b"bad", "dl")
        assert system.dead_letter_queue.topic == "T"
        assert system.dead_letter_queue.message_id == (
            received.messages[0].system_properties.message_id
        )
        assert dict(letter.user_properties) == {}
        assert bus.context.counters.dead_letters == {("G", "T"): 1}

    run(scenario)


def test_forwarding_twice_moves_it_once(run: Run) -> None:
    """A client repeats a call whose answer it missed."""

    async def scenario(bus: Any) -> None:
        await bus.send(b"bad")
        (handle,) = (await bus.receive()).handles
        assert await forward(bus, handle) == pb.OK
        assert await forward(bus, handle) == pb.OK
        bus.settle()
        assert bus.context.store.max_offset("%DLQ%G", 0) == 1

    run(scenario)


def test_what_cannot_be_forwarded_stays(run: Run) -> None:
    """Bad names, a bad handle, a full disk."""

    async def scenario(bus: Any) -> None:
        await bus.send(b"bad")
        (handle,) = (await bus.receive()).handles
        assert await forward(bus, handle, topic="") == pb.ILLEGAL_TOPIC
        assert await forward(bus, handle, group="") == pb.ILLEGAL_CONSUMER_GROUP
        assert await forward(bus, "x") == pb.INVALID_RECEIPT_HANDLE
        assert bus.context.progress.get("G", "T", 0).committed_offset == 0

    run(scenario)


def test_a_message_delivered_too_often_is_buried_instead(run: Run) -> None:
    """After the first delivery and the group's retries; others are not held up."""

    async def scenario(bus: Any) -> None:
        await bus.group("Twice", retry_max_times=1)
        await bus.send(b"bad")
        for attempt in (1, 2):
            (message,) = (await bus.receive(group="Twice", invisible_s=1)).messages
            assert message.system_properties.delivery_attempt == attempt
            await bus.sleep(1.5)
        await bus.send(b"good")
        assert (await bus.receive(group="Twice")).bodies == [b"good"]
        bus.settle()
        assert (await bus.receive(topic="%DLQ%Twice", group="Other")).bodies == [b"bad"]
        (unit,) = bus.context.store.fetch("%DLQ%Twice", 0, 0, 1).units
        assert bus.context.store.read(unit.physical_offset).reconsume_times == 1

    run(scenario)


def test_a_group_without_a_limit_is_tried_for_ever(run: Run) -> None:
    """RocketMQ writes -1 for it."""

    async def scenario(bus: Any) -> None:
        await bus.group("Stubborn", retry_max_times=-1)
        await bus.send(b"bad")
        for attempt in range(1, 30):
            (message,) = (await bus.receive(group="Stubborn", invisible_s=1)).messages
            assert message.system_properties.delivery_attempt == attempt
            await bus.sleep(1.5)

    run(scenario)


def test_a_dead_letter_that_cannot_be_stored_stays_in_flight(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Any
) -> None:
    """And is tried again; the receiver gets what else there is."""

    async def scenario(bus: Any) -> None:
        await bus.group("Once", retry_max_times=0)
        await bus.send(b"bad")
        await bus.receive(group="Once", invisible_s=1)
        await bus.send(b"good")
        await bus.sleep(1.5)

        def fail(_: object) -> None:
            raise DiskFullError(tmp_path, 1)

        with monkeypatch.context() as patch:
            patch.setattr(bus.context.store, "put", fail)
            assert (await bus.receive(group="Once", invisible_s=1)).bodies == [b"good"]
        assert bus.context.progress.get("Once", "T", 0).committed_offset == 0
        assert bus.context.metadata.topic("%DLQ%Once") is not None

    run(scenario)
    assert "dead letter not stored" in caplog.text


def test_a_message_with_properties_that_cannot_be_stored_again_is_buried_all_the_same(
    run: Run,
) -> None:
    """RocketMQ's remoting producers may put a separator into a value."""

    async def scenario(bus: Any) -> None:
        bus.context.store.put(
            OutgoingMessage(
                topic="T",
                queue_id=0,
                body=b"bad",
                properties=b"UNIQ_KEY\x01id\x02odd\x01a\x01b\x02TAGS\x01t\x02",
                born_timestamp=1,
                born_host=Host.parse("127.0.0.1", 1),
            )
        )
        bus.settle()
        (handle,) = (await bus.receive()).handles
        assert await forward(bus, handle) == pb.OK
        bus.settle()
        (letter,) = (await bus.receive(topic="%DLQ%G", group="Undertaker")).messages
        assert (letter.body, letter.system_properties.tag) == (b"bad", "t")
        assert dict(letter.user_properties) == {}

    run(scenario)
