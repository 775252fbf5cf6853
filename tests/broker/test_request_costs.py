"""No answer is much larger than its request, whatever texts a client sends as names.

Over a real connection, with a client of another implementation: it must see each refusal.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import grpc
import pytest
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from commitbus.broker import Broker
from commitbus.broker.common.shown import MESSAGE_BYTES_MAX
from commitbus.broker.rpc.proto import admin_v1_pb2, bulk_v1_pb2
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb

TOPIC, GROUP = "Topic", "Group"
QUEUES: Final = 1024
TEXT_CHARACTERS: Final = 20_000
QUEUE_BYTES: Final = 1024
"""What an answer may say of each queue."""
RPCS: Final = [
    method
    for module in (pb, admin_v1_pb2, bulk_v1_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]
HEADERS: Final = (("x-mq-client-id", "client"), ("x-mq-client-version", "5.0.7"))


@pytest.fixture(scope="module")
def channel() -> Iterator[Any]:
    """A connection to a broker with a wide topic."""
    options = [("grpc.max_receive_message_length", -1)]
    with Broker() as broker, grpc.insecure_channel(broker.endpoint, options) as channel:
        broker.create_topic(TOPIC, queues=QUEUES)
        yield channel


def fill(message: Message, text: str, *, names: bool) -> None:
    """Set every text of a request; with `names` topics and groups are such that there are."""
    for field in message.DESCRIPTOR.fields:
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            _fill_message(message, field, text, names=names)
        elif field.type not in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
            if field.name == "port":
                setattr(message, field.name, 8081)
        elif field.is_repeated:
            getattr(message, field.name).append(text)
        elif field.type == FieldDescriptor.TYPE_BYTES:
            setattr(message, field.name, text.encode())
        elif field.containing_oneof is None or not message.WhichOneof(field.containing_oneof.name):
            setattr(message, field.name, text)
            if names and field.name in ("name", "topic", "group"):
                is_group = "group" in (field.name, message.DESCRIPTOR.name.lower())
                setattr(message, field.name, GROUP if is_group else TOPIC)


# The two kinds of descriptors that the stubs know have nothing in common.
def _fill_message(message: Message, field: Any, text: str, *, names: bool) -> None:
    value = getattr(message, field.name)
    if field.message_type.GetOptions().map_entry:
        if field.message_type.fields_by_name["value"].type == FieldDescriptor.TYPE_STRING:
            value[text] = text
    elif field.is_repeated:
        fill(value.add(), text, names=names)
    elif not message.WhichOneof(field.containing_oneof.name) if field.containing_oneof else True:
        fill(value, text, names=names)


def answers(channel: Any, rpc: MethodDescriptor, request: Message) -> list[bytes]:
    """The answers to one request; none if it is refused."""
    path = f"/{rpc.containing_service.full_name}/{rpc.name}"
    data = request.SerializeToString()
    kinds = {
        (False, False): (channel.unary_unary, data),
        (False, True): (channel.unary_stream, data),
        (True, True): (channel.stream_stream, iter([data])),
    }
    make, sent = kinds[rpc.client_streaming, rpc.server_streaming]
    try:
        found = make(path)(sent, timeout=10, metadata=HEADERS)
        return list(found) if rpc.server_streaming else [found]
    except grpc.RpcError as error:
        check_refusal(error)
        return []


def check_refusal(error: grpc.RpcError) -> None:
    """Check that the client sees a status of ours."""
    assert isinstance(error, grpc.Call)
    # It sees neither code nor text of one that is too large for the headers.
    assert error.code() not in (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL)
    details = error.details() or ""
    assert "metadata" not in details
    assert "header" not in details
    assert len(details.encode()) <= MESSAGE_BYTES_MAX


def statuses(answer: Message) -> Iterator[pb.Status]:
    """Every status in an answer."""
    for field, value in answer.ListFields():
        if field.type == FieldDescriptor.TYPE_MESSAGE and not isinstance(value, dict):
            for one in value if field.is_repeated else [value]:
                if isinstance(one, pb.Status):
                    yield one
                elif isinstance(one, Message):
                    yield from statuses(one)


@pytest.mark.parametrize("names", [False, True], ids=["any names", "names that there are"])
@pytest.mark.parametrize("text", ["x", "\u20ac", "\x01"], ids=["ascii", "wide", "control"])
@pytest.mark.parametrize("rpc", RPCS, ids=lambda rpc: rpc.full_name.rpartition(".v")[2])
def test_no_answer_is_much_larger_than_its_request(
    channel: Any, rpc: MethodDescriptor, text: str, *, names: bool
) -> None:
    """For every RPC, with long texts in every field; no status is longer than 1 KB."""
    request = GetMessageClass(rpc.input_type)()
    fill(request, text * TEXT_CHARACTERS, names=names)
    for data in answers(channel, rpc, request):
        answer = GetMessageClass(rpc.output_type).FromString(data)
        for status in statuses(answer):
            assert len(status.message.encode()) <= MESSAGE_BYTES_MAX
        assert len(data) <= 2 * request.ByteSize() + QUEUES * QUEUE_BYTES


@pytest.mark.parametrize("text", ["x", "\u20ac", "\x01"])
def test_the_refusal_of_a_long_path_is_seen(channel: Any, text: str) -> None:
    """A method that there is not."""
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(f"/{'x' * 7000}/{text.encode().hex()}")(b"", timeout=10)
    assert isinstance(caught.value, grpc.Call)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert len(caught.value.details() or "") <= MESSAGE_BYTES_MAX
