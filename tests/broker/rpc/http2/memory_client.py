"""A client of one connection of a server, both in one task, without sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio
import trio.testing

from commitbus.broker.rpc.access import NOTHING
from commitbus.broker.rpc.call import Call, RpcError, StatusCode
from commitbus.broker.rpc.http2.engine import (
    DataReceived,
    Engine,
    EngineLimits,
    Event,
    ResponseReceived,
    Role,
    StreamClosed,
    TrailersReceived,
)
from commitbus.broker.rpc.http2.grpc_wire import PREFIX_BYTES, encode_message
from commitbus.broker.rpc.http2.limits import ServerLimits
from commitbus.broker.rpc.http2.server_connection import ServerConnection
from commitbus.broker.rpc.http2.server_state import ServerState
from commitbus.broker.rpc.http2.turns import Turns
from commitbus.broker.rpc.http2.wire import Turn
from commitbus.broker.rpc.method import Handler, Later, Method, MethodKind
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb

WAIT_S = 20.0
WINDOW_BYTES = 100_000
HEADERS = [
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/test.Echo/Ask"),
    (b":authority", b"test"),
    (b"content-type", b"application/grpc"),
]


def at_once(request: Any, _: Call) -> pb.RecallMessageResponse:
    return pb.RecallMessageResponse(message_id=request.recall_handle)


def refuse(_: Any, __: Call) -> pb.RecallMessageResponse:
    raise RpcError(StatusCode.NOT_FOUND, "nothing here")


async def in_a_task(request: Any, call: Call) -> pb.RecallMessageResponse:
    await trio.lowlevel.checkpoint()
    return at_once(request, call)


def later(request: Any, call: Call) -> Later:
    answer = Later()
    response = at_once(request, call)
    trio.lowlevel.current_trio_token().run_sync_soon(answer.settle, lambda: response)
    return answer


class MemoryWire:
    """A connection to the client in the same task."""

    def __init__(self) -> None:
        self.to_server, self._from_client = trio.open_memory_channel[bytes](1000)
        self._to_client, self.from_server = trio.open_memory_channel[bytes](1000)
        self.closed = trio.Event()

    async def read(self, size: int = 0, turn: Turn | None = None) -> bytes:
        return await self._from_client.receive()

    def write_now(self, data: bytes | memoryview) -> int:
        self._to_client.send_nowait(bytes(data))
        return len(data)

    async def write_some(self, data: memoryview) -> int:
        return self.write_now(data)

    async def write(self, data: bytes | memoryview) -> None:
        self._to_client.send_nowait(bytes(data))

    async def end_writing(self) -> None:
        pass

    async def close(self) -> None:
        self.closed.set()


class Client:
    """Sends requests in pieces, and collects what they are answered with."""

    def __init__(self, state: ServerState, limits: EngineLimits) -> None:
        self.wire, self.state = MemoryWire(), state
        self.connection = ServerConnection(self.wire, "test", state)
        self.engine = Engine(Role.CLIENT, limits)
        self._output = b""

    def begin(self) -> int:
        """Queue the headers of a call."""
        stream_id = self.engine.submit_request(HEADERS)
        assert stream_id is not None
        self._output += self.engine.take_output()
        return stream_id

    def give(self, stream_id: int, text: str) -> None:
        """Queue the one request of a call."""
        request = pb.RecallMessageRequest(recall_handle=text).SerializeToString()
        self.engine.submit_data(stream_id, encode_message(request), end_stream=True)
        self._output += self.engine.take_output()

    async def flush(self, *, in_pieces_of: int = 1 << 20) -> None:
        """Send what is queued; the server reads it piece by piece."""
        output = self._output + self.engine.take_output()
        self._output = b""
        for start in range(0, len(output), in_pieces_of):
            await self.wire.to_server.send(output[start : start + in_pieces_of])

    @property
    def writes(self) -> int:
        """In how many pieces lies what was written and not taken."""
        return self.wire.from_server.statistics().current_buffer_used

    def take_events(self) -> list[Event]:
        """Receive all that was written."""
        return [
            event
            for _ in range(self.writes)
            for event in self.engine.receive(self.wire.from_server.receive_nowait())
        ]

    async def answers(self, count: int) -> dict[int, tuple[int, str]]:
        """Status and text of so many calls, by stream."""
        found: dict[int, tuple[int, str]] = {}
        texts: dict[int, str] = {}
        closed = 0
        with trio.fail_after(WAIT_S):
            while closed < count:
                for event in self.engine.receive(await self.wire.from_server.receive()):
                    if isinstance(event, DataReceived):
                        response = pb.RecallMessageResponse.FromString(event.data[PREFIX_BYTES:])
                        texts[event.stream_id] = response.message_id
                        self.engine.consume(event.stream_id, len(event.data))
                    elif isinstance(event, TrailersReceived | ResponseReceived):
                        code = dict(event.headers).get(b"grpc-status", b"-1")
                        found[event.stream_id] = (int(code), texts.get(event.stream_id, ""))
                    elif isinstance(event, StreamClosed):
                        closed += 1
                await self.flush()
        return found


@asynccontextmanager
async def connected(
    handler: Handler,
    kind: MethodKind = MethodKind.UNARY,
    client_limits: EngineLimits = EngineLimits(),  # noqa: B008 - frozen
    turns: Turns | None = None,
) -> AsyncIterator[Client]:
    """A client of a server with one method."""
    method = Method(
        "/test.Echo/Ask",
        kind,
        pb.RecallMessageRequest,
        pb.RecallMessageResponse,
        handler,
        access=NOTHING,
    )
    limits = ServerLimits(
        max_message_bytes=WINDOW_BYTES,
        calls_max=1000,
        unsent_response_bytes=WINDOW_BYTES,
        engine=EngineLimits(connection_window_bytes=WINDOW_BYTES),
    )
    async with trio.open_nursery() as nursery:
        state = ServerState([method], limits, nursery)
        state.turns = turns or state.turns
        client = Client(state, client_limits)
        nursery.start_soon(state.flusher.run)
        nursery.start_soon(state.turns.run)
        nursery.start_soon(client.connection.run)
        yield client
        assert state.calls == 0
        assert state.held_request_bytes == 0
        nursery.cancel_scope.cancel()


def adjacent(client: Client, count: int) -> list[int]:
    """Each call's headers and request in a row, as nearly all clients send them."""
    ids = []
    for index in range(count):
        ids.append(client.begin())
        client.give(ids[-1], f"text {index}")
    return ids


def headers_first(client: Client, count: int) -> list[int]:
    """All headers, then all requests, as libnghttp2 sends them."""
    ids = [client.begin() for _ in range(count)]
    for index, stream_id in enumerate(ids):
        client.give(stream_id, f"text {index}")
    return ids
