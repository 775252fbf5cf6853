"""A request is counted before it is parsed."""

from __future__ import annotations

import zlib
from typing import Any

import pytest

from commitbus.broker.rpc.call import RpcError, StatusCode
from commitbus.broker.rpc.defaults import COMPRESSED_FIELDS_MIN, COMPRESSED_FIELDS_PER_BYTE
from commitbus.broker.rpc.exchange import parse
from commitbus.broker.rpc.method import Method, MethodKind
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb

EMPTY_MESSAGE = b"\x0a\x00"


def sending(*, max_fields: int) -> Method:
    """A method that takes messages."""
    return Method(
        "/test.Service/Send",
        MethodKind.UNARY,
        pb.SendMessageRequest,
        pb.SendMessageResponse,
        lambda *_: pb.SendMessageResponse(),
        max_request_fields=max_fields,
    )


def parsed(request: Any) -> pb.SendMessageRequest:
    """A request that was taken."""
    assert isinstance(request, pb.SendMessageRequest)
    return request


def test_a_request_with_too_many_fields_is_never_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """2 GB would be made of 64 MiB of them."""
    method = sending(max_fields=1000)
    assert len(parsed(parse(method, EMPTY_MESSAGE * 1000)).messages) == 1000
    monkeypatch.setattr(pb.SendMessageRequest, "FromString", None)
    refused = parse(method, EMPTY_MESSAGE * (32 << 20))
    assert isinstance(refused, RpcError)
    assert refused.code is StatusCode.RESOURCE_EXHAUSTED
    assert refused.message == f"a message of {64 << 20} bytes has more than 1000 fields"


def test_a_compressed_request_may_have_as_many_fields_as_its_bytes_are_worth() -> None:
    """Empty messages take 500 times less room on the wire than they have bytes."""
    method = sending(max_fields=65_536)
    data = EMPTY_MESSAGE * 20_000
    packed_bytes = len(zlib.compress(data))
    assert COMPRESSED_FIELDS_MIN + COMPRESSED_FIELDS_PER_BYTE * packed_bytes < 20_000
    assert len(parsed(parse(method, data)).messages) == 20_000
    assert isinstance(parse(method, data, packed_bytes), RpcError)
    assert len(parsed(parse(method, data, 5_000)).messages) == 20_000


def test_a_small_compressed_request_has_room_for_what_repeats() -> None:
    """A batch of messages that differ in their ids only is packed well."""
    request = pb.SendMessageRequest()
    for number in range(1024):
        message = request.messages.add(body=b"the same text each time" * 10)
        message.topic.name = "Topic"
        message.user_properties["name"] = "value"
        message.system_properties.message_id = f"01{number:032X}"
    data = request.SerializeToString()
    packed_bytes = len(zlib.compress(data))
    assert packed_bytes < len(data) / 10
    assert len(parsed(parse(sending(max_fields=65_536), data, packed_bytes)).messages) == 1024
