"""No request has more elements than were counted; one of few large fields costs few steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor, ServiceDescriptor
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from hypothesis import given
from hypothesis import strategies as st

from commitbus.broker.rpc.defaults import REQUEST_FIELDS_MAX
from commitbus.broker.rpc.proto import admin_v1_pb2, bulk_v1_pb2, field_count
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from commitbus.broker.rpc.proto.field_count import has_more_fields, shape_of
from commitbus.broker.rpc.proto.wire_format import LENGTH_DELIMITED, delimited, varint

SERVICES: Final[list[ServiceDescriptor]] = [
    service
    for module in (pb, admin_v1_pb2, bulk_v1_pb2, health_pb2, reflection_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
]
REQUESTS: Final = {
    rpc.input_type.full_name: rpc.input_type for service in SERVICES for rpc in service.methods
}


def repeated_below(
    message: Descriptor, path: tuple[FieldDescriptor, ...] = ()
) -> Iterator[tuple[FieldDescriptor, ...]]:
    """The fields that lead to each repeated one."""
    for field in message.fields:
        if field.is_repeated and field.type in (
            FieldDescriptor.TYPE_MESSAGE,
            FieldDescriptor.TYPE_STRING,
            FieldDescriptor.TYPE_BYTES,
        ):
            yield (*path, field)
        if field.message_type is not None:
            yield from repeated_below(field.message_type, (*path, field))


BOMBS: Final = [
    pytest.param(message, path, id="/".join((message.name, *(field.name for field in path))))
    for message in REQUESTS.values()
    for path in repeated_below(message)
]


def key(field: FieldDescriptor) -> bytes:
    """The bytes before a field's length."""
    return varint(field.number << 3 | LENGTH_DELIMITED)


def bomb(path: tuple[FieldDescriptor, ...], count: int) -> bytes:
    """A request with so many empty elements, and nothing else."""
    *outer, last = path
    data = (key(last) + b"\0") * count
    for field in reversed(outer):
        data = delimited(key(field), data)
    return data


@pytest.mark.parametrize(("message", "path"), BOMBS)
def test_too_many_elements_are_found_wherever_they_are(
    message: Descriptor, path: tuple[FieldDescriptor, ...]
) -> None:
    """In every request type of the broker; as many as are allowed pass."""
    shape, maximum = shape_of(message), REQUEST_FIELDS_MAX
    assert has_more_fields(bomb(path, maximum + 1), shape, maximum)
    assert not has_more_fields(bomb(path, maximum - len(path)), shape, maximum)


def test_there_are_such_requests() -> None:
    """Or nothing was tried above."""
    assert len(BOMBS) > 10
    assert not shape_of(pb.HeartbeatRequest.DESCRIPTOR)


_texts = st.text(max_size=3)
_messages = st.builds(
    pb.Message,
    user_properties=st.dictionaries(_texts, _texts, max_size=5),
    system_properties=st.builds(pb.SystemProperties, keys=st.lists(_texts, max_size=5)),
    body=st.binary(max_size=300),
)


@given(st.lists(_messages, max_size=8), st.integers(0, 100))
def test_no_more_elements_pass_than_are_allowed(messages: list[pb.Message], maximum: int) -> None:
    """A request with fewer fields in all is never refused."""
    request = pb.SendMessageRequest(messages=messages)
    elements = sum(
        1 + len(message.user_properties) + len(message.system_properties.keys)
        for message in messages
    )
    fields = sum(
        # Topic, system properties and body beside them; of each property its name and value.
        4 + 3 * len(message.user_properties) + len(message.system_properties.keys)
        for message in messages
    )
    is_refused = has_more_fields(
        request.SerializeToString(), shape_of(pb.SendMessageRequest.DESCRIPTOR), maximum
    )
    assert is_refused or elements <= maximum
    assert not is_refused or fields > maximum


@pytest.mark.parametrize(
    "element",
    [
        b"\x8a\x00\x00",  # the key takes a byte more than it needs
        b"\x0a\x80\x00",  # the length does
        b"\x53\x54\x0a\x00",  # a group, which is no field that there is, before each
        b"\x0a\x00\x09" + bytes(8),  # a number of 8 bytes behind each
        b"\x0a\x00\x0d" + bytes(4),  # and of 4
        b"\x0a\x00\x50\x80\x01",  # and a varint
    ],
)
def test_elements_are_found_in_any_writing(element: bytes) -> None:
    """All that the parser takes for a message is counted."""
    data = element * 2000
    assert len(pb.SendMessageRequest.FromString(data).messages) == 2000
    assert has_more_fields(data, shape_of(pb.SendMessageRequest.DESCRIPTOR), 1000)


@pytest.mark.parametrize("end", [b"\x0a", b"\x0a\x05", b"\x80", b"\xff" * 11, b"\x0a\xff", b"\x0c"])
def test_what_comes_before_rubbish_is_counted(end: bytes) -> None:
    """The parser makes it before it sees that it is no message."""
    shape = shape_of(pb.SendMessageRequest.DESCRIPTOR)
    properties = b"\x12\x00" * 2000
    assert has_more_fields(delimited(b"\x0a", properties) + end, shape, 1000)
    assert has_more_fields(delimited(b"\x0a", properties + end), shape, 1000)


def test_large_fields_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message of 4 MiB costs some steps: what is in a body is not looked at."""
    steps = 0
    original = field_count._count

    def counting(*arguments: object) -> int:
        nonlocal steps
        fields = original(*arguments)  # type: ignore[arg-type] # it takes what it is given
        steps += fields
        return fields

    monkeypatch.setattr(field_count, "_count", counting)
    request = pb.SendMessageRequest()
    message = request.messages.add(body=b"\x0a\x00" * (2 << 20))
    message.topic.name = "Topic"
    message.system_properties.message_id = "id"
    message.user_properties["name"] = "value"
    data = request.SerializeToString()
    assert not has_more_fields(data, shape_of(pb.SendMessageRequest.DESCRIPTOR), 1000)
    assert 0 < steps < 10
