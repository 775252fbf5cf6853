"""What the transport answers by itself, whichever RPC is called. Called over a real connection."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from commitbus.broker import Broker
from commitbus.broker.rpc.call import StatusCode
from commitbus.broker.rpc.defaults import REQUEST_BYTES_MAX, REQUEST_FIELDS_MAX
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from commitbus.broker.rpc.proto.wire_format import delimited
from tests.broker.matrix.clients import TELEMETRY
from tests.broker.matrix.registry import MESSAGING
from tests.broker.matrix.routes import ROUTE

Make = Callable[[Broker, Any], None]


class Attempt(NamedTuple):
    """A call that fails."""

    code: StatusCode
    when: str
    make: Make


ATTEMPTS: Final[list[Attempt]] = []


def attempt(code: StatusCode) -> Callable[[Make], Make]:
    """Register a call; its docstring says when any RPC is answered so."""

    def register(make: Make) -> Make:
        ATTEMPTS.append(Attempt(code, make.__doc__ or "", make))
        return make

    return register


@attempt(StatusCode.RESOURCE_EXHAUSTED)
def large_request(_broker: Broker, channel: Any) -> None:
    """The request is larger than those of this RPC may be."""
    channel.unary_unary(ROUTE)(bytes(REQUEST_BYTES_MAX + 1))


@attempt(StatusCode.RESOURCE_EXHAUSTED)
def many_fields(_broker: Broker, channel: Any) -> None:
    """The request has more elements in its lists and maps than those of this RPC may have."""
    endpoints = b"\x12\x00" * (REQUEST_FIELDS_MAX + 1)
    channel.unary_unary(ROUTE)(delimited(b"\x12", endpoints))


@attempt(StatusCode.UNIMPLEMENTED)
def unknown_rpc(_broker: Broker, channel: Any) -> None:
    """There is no such RPC, or not yet."""
    channel.unary_unary(MESSAGING + "Guess")(b"")


@attempt(StatusCode.INTERNAL)
def unreadable(_broker: Broker, channel: Any) -> None:
    """The request is not what the .proto file says; or the broker has a bug, and logs it."""
    channel.unary_unary(ROUTE)(b"\xff")


@attempt(StatusCode.DEADLINE_EXCEEDED)
def out_of_time(_broker: Broker, channel: Any) -> None:
    """The client's deadline has passed."""
    with telemetry(channel, timeout=1) as call:
        next(call)


@attempt(StatusCode.UNAVAILABLE)
def stopping(broker: Broker, channel: Any) -> None:
    """The broker stops, or is not there."""
    with telemetry(channel) as call:
        broker.stop()
        next(call)


@contextmanager
def telemetry(channel: Any, timeout: float | None = None) -> Iterator[Any]:
    """A stream that has begun and lasts until somebody ends it."""
    is_over = threading.Event()

    def requests() -> Iterator[bytes]:
        settings = pb.Settings(publishing=pb.Publishing())
        yield pb.TelemetryCommand(settings=settings).SerializeToString()
        is_over.wait()

    headers = [("x-mq-client-id", "client")]
    try:
        call = channel.stream_stream(TELEMETRY)(requests(), timeout=timeout, metadata=headers)
        assert next(call), "the settings are answered"
        yield call
    finally:
        is_over.set()
