"""The client's side of a connection, against our own server."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from commitbus.broker.rpc import trio_transport
from commitbus.broker.rpc.access import NOTHING
from commitbus.broker.rpc.call import Call, RpcError, Send, StatusCode
from commitbus.broker.rpc.http2 import client_connection
from commitbus.broker.rpc.http2.client_call import ClientCall
from commitbus.broker.rpc.http2.client_connection import ClientConnection, connect
from commitbus.broker.rpc.http2.engine import Engine, EngineLimits, ErrorCode, Role
from commitbus.broker.rpc.method import Handler, Method, MethodKind
from commitbus.broker.rpc.proto import admin_v1_pb2 as pb

PATH = "/test.Service/Method"
WITHIN_S = 30


def method(kind: MethodKind, handler: Handler) -> Method:
    """A method whose messages have one field for bytes."""
    return Method(PATH, kind, pb.SendMessageRequest, pb.SendMessageRequest, handler, access=NOTHING)


def message(body: bytes) -> pb.SendMessageRequest:
    return pb.SendMessageRequest(body=body)


def packed(body: bytes) -> bytes:
    return message(body).SerializeToString()


def body_of(data: bytes | None) -> bytes:
    assert data is not None
    return pb.SendMessageRequest.FromString(data).body


@asynccontextmanager
async def connected(kind: MethodKind, handler: Handler) -> AsyncIterator[ClientConnection]:
    async with trio.open_nursery() as nursery:
        port = await nursery.start(serve, method(kind, handler))
        async with connect("127.0.0.1", port) as connection:
            yield connection
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def connected_to_silence() -> AsyncIterator[ClientConnection]:
    """To something that neither reads nor writes."""

    async def say_nothing(stream: trio.SocketStream) -> None:
        async with stream:
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, say_nothing, 0)
        async with connect("127.0.0.1", listeners[0].socket.getsockname()[1]) as connection:
            yield connection
        nursery.cancel_scope.cancel()


async def serve(one: Method, grace_s: float = 0.1, *, task_status: trio.TaskStatus[int]) -> None:
    await trio_transport.serve(
        [one], listen="127.0.0.1:0", drain_grace_s=grace_s, task_status=task_status
    )


def run(main: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        with trio.fail_after(WITHIN_S):
            await main()

    trio.run(limited)


def refused(code: StatusCode) -> Any:
    return pytest.raises(RpcError, check=lambda error: error.code is code)


def echo(request: pb.SendMessageRequest, _: Call) -> pb.SendMessageRequest:
    return request


async def echo_all(requests: AsyncIterator[Any], _: Call, send: Send) -> None:
    async for request in requests:
        await send(request)


@pytest.mark.parametrize("size", [0, 1, 16_384, 3_000_000])
def test_a_unary_call_has_one_response(size: int) -> None:
    async def main() -> None:
        async with connected(MethodKind.UNARY, echo) as connection:
            body = bytes(size)
            assert body_of(await connection.unary(PATH, packed(body), timeout_s=20)) == body

    run(main)


def test_many_calls_share_a_connection() -> None:
    async def main() -> None:
        async with connected(MethodKind.UNARY, echo) as connection:

            async def ask(number: int) -> None:
                body = b"%d" % number
                assert body_of(await connection.unary(PATH, packed(body))) == body

            async with trio.open_nursery() as nursery:
                for number in range(200):
                    nursery.start_soon(ask, number)

    run(main)


def test_a_refusal_has_code_and_text() -> None:
    async def main() -> None:
        def refuse(*_: object) -> pb.SendMessageRequest:
            raise RpcError(StatusCode.NOT_FOUND, "100 % nicht gefunden: é")

        async with connected(MethodKind.UNARY, refuse) as connection:
            with pytest.raises(RpcError, match="NOT_FOUND: 100 % nicht gefunden: é"):
                await connection.unary(PATH, b"")
            with refused(StatusCode.UNIMPLEMENTED):
                await connection.unary("/test.Service/Other", b"")

    run(main)


def test_metadata_reaches_the_handler() -> None:
    async def main() -> None:
        def answer(_: Any, call: Call) -> pb.SendMessageRequest:
            return message((call.metadata.get("x-name") or "").encode())

        async with connected(MethodKind.UNARY, answer) as connection:
            response = await connection.unary(PATH, b"", metadata={"x-name": "value"})
            assert body_of(response) == b"value"

    run(main)


def test_a_stream_goes_both_ways_and_ends() -> None:
    async def main() -> None:
        async with (
            connected(MethodKind.BIDI, echo_all) as connection,
            connection.call(PATH) as call,
        ):
            for number in range(100):
                await call.send(packed(b"%d" % number))
                assert body_of(await call.receive()) == b"%d" % number
            call.end_sending()
            assert await call.receive() is None
            assert await call.receive() is None
            with refused(StatusCode.CANCELLED):
                await call.send(packed(b"late"))

    run(main)


def test_who_is_not_read_waits() -> None:
    """Neither side holds more than its windows while the other one does not read."""

    async def main() -> None:
        taken = trio.Event()
        sent = 0

        async def slow(requests: AsyncIterator[Any], _: Call, send: Send) -> None:
            await taken.wait()
            await echo_all(requests, _, send)

        async def send_all(call: Any) -> None:
            nonlocal sent
            for _ in range(200):
                await call.send(packed(bytes(100_000)))
                sent += 1
            call.end_sending()

        async with (
            connected(MethodKind.BIDI, slow) as connection,
            connection.call(PATH) as call,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(send_all, call)
            await trio.sleep(0.3)
            assert 5 < sent < 60
            taken.set()
            received = 0
            while (data := await call.receive()) is not None:
                received += len(body_of(data))
            assert received == 200 * 100_000

    run(main)


def test_leaving_a_call_cancels_its_handler() -> None:
    async def main() -> None:
        cancelled = trio.Event()

        async def wait(_: Any, __: Call, send: Send) -> None:
            await send(message(b"begun"))
            try:
                await trio.sleep_forever()
            finally:
                cancelled.set()

        async with connected(MethodKind.SERVER_STREAM, wait) as connection:
            async with connection.call(PATH) as call:
                await call.send(b"")
                call.end_sending()
                assert body_of(await call.receive()) == b"begun"
            await cancelled.wait()

    run(main)


def test_a_deadline_ends_the_call_on_both_sides() -> None:
    async def main() -> None:
        ended = trio.Event()
        deadlines: list[float | None] = []

        async def wait(_: Any, call: Call) -> pb.SendMessageRequest:
            deadlines.append(call.deadline_s)
            try:
                await trio.sleep_forever()
            finally:
                ended.set()
            raise AssertionError

        async with connected(MethodKind.UNARY, wait) as connection:
            with refused(StatusCode.DEADLINE_EXCEEDED):
                await connection.unary(PATH, b"", timeout_s=0.1)
            await ended.wait()
            assert deadlines[0] is not None

    run(main)


def test_a_server_that_stops_ends_its_calls() -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            port = await nursery.start(serve, method(MethodKind.BIDI, echo_all))
            async with connect("127.0.0.1", port) as connection, connection.call(PATH) as call:
                await call.send(packed(b"x"))
                await call.receive()
                nursery.cancel_scope.cancel()
                with trio.CancelScope(shield=True):
                    with refused(StatusCode.UNAVAILABLE):
                        await call.receive()
                    await connection.wait_unusable()
                    with refused(StatusCode.UNAVAILABLE):
                        await connection.unary(PATH, b"")

    run(main)


def test_a_server_that_drains_is_called_no_more() -> None:
    """What it is asked already it still answers."""

    async def main() -> None:
        asked, answers, answered = trio.Event(), trio.Event(), trio.Event()
        until_stopped = trio.CancelScope()

        async def answer(request: pb.SendMessageRequest, _: Call) -> pb.SendMessageRequest:
            asked.set()
            await answers.wait()
            return request

        async def serve_until_stopped(*, task_status: trio.TaskStatus[int]) -> None:
            with until_stopped:
                await serve(method(MethodKind.UNARY, answer), WITHIN_S, task_status=task_status)

        async def ask(connection: ClientConnection) -> None:
            assert body_of(await connection.unary(PATH, packed(b"x"))) == b"x"
            answered.set()

        async with trio.open_nursery() as nursery:
            port = await nursery.start(serve_until_stopped)
            async with connect("127.0.0.1", port) as connection:
                nursery.start_soon(ask, connection)
                await asked.wait()
                until_stopped.cancel()
                await connection.wait_unusable()
                assert not connection.is_usable
                with refused(StatusCode.UNAVAILABLE):
                    await connection.unary(PATH, b"")
                answers.set()
                await answered.wait()

    run(main)


def test_a_server_that_is_silent_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its machine may be gone: nobody says so."""
    monkeypatch.setattr(client_connection, "KEEPALIVE_S", 0.05)
    monkeypatch.setattr(client_connection, "KEEPALIVE_TIMEOUT_S", 0.05)

    async def main() -> None:
        async with connected_to_silence() as connection:
            with refused(StatusCode.UNAVAILABLE):
                await connection.unary(PATH, b"")

    run(main)


