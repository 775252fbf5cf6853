"""What every transport promises to handlers and clients: calls, errors, cancellation."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from typing import Any

import grpc
import pytest
import trio
from google.protobuf.message import Message

from commitbus.broker.rpc.call import Call, RpcError, Send, StatusCode
from commitbus.broker.rpc.method import Later, MethodKind
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb

WAIT_S = 20.0
TOO_LARGE = "a message of 20000 bytes or more is over the limit of 10000"
SERVICE = "apache.rocketmq.v2.MessagingService"
# Defined in conftest.py, which a test module cannot import.
Kit = Any
Start = Callable[..., Any]
Connect = Callable[..., Any]


# Unary calls


def test_a_handler_that_need_not_wait_answers(
    kit: Kit, start_server: Start, connect: Connect
) -> None:
    """A plain function is a handler."""
    client = connect(start_server(kit.unary(kit.echo)))
    assert client.ask(kit.text("a")).message_id == "a"


def test_a_handler_that_waits_answers(kit: Kit, start_server: Start, connect: Connect) -> None:
    """A coroutine function is a handler."""

    async def handler(request: pb.RecallMessageRequest, call: Call) -> Any:
        await trio.lowlevel.checkpoint()
        return kit.echo(request, call)

    client = connect(start_server(kit.unary(handler)))
    assert client.ask(kit.text("b")).message_id == "b"


def test_a_handler_may_encode_its_answer_itself(
    kit: Kit, start_server: Start, connect: Connect
) -> None:
    """At once, after a wait, and when somebody settles it: the bytes are sent as they are."""

    async def slow(request: pb.RecallMessageRequest, call: Call) -> bytes:
        await trio.lowlevel.checkpoint()
        return encode(request, call)

    def encode(request: pb.RecallMessageRequest, call: Call) -> bytes:
        answer: bytes = kit.echo(request, call).SerializeToString()
        return answer

    def settled(request: pb.RecallMessageRequest, call: Call) -> Later:
        answer = Later()
        settle = partial(answer.settle, partial(encode, request, call))
        trio.lowlevel.current_trio_token().run_sync_soon(settle)
        return answer

    for handler in (encode, slow, settled):
        client = connect(start_server(kit.unary(handler)))
        assert client.ask(kit.text("a")).message_id == "a"


def test_a_handler_may_take_the_bytes_of_its_request(
    kit: Kit, start_server: Start, connect: Connect
) -> None:
    """A method without a request type; no bytes at all are a request too."""

    def echo(request: bytes, _: Call) -> pb.RecallMessageResponse:
        return pb.RecallMessageResponse(message_id=request.decode())

    async def join(requests: AsyncIterator[bytes], _: Call) -> pb.RecallMessageResponse:
        parts = [request.decode() async for request in requests]
        return pb.RecallMessageResponse(message_id="+".join(parts))

    raw = [replace(method, request_type=None) for method in (kit.unary(echo), kit.upload(join))]
    client = connect(start_server(*raw))
    for text in ("no protobuf", ""):
        assert client.ask(text.encode()).message_id == text
    assert client.upload(iter([b"a", b"", b"\x12"])).message_id == "a++\x12"


def test_a_method_may_take_less_than_the_transport(
    kit: Kit, start_server: Start, connect: Connect
) -> None:
    """In every kind of call; the larger of the two limits is none."""

    async def read(requests: AsyncIterator[Message], *_: object) -> Any:
        return [request async for request in requests]

    methods = [kit.unary(kit.echo), kit.stream(read), kit.upload(read), kit.bidi(read)]
    small = [replace(method, max_request_bytes=10_000) for method in methods]
    client = connect(start_server(*small))
    for kind in MethodKind:
        with kit.refused(grpc.StatusCode.RESOURCE_EXHAUSTED, TOO_LARGE):
            client.finish(kind, raw_request=bytes(20_000))
    assert client.ask(kit.text("x" * 9_000)).message_id == "x" * 9_000
    client = connect(start_server(*small, max_message_bytes=1_000))
    for kind in MethodKind:
        with kit.refused(grpc.StatusCode.RESOURCE_EXHAUSTED):
            client.finish(kind, raw_request=bytes(2_000))


def test_all_handlers_run_in_one_trio_thread(
    kit: Kit, start_server: Start, connect: Connect
) -> None:
    """That is why they need no locks among themselves."""
    seen: set[tuple[int, object]] = set()

    def look() -> None:
        seen.add((threading.get_ident(), trio.lowlevel.current_trio_token()))

    def quick(request: pb.RecallMessageRequest, call: Call) -> Any:
        look()
        return kit.echo(request, call)

    async def slow(_: object, __: Call, send: Send) -> None:
        look()
        await send(pb.PullMessageResponse(next_offset=1))

    client = connect(start_server(kit.unary(quick), kit.stream(slow)))
    client.ask(kit.text("a"))
    assert len(list(client.pull(pb.PullMessageRequest()))) == 1
    assert len(seen) == 1


def test_many_calls_wait_at_the_same_time(kit: Kit, start_server: Start, connect: Connect) -> None:
    """No call waits for another's handler: the last of 300 releases them all."""
    count = 300
    release = trio.Event()
    arrived = []

    async def handler(request: pb.RecallMessageRequest, call: Call) -> Any:
        arrived.append(request.recall_handle)
        if len(arrived) == count:
            release.set()
        await release.wait()
        return kit.echo(request, call)

    client = connect(start_server(kit.unary(handler)))
    futures = [client.ask.future(kit.text(str(i)), timeout=WAIT_S) for i in range(count)]
    assert [future.result().message_id for future in futures] == [str(i) for i in range(count)]


