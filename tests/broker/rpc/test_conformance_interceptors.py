"""What every transport promises to interceptors: each call of each shape passes them."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any, final

import grpc
import pytest
import trio
from google.protobuf.message import Message

from commitbus.broker.common.errors import BadRequestError
from commitbus.broker.rpc.call import (
    CLIENT_ID_HEADER,
    Call,
    CallWatch,
    Pieces,
    Response,
    RpcError,
    StatusCode,
)
from commitbus.broker.rpc.http2.unpacking import UNPACKED_HERE_BYTES
from commitbus.broker.rpc.method import Begin, Later, Method, MethodKind
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb

WAIT_S = 20.0
# Defined in conftest.py, which a test module cannot import.
Kit = Any
Start = Callable[..., Any]
Connect = Callable[..., Any]


@final
class Journal:
    """A toy interceptor: it notes what passes, and lets one client send no request."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def intercept(self, method: Method) -> Begin | None:
        """Be asked about a method."""
        if method.service == "grpc.health.v1.Health":
            return None
        return lambda call: JournalOfCall(self, method, call)


@final
class JournalOfCall(CallWatch):
    """One call in the journal."""

    def __init__(self, journal: Journal, method: Method, call: Call) -> None:
        self._lines, self._call = journal.lines, call
        self._note(f"begin {method.path.rpartition('/')[2]}")

    def _note(self, line: str) -> None:
        self._lines.append(line)

    def received(self, request: Message | bytes) -> None:
        """Refuse the one client."""
        if self._call.client_id == "intruder":
            raise RpcError(StatusCode.PERMISSION_DENIED, "not you")
        self._note("request")

    def responding(self, responses: tuple[Response | Pieces, ...]) -> None:
        """Count responses."""
        self._note(f"{len(responses)} responses")

    def ended(self, error: RpcError | None, *, was_cancelled: bool) -> None:
        """Note the end."""
        self._note("cancelled" if was_cancelled else error.code.name if error else "OK")


def until(journal: Journal, last: str) -> list[str]:
    """The journal, once this line has come, which may be after the client knows the end."""
    deadline_s = time.monotonic() + WAIT_S
    while journal.lines[-1:] != [last]:
        assert time.monotonic() < deadline_s, journal.lines
        time.sleep(0.001)
    return journal.lines


async def answer_later(_request: object, _call: Call) -> Message:
    """Answer from a task."""
    await trio.lowlevel.checkpoint()
    return pb.RecallMessageResponse()


def answer_settled(_request: object, _call: Call) -> Later:
    """Answer without a task."""
    later = Later()
    trio.lowlevel.current_trio_token().run_sync_soon(later.settle, pb.RecallMessageResponse)
    return later


@pytest.mark.parametrize("handler", [None, answer_later, answer_settled])
def test_unary_calls_pass(
    kit: Kit, start_server: Start, connect: Connect, handler: Callable[..., Any] | None
) -> None:
    """Whether their handlers answer at once, from a task, or are settled by others."""
    journal = Journal()
    server = start_server(kit.unary(handler or kit.echo), interceptors=[journal.intercept])
    connect(server).ask(kit.text("hello"))
    assert until(journal, "OK") == ["begin Heartbeat", "request", "1 responses", "OK"]


@pytest.mark.parametrize("handler", [None, answer_later, answer_settled])
@pytest.mark.parametrize("client_id", ["friend", "intruder"])
def test_calls_whose_request_is_unpacked_first_pass_once(
    kit: Kit,
    start_server: Start,
    connect: Connect,
    handler: Callable[..., Any] | None,
    client_id: str,
) -> None:
    """Another thread unpacks large ones, before the call begins."""
    journal = Journal()
    server = start_server(kit.unary(handler or kit.echo), interceptors=[journal.intercept])
    options = {"compression": grpc.Compression.Gzip, "metadata": [(CLIENT_ID_HEADER, client_id)]}
    request = kit.text(os.urandom(2 * UNPACKED_HERE_BYTES).hex())
    if client_id == "intruder":
        with kit.refused(grpc.StatusCode.PERMISSION_DENIED, "not you"):
            connect(server).ask(request, **options)
        assert until(journal, "PERMISSION_DENIED") == ["begin Heartbeat", "PERMISSION_DENIED"]
    else:
        connect(server).ask(request, **options)
        assert until(journal, "OK") == ["begin Heartbeat", "request", "1 responses", "OK"]