def test_a_deadline_ends_the_wait_for_a_server_that_does_not_read() -> None:
    async def main() -> None:
        async with (
            connected_to_silence() as connection,
            connection.call(PATH, timeout_s=0.5) as call,
        ):
            with refused(StatusCode.DEADLINE_EXCEEDED):
                while True:
                    await call.send(bytes(100_000))

    run(main)


@pytest.mark.parametrize(
    ("http_status", "status"),
    [
        (b"404", StatusCode.UNIMPLEMENTED),
        (b"503", StatusCode.UNAVAILABLE),
        (b"418", StatusCode.UNKNOWN),
    ],
)
def test_an_http_status_is_a_status(http_status: bytes, status: StatusCode) -> None:
    """Of a proxy, or whatever else is there instead of a gRPC server."""

    async def main() -> None:
        call = ClientCall(Engine(Role.CLIENT, EngineLimits()), 1, lambda: None, None)
        call.fields_received([(b":status", http_status)], has_ended=True)
        with refused(status):
            await call.receive()

    run(main)


def test_a_connection_that_breaks_ends_its_calls() -> None:
    async def main() -> None:
        async def hang_up(stream: trio.SocketStream) -> None:
            await stream.receive_some(100)
            await stream.aclose()

        async with trio.open_nursery() as nursery:
            listeners = await nursery.start(trio.serve_tcp, hang_up, 0)
            port = listeners[0].socket.getsockname()[1]
            async with connect("127.0.0.1", port) as connection:
                with refused(StatusCode.UNAVAILABLE):
                    await connection.unary(PATH, b"")
                assert not connection.is_usable
            nursery.cancel_scope.cancel()

    run(main)