def test_a_message_of_3_mb_passes_both_ways(
    kit: Kit, start_server: Start, connect: Connect
) -> None:
    """It takes many frames and window updates."""
    client = connect(start_server(kit.unary(kit.echo)))
    big = "x" * (3 * 1024 * 1024)
    assert client.ask(kit.text(big)).message_id == big


def test_a_message_over_the_limit_is_refused(
    kit: Kit, start_server: Start, connect: Connect
) -> None:
    """The client is told RESOURCE_EXHAUSTED, and the connection goes on."""
    client = connect(start_server(kit.unary(kit.echo), max_message_bytes=10_000))
    with kit.refused(grpc.StatusCode.RESOURCE_EXHAUSTED):
        client.ask(kit.text("x" * 20_000))
    assert client.ask(kit.text("small")).message_id == "small"


def test_a_compressed_request_is_unpacked(kit: Kit, start_server: Start, connect: Connect) -> None:
    """Gzip; what counts for the limit is what comes out."""
    client = connect(start_server(kit.unary(kit.echo), max_message_bytes=1_000_000))
    for size in (10, 900_000):
        answer = client.ask(kit.text("x" * size), compression=grpc.Compression.Gzip)
        assert answer.message_id == "x" * size
    with kit.refused(grpc.StatusCode.RESOURCE_EXHAUSTED):
        client.ask(kit.text("x" * 2_000_000), compression=grpc.Compression.Gzip)
    assert client.ask(kit.text("small")).message_id == "small"


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
def test_a_request_with_millions_of_fields_is_not_parsed(
    kit: Kit, start_server: Start, connect: Connect, compression: grpc.Compression
) -> None:
    """In every kind of call, and however it is packed; the connection goes on."""

    async def read(requests: AsyncIterator[Message], *_: object) -> Any:
        return pb.RecallMessageResponse(message_id=str([1 async for _ in requests]))

    methods = [kit.unary(kit.echo), kit.stream(read), kit.upload(read), kit.bidi(read)]
    client = connect(
        start_server(*(replace(m, request_type=pb.SendMessageRequest) for m in methods))
    )
    for kind in MethodKind:
        with kit.refused(
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "a message of 2000000 bytes has more than 4096 fields",
        ):
            client.finish(kind, raw_request=b"\x0a\x00" * 1_000_000, compression=compression)
    client.finish(MethodKind.CLIENT_STREAM, raw_request=b"\x0a\x00")


def test_the_call_shows_what_the_client_sent(
    kit: Kit, start_server: Start, connect: Connect
) -> None:
    """Method, headers without the binary ones, peer and deadline."""
    calls: list[tuple[Call, float]] = []

    def handler(request: pb.RecallMessageRequest, call: Call) -> Any:
        calls.append((call, trio.current_time()))
        return kit.echo(request, call)

    server = start_server(kit.unary(handler))
    metadata = (("x-mq-client-id", "me@1"), ("x-mq-language", "PYTHON"), ("trace-bin", b"\x00\xff"))
    connect(server).ask(kit.text("a"), metadata=metadata, timeout=100)
    connect(server).ask(kit.text("a"))
    (call, now), (bare, _) = calls
    assert call.method == f"/{SERVICE}/Heartbeat"
    assert call.client_id == "me@1"
    assert call.metadata["x-mq-language"] == "PYTHON"
    assert "trace-bin" not in call.metadata
    host, port = call.peer.rsplit(":", 1)
    assert host == "127.0.0.1"
    assert 0 < int(port) < 65536
    assert call.deadline_s is not None
    # Clients round a timeout up to three digits before they send it.
    assert 50 < call.deadline_s - now <= 110
    assert bare.client_id == ""
    assert bare.deadline_s is None