def test_streams_pass_both_ways(kit: Kit, start_server: Start, connect: Connect) -> None:
    """Each request and all responses are seen, in their order."""

    async def handler(requests: AsyncIterator[Message], _: Call, send: Any) -> None:
        async for request in requests:
            await send(request, request)

    journal = Journal()
    client = connect(start_server(kit.bidi(handler), interceptors=[journal.intercept]))
    assert len(list(client.talk(iter([kit.command("a"), kit.command("b")])))) == 4
    each = ["request", "2 responses"]
    assert until(journal, "OK") == ["begin Telemetry", *each, *each, "OK"]


@pytest.mark.parametrize("kind", MethodKind)
def test_a_refused_request_is_the_calls_end(
    kit: Kit, start_server: Start, connect: Connect, kind: MethodKind
) -> None:
    """The client gets the status, and no handler the request."""
    reached: list[object] = []

    async def handler(request: Any, *_: object) -> None:
        reached.extend([one async for one in request] if kind.streams_requests else [request])

    journal = Journal()
    client = connect(start_server(kit.of_kind(kind, handler), interceptors=[journal.intercept]))
    with kit.refused(grpc.StatusCode.PERMISSION_DENIED, "not you"):
        client.finish(kind, metadata=[(CLIENT_ID_HEADER, "intruder")])
    name = kit.paths[kind].rpartition("/")[2]
    assert until(journal, "PERMISSION_DENIED") == [f"begin {name}", "PERMISSION_DENIED"]
    assert reached == []


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("size", [1, 2 * UNPACKED_HERE_BYTES])
def test_a_stream_ends_well_with_what_its_method_makes_of_a_refusal(
    kit: Kit, start_server: Start, connect: Connect, size: int, *, is_async: bool
) -> None:
    """After what was sent, and as the interceptors see it; whoever has unpacked the request."""

    def refuse(*_: object) -> None:
        raise BadRequestError("no")

    async def send_and_refuse(_request: Message, _call: Call, send: Any) -> None:
        await send(pb.ReceiveMessageResponse())
        refuse()

    def refusal(_: Exception) -> tuple[Message, ...]:
        return (pb.ReceiveMessageResponse(), pb.ReceiveMessageResponse())

    journal = Journal()
    method = replace(kit.stream(send_and_refuse if is_async else refuse), refusal=refusal)
    client = connect(start_server(method, interceptors=[journal.intercept]))
    data = os.urandom(size).hex()
    request = pb.ReceiveMessageRequest(attempt_id=data).SerializeToString()
    kind = MethodKind.SERVER_STREAM
    client.finish(kind, raw_request=request, compression=grpc.Compression.Gzip)
    sent = ["1 responses"] if is_async else []
    name = kit.paths[kind].rpartition("/")[2]
    assert until(journal, "OK") == [f"begin {name}", "request", *sent, "2 responses", "OK"]


@pytest.mark.parametrize("kind", MethodKind)
def test_a_call_that_the_client_gives_up_is_cancelled(
    kit: Kit, start_server: Start, connect: Connect, kind: MethodKind
) -> None:
    """Each shape ends once, and says how."""
    journal, handler = Journal(), kit.parked()
    client = connect(start_server(kit.of_kind(kind, handler), interceptors=[journal.intercept]))
    with client.open(kind) as call:
        assert handler.entered.wait(WAIT_S)
        call.cancel()
    lines = until(journal, "cancelled")
    assert lines[0].startswith("begin")
    assert lines.count("cancelled") == 1


def test_reflection_passes_and_a_method_may_be_left_alone(
    kit: Kit, start_server: Start, connect: Connect
) -> None:
    """No method is served that an interceptor was not asked about."""
    asked: list[str] = []

    def intercept(method: Method) -> None:
        asked.append(method.path)

    client = connect(start_server(kit.unary(kit.echo), interceptors=[intercept]))
    assert client.ask(kit.text("hello")).message_id == "hello"
    assert sorted(asked) == [
        "/apache.rocketmq.v2.MessagingService/Heartbeat",
        "/grpc.health.v1.Health/Check",
        "/grpc.health.v1.Health/Watch",
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    ]


def test_an_interceptor_that_refuses_tells_those_before_it(
    kit: Kit, start_server: Start, connect: Connect
) -> None:
    """They have begun; those after it never hear of the call."""
    before, after = Journal(), Journal()

    def refuse(_: Call) -> None:
        raise RpcError(StatusCode.UNAUTHENTICATED, "who are you?")

    interceptors = [before.intercept, lambda _: refuse, after.intercept]
    client = connect(start_server(kit.unary(kit.echo), interceptors=interceptors))
    with kit.refused(grpc.StatusCode.UNAUTHENTICATED, "who are you?"):
        client.ask(kit.text("hello"))
    assert until(before, "UNAUTHENTICATED") == ["begin Heartbeat", "UNAUTHENTICATED"]
    assert after.lines == []