def test_something_that_is_no_grpc_server_is_told_apart() -> None:
    async def main() -> None:
        async def babble(stream: trio.SocketStream) -> None:
            await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            await trio.sleep_forever()

        async with trio.open_nursery() as nursery:
            listeners = await nursery.start(trio.serve_tcp, babble, 0)
            port = listeners[0].socket.getsockname()[1]
            async with connect("127.0.0.1", port) as connection:
                with refused(StatusCode.UNAVAILABLE):
                    await connection.unary(PATH, b"")
            with refused(StatusCode.UNAVAILABLE):
                async with connect("127.0.0.1", 1):
                    pass
            nursery.cancel_scope.cancel()

    run(main)


def test_the_same_over_tls() -> None:
    """With whatever certificate, or only with one that is trusted."""
    anyone = ssl.create_default_context()
    anyone.check_hostname, anyone.verify_mode = False, ssl.CERT_NONE

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            port = await nursery.start(serve, method(MethodKind.BIDI, echo_all))
            async with (
                connect("127.0.0.1", port, tls=anyone) as connection,
                connection.call(PATH) as call,
            ):
                await call.send(packed(bytes(1_000_000)))
                call.end_sending()
                assert len(body_of(await call.receive())) == 1_000_000
            with pytest.raises(RpcError, match="certificate verify failed"):
                async with connect("127.0.0.1", port, tls=ssl.create_default_context()):
                    pass
            nursery.cancel_scope.cancel()

    run(main)


@pytest.mark.parametrize(
    ("error_code", "status"),
    [
        (ErrorCode.REFUSED_STREAM, StatusCode.UNAVAILABLE),
        (ErrorCode.CANCEL, StatusCode.CANCELLED),
        (ErrorCode.NO_ERROR, StatusCode.INTERNAL),
        (0x77, StatusCode.INTERNAL),
    ],
)
def test_a_reset_has_a_status_whatever_its_code(error_code: int, status: StatusCode) -> None:
    """RFC 9113 has codes that are not known mean nothing special."""

    async def main() -> None:
        call = ClientCall(Engine(Role.CLIENT, EngineLimits()), 1, lambda: None, None)
        call.closed(error_code)
        with refused(status):
            await call.receive()

    run(main)


def test_what_was_not_taken_of_a_call_makes_room_when_it_is_left() -> None:
    """At once: another call of the connection may wait for just that."""

    async def main() -> None:
        done: list[object] = []
        engine: Any = SimpleNamespace(consume=lambda *consumed: done.append(consumed))
        call = ClientCall(engine, 1, lambda: done.append("flushed"), None)
        call.data_received(bytes(10), has_ended=False)
        call.closed(ErrorCode.NO_ERROR)
        call.cancel()
        assert done == [(1, 10), "flushed"]

    run(main)
