"""Pulling and SQL filters as a client does it, over either transport."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, final

import grpc
import pytest

from commitbus.broker import Broker
from commitbus.broker.config import Transport
from commitbus.broker.embedded.broker import SMALL_FILES
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb

SERVICE = "/apache.rocketmq.v2.MessagingService/"
METADATA = (("x-mq-client-id", "puller"),)
QUEUES = 2


@pytest.fixture(params=list(Transport))
def channel(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[grpc.Channel]:
    monkeypatch.setitem(SMALL_FILES, "transport", request.param)
    with Broker() as broker:
        broker.create_topic("T", queues=QUEUES)
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(broker.endpoint, options) as opened:
            yield opened


@final
class Pulled(NamedTuple):
    """What one call gave."""

    code: int
    bodies: list[bytes]
    next_offset: int


def send(channel: Any, *bodies: bytes, colour: str = "red") -> None:
    call = channel.unary_unary(
        SERVICE + "SendMessage",
        request_serializer=pb.SendMessageRequest.SerializeToString,
        response_deserializer=pb.SendMessageResponse.FromString,
    )
    for number, body in enumerate(bodies):
        message = pb.Message(body=body, user_properties={"colour": colour})
        message.topic.name = "T"
        message.system_properties.message_id = f"id-{number}-{body!r}"
        message.system_properties.body_encoding = pb.IDENTITY
        answer = call(pb.SendMessageRequest(messages=[message]), metadata=METADATA, timeout=10)
        assert answer.status.code == pb.OK, answer.status.message


def pull(channel: Any, queue_id: int, offset: int, *, sql: str = "", batch: int = 32) -> Pulled:
    request = pb.PullMessageRequest(offset=offset, batch_size=batch)
    request.group.name, request.message_queue.topic.name = "G", "T"
    request.message_queue.id = queue_id
    request.long_polling_timeout.seconds = 5
    if sql:
        request.filter_expression.type, request.filter_expression.expression = pb.SQL, sql
    call = channel.unary_stream(
        SERVICE + "PullMessage",
        request_serializer=pb.PullMessageRequest.SerializeToString,
        response_deserializer=pb.PullMessageResponse.FromString,
    )
    responses: Sequence[pb.PullMessageResponse] = list(call(request, metadata=METADATA, timeout=20))
    status, *messages, place = responses
    return Pulled(status.status.code, [part.message.body for part in messages], place.next_offset)


def test_broadcasting_consumers_each_see_everything(channel: grpc.Channel) -> None:
    """What is there, and what comes while they wait; each with its own offsets."""
    seen: dict[int, list[bytes]] = {0: [], 1: []}

    def consume(consumer: int, queue_id: int, enough: threading.Event) -> None:
        offset = 0
        while not enough.is_set():
            pulled = pull(channel, queue_id, offset, batch=3)
            assert pulled.code in {pb.OK, pb.MESSAGE_NOT_FOUND}
            seen[consumer] += pulled.bodies
            offset = pulled.next_offset
            if all(len(bodies) >= 40 for bodies in seen.values()):
                enough.set()

    send(channel, *(b"early %d" % number for number in range(20)))
    enough = threading.Event()
    threads = [
        threading.Thread(target=consume, args=(consumer, queue_id, enough))
        for consumer in seen
        for queue_id in range(QUEUES)
    ]
    for thread in threads:
        thread.start()
    send(channel, *(b"late %d" % number for number in range(20)))
    assert enough.wait(60)
    send(channel, b"the end", b"the end")  # one for each queue, and whoever still waits there
    for thread in threads:
        thread.join(60)
    for bodies in seen.values():
        bodies[:] = [body for body in bodies if body != b"the end"]
    expected = sorted(b"%s %d" % (when, n) for when in (b"early", b"late") for n in range(20))
    assert sorted(seen[0]) == sorted(seen[1]) == expected


def test_an_sql_filter_is_understood(channel: grpc.Channel) -> None:
    """And the offset passes over what it does not let pass."""
    send(channel, b"1", b"2", colour="red")
    send(channel, b"3", b"4", colour="green")
    pulled = [pull(channel, queue_id, 0, sql="colour = 'green'") for queue_id in range(QUEUES)]
    assert sorted(body for answer in pulled for body in answer.bodies) == [b"3", b"4"]
    assert sum(answer.next_offset for answer in pulled) == 4
