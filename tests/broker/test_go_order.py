"""The order of a FIFO group with a consumer that goes on after a failure, as Go's push consumer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import grpc
import pytest

from commitbus.broker import Broker
from commitbus.broker.config import Transport
from commitbus.broker.embedded.broker import SMALL_FILES
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb

SERVICE = "/apache.rocketmq.v2.MessagingService/"
GROUP = "O"


@pytest.fixture(params=list(Transport))
def broker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    monkeypatch.setitem(SMALL_FILES, "transport", request.param)
    with Broker() as started:
        started.create_topic("F", queues=1, message_type="FIFO")
        yield started


def unary(channel: Any, name: str, request: Any, answer: Any) -> Any:
    call = channel.unary_unary(
        SERVICE + name,
        request_serializer=type(request).SerializeToString,
        response_deserializer=answer.FromString,
    )
    response = call(request, metadata=(("x-mq-client-id", "client"),), timeout=20)
    assert response.status.code == pb.OK, response.status.message
    return response


def send(broker: Broker, channel: Any, *bodies: bytes) -> None:
    """Send messages, and wait until all can be received; a body begins with its message group."""
    for body in bodies:
        message = pb.Message(body=body)
        message.topic.name = "F"
        message.system_properties.message_id = f"id-{body!r}"
        message.system_properties.message_group = body[:1].decode()
        unary(
            channel,
            "SendMessage",
            pb.SendMessageRequest(messages=[message]),
            pb.SendMessageResponse,
        )
    assert broker._thread.running is not None
    store = broker._thread.running.context.messaging.store
    assert store.dispatched.wait(store.end_offset, 10)


def receive(channel: Any, language: str | None) -> list[pb.Message]:
    request = pb.ReceiveMessageRequest(batch_size=32)
    request.group.name, request.message_queue.topic.name = GROUP, "F"
    request.filter_expression.type, request.filter_expression.expression = pb.TAG, "*"
    request.invisible_duration.seconds, request.long_polling_timeout.seconds = 30, 5
    call = channel.unary_stream(
        SERVICE + "ReceiveMessage",
        request_serializer=pb.ReceiveMessageRequest.SerializeToString,
        response_deserializer=pb.ReceiveMessageResponse.FromString,
    )
    metadata = [("x-mq-client-id", "client")]
    if language is not None:
        metadata.append(("x-mq-language", language))
    answers = list(call(request, metadata=metadata, timeout=20))
    return [answer.message for answer in answers if answer.HasField("message")]


def consume(channel: Any, language: str | None, failing: set[bytes]) -> tuple[list[bytes], int]:
    """Consume everything like Go: a message that fails comes again, and the rest is gone on with.

    Returns:
        What was consumed, in order, and how many messages the longest batch had.
    """
    consumed, longest, failing = list[bytes](), 0, set(failing)
    while len(consumed) < len(BODIES):
        messages = receive(channel, language)
        longest = max(longest, len(messages))
        for message in messages:
            handle = message.system_properties.receipt_handle
            if message.body in failing:
                failing.remove(message.body)
                change = pb.ChangeInvisibleDurationRequest(receipt_handle=handle)
                change.group.name, change.topic.name = GROUP, "F"
                change.invisible_duration.FromMilliseconds(200)
                unary(
                    channel, "ChangeInvisibleDuration", change, pb.ChangeInvisibleDurationResponse
                )
            else:
                consumed.append(message.body)
                ack = pb.AckMessageRequest()
                ack.group.name, ack.topic.name = GROUP, "F"
                ack.entries.add(receipt_handle=handle, message_id="some")
                unary(channel, "AckMessage", ack, pb.AckMessageResponse)
    return consumed, longest


BODIES = [b"a0", b"b0", b"a1", b"a2", b"c0", b"b1"]


def by_group(consumed: list[bytes]) -> Mapping[str, list[bytes]]:
    return {name: [body for body in consumed if body[:1] == name.encode()] for name in "abc"}


@pytest.mark.parametrize(("lock_unit", "longest"), [("QUEUE", 1), ("MESSAGE_GROUP", 3)])
def test_go_gets_one_message_of_a_lock_unit_at_a_time(
    broker: Broker, lock_unit: str, longest: int
) -> None:
    """So the order holds, though it goes on with the rest of a batch after a failure."""
    broker.create_group(GROUP, fifo=True, lock_unit=lock_unit)
    with grpc.insecure_channel(broker.endpoint) as channel:
        send(broker, channel, *BODIES)
        consumed, found = consume(channel, "GO", {b"a0", b"b0"})
    assert by_group(consumed) == by_group(BODIES)
    assert found == longest


@pytest.mark.parametrize("language", ["JAVA", "go", "KLINGON", None])
def test_every_other_language_gets_whole_batches(broker: Broker, language: str | None) -> None:
    """Their consumers try a failed message again before they go on."""
    broker.create_group(GROUP, fifo=True, lock_unit="MESSAGE_GROUP")
    with grpc.insecure_channel(broker.endpoint) as channel:
        send(broker, channel, *BODIES)
        assert [message.body for message in receive(channel, language)] == BODIES


def test_go_gets_whole_batches_of_a_group_without_order(broker: Broker) -> None:
    """There is none to lose."""
    broker.create_group(GROUP)
    with grpc.insecure_channel(broker.endpoint) as channel:
        send(broker, channel, *BODIES)
        assert [message.body for message in receive(channel, "GO")] == BODIES
