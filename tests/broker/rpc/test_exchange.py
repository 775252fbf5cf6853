"""A request is counted before it is parsed; a task of a handler knows for whom it works."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import pytest
import trio

from commitbus.broker.common.worker_lines import address_served, serve_caller
from commitbus.broker.rpc.access import NOTHING
from commitbus.broker.rpc.call import Call, RpcError, Send, StatusCode
from commitbus.broker.rpc.defaults import COMPRESSED_FIELDS_MIN, COMPRESSED_FIELDS_PER_BYTE
from commitbus.broker.rpc.exchange import Crew, Exchange, parse
from commitbus.broker.rpc.method import Handler, Method, MethodKind, Parked
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
        access=NOTHING,
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


class Waiter(Parked):
    """A parked handler that notes for whom it goes on."""

    def __init__(self) -> None:
        self.served: list[str] = []
        self.wake: Callable[[], None]

    def when_woken(self, go_on: Callable[[], None]) -> None:
        """Be parked."""
        self.wake = go_on

    async def resume(self) -> Parked | None:
        """Note it."""
        self.served.append(address_served())
        return None

    def abandon(self) -> None:
        """Be told that nobody waits."""


async def _take(*_: object) -> None:
    """Be a stream of responses that nobody looks at."""


def start(crew: Crew, kind: MethodKind, handler: Handler, peer: str) -> None:
    """Begin a call."""
    method = Method(
        "/s/M", kind, pb.QueryOffsetRequest, pb.QueryOffsetResponse, handler, access=NOTHING
    )
    call = Call("/s/M", {}, peer, None, None)
    Exchange(method, call, crew=crew, finish=lambda _: None).start(
        None, call, *((_take,) if kind.streams_responses else ())
    )


def test_a_task_works_for_the_caller_whoever_started_or_woke_it() -> None:
    """Worker threads are shared between callers by that."""
    served: list[str] = []

    async def answer(_request: object, _call: Call) -> pb.QueryOffsetResponse:
        served.append(address_served())
        return pb.QueryOffsetResponse()

    waiter = Waiter()

    def park(_request: object, _call: Call, _send: Send | None = None) -> Parked:
        return waiter

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            crew = Crew(nursery)
            start(crew, MethodKind.UNARY, answer, "10.0.0.1:5")
            start(crew, MethodKind.UNARY, answer, "[::1]:5")
            start(crew, MethodKind.SERVER_STREAM, park, "10.0.0.2:5")
            serve_caller("10.0.0.3:5")
            waiter.wake()

    trio.run(main)
    assert sorted(served) == ["0:0:0:0::/64", "10.0.0.1"]
    assert waiter.served == ["10.0.0.2"]