def test_an_ipv6_peer_is_in_brackets(kit: Kit, start_server: Start, connect: Connect) -> None:
    """As in a URL, and as RocketMQ writes it."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6")
    peers = []

    def handler(request: pb.RecallMessageRequest, call: Call) -> Any:
        peers.append(call.peer)
        return kit.echo(request, call)

    server = start_server(kit.unary(handler), listen="[::1]:0")
    connect(server, "[::1]").ask(kit.text("a"))
    assert peers[0].startswith("[::1]:")


# Errors


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("code", [code for code in StatusCode if code is not StatusCode.OK])
def test_an_rpc_error_becomes_its_status(
    kit: Kit, start_server: Start, connect: Connect, code: StatusCode, *, waits: bool
) -> None:
    """Code and message arrive as they were raised."""

    def quick(_: object, __: Call) -> pb.RecallMessageResponse:
        raise RpcError(code, "because; ä")

    async def slow(request: object, call: Call) -> pb.RecallMessageResponse:
        await trio.lowlevel.checkpoint()
        return quick(request, call)

    client = connect(start_server(kit.unary(slow if waits else quick)))
    expected = next(c for c in grpc.StatusCode if c.value[0] == code.value)
    with kit.refused(expected, "because; ä"):
        client.ask(kit.text("a"))


def raises(*_: object) -> Any:
    raise ValueError("secret")


async def raises_later(*_: object) -> Any:
    await trio.lowlevel.checkpoint()
    raise ValueError("secret")


async def raises_in_a_group(*_: object) -> Any:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(raises_later)
        nursery.start_soon(trio.sleep_forever)


def returns_another_type(*_: object) -> Any:
    return pb.Message()


async def returns_nothing_after_all(*_: object) -> Any:
    await trio.lowlevel.checkpoint()


def returns_nothing(*_: object) -> Any:
    return None


async def sends_rubbish(_: object, __: Call, send: Any) -> None:
    await send("secret")


ALWAYS_WRONG = (raises, raises_later, raises_in_a_group, returns_another_type, returns_nothing)
MISTAKES = [
    *((kind, handler) for kind in MethodKind for handler in ALWAYS_WRONG),
    (MethodKind.UNARY, returns_nothing_after_all),
    (MethodKind.CLIENT_STREAM, returns_nothing_after_all),
    (MethodKind.SERVER_STREAM, sends_rubbish),
    (MethodKind.BIDI, sends_rubbish),
]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_handlers_mistake_is_internal_and_logged_once(
    kit: Kit,
    start_server: Start,
    connect: Connect,
    caplog: pytest.LogCaptureFixture,
    mistake: tuple[MethodKind, Any],
) -> None:
    """The client learns nothing, the operator learns method, peer and client."""
    kind, handler = mistake
    method = kit.of_kind(kind, handler)
    client = connect(start_server(method))
    with caplog.at_level(logging.INFO), kit.refused(grpc.StatusCode.INTERNAL, "internal error"):
        client.finish(kind, metadata=(("x-mq-client-id", "me@1"),))
    (record,) = kit.logged(caplog)
    assert record.getMessage() == "a handler failed"
    assert (record.__dict__["method"], record.__dict__["client_id"]) == (method.path, "me@1")
    assert record.exc_info is not None


def test_a_group_of_nothing_but_rpc_errors_is_its_first(
    kit: Kit, start_server: Start, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """A handler with a nursery of its own refuses like any other."""

    async def refuse() -> None:
        raise RpcError(StatusCode.NOT_FOUND, "no such thing")

    async def handler(*_: object) -> Any:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(refuse)

    client = connect(start_server(kit.unary(handler)))
    with kit.refused(grpc.StatusCode.NOT_FOUND, "no such thing"):
        client.ask(kit.text("a"))
    assert not kit.logged(caplog)


def test_an_unknown_method_is_unimplemented(
    kit: Kit, start_server: Start, connect: Connect
) -> None:
    """Of a known service and of an unknown one."""
    client = connect(start_server(kit.unary(kit.echo)))
    for path in (f"/{SERVICE}/Nonsense", "/no.such.Service/Heartbeat"):
        with kit.refused(grpc.StatusCode.UNIMPLEMENTED):
            client.channel.unary_unary(path)(b"")


def test_bytes_that_are_no_request_are_refused(
    kit: Kit, start_server: Start, connect: Connect
) -> None:
    """Truncated, in every kind of call; no handler sees them."""
    parked = kit.parked()

    async def read(requests: AsyncIterator[Message], _: Call, *__: object) -> Any:
        async for _request in requests:
            parked.entered.set()

    client = connect(
        start_server(kit.unary(parked), kit.stream(parked), kit.upload(read), kit.bidi(read))
    )
    for kind in MethodKind:
        with kit.refused(grpc.StatusCode.INTERNAL, "the request message cannot be parsed"):
            client.finish(kind, raw_request=b"\x12\xff")
    assert not parked.entered.is_set()


def test_calls_over_the_cap_are_refused(kit: Kit, start_server: Start, connect: Connect) -> None:
    """RESOURCE_EXHAUSTED, until one of those in flight has ended."""
    parked = kit.parked()
    client = connect(start_server(kit.stream(parked), kit.unary(kit.echo), concurrent_calls_max=1))
    waiting = client.pull(pb.PullMessageRequest())
    assert parked.entered.wait(WAIT_S)
    with kit.refused(grpc.StatusCode.RESOURCE_EXHAUSTED):
        client.ask(kit.text("a"))
    waiting.cancel()
    assert parked.left.wait(WAIT_S)
    until = time.monotonic() + WAIT_S
    while True:
        try:
            assert client.ask(kit.text("b")).message_id == "b"
            break
        except grpc.RpcError:
            assert time.monotonic() < until, "the place of a cancelled call was never free again"


# Cancellation and deadlines


def test_a_client_that_cancels_cancels_the_handler(
    kit: Kit, start_server: Start, connect: Connect
) -> None:
    """Every kind of call."""
    parked = {kind: kit.parked() for kind in MethodKind}
    client = connect(start_server(*(kit.of_kind(kind, parked[kind]) for kind in MethodKind)))
    for kind in MethodKind:
        with client.open(kind) as call:
            assert parked[kind].entered.wait(WAIT_S)
            assert not parked[kind].left.is_set()
            call.cancel()
            assert parked[kind].left.wait(WAIT_S)


def test_a_client_that_disconnects_cancels_the_handler(
    kit: Kit, start_server: Start, connect: Connect
) -> None:
    """A parked long poll of a client that went away does not stay."""
    parked = kit.parked()
    client = connect(start_server(kit.stream(parked)))
    # Kept, because a call that is garbage is cancelled.
    _responses = client.pull(pb.PullMessageRequest())
    assert parked.entered.wait(WAIT_S)
    client.channel.close()
    assert parked.left.wait(WAIT_S)


@pytest.mark.parametrize("kind", [MethodKind.UNARY, MethodKind.SERVER_STREAM])
def test_a_passed_deadline_cancels_the_handler(
    kit: Kit, start_server: Start, connect: Connect, kind: MethodKind
) -> None:
    """The client gets DEADLINE_EXCEEDED, the handler's scope is cancelled."""
    parked = kit.parked()
    client = connect(start_server(kit.of_kind(kind, parked)))
    with kit.refused(grpc.StatusCode.DEADLINE_EXCEEDED):
        client.finish(kind, timeout=0.3)
    if parked.entered.is_set():  # a very slow machine spends the deadline on connecting
        assert parked.left.wait(WAIT_S)


def test_a_mistake_while_being_cancelled_leaves_the_server_up(
    kit: Kit, start_server: Start, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """Even one that comes in a group together with the cancellation."""
    entered = threading.Event()

    async def fail_when_cancelled() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError("while cancelled")

    async def handler(*_: object) -> Any:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail_when_cancelled)
            nursery.start_soon(trio.sleep_forever)
            entered.set()

    server = start_server(kit.unary(kit.echo), kit.stream(handler))
    client = connect(server)
    for _ in range(2):
        entered.clear()
        call = client.pull(pb.PullMessageRequest())
        assert entered.wait(WAIT_S)
        call.cancel()
        assert client.ask(kit.text("still here")).message_id == "still here"
    server.stop()
    assert len(kit.logged(caplog)) == 2
