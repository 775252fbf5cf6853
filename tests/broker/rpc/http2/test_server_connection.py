"""Calls however their frames arrive, and however their handlers answer; without sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, final

import pytest
import trio
import trio.testing

from commitbus.broker.rpc.access import NOTHING
from commitbus.broker.rpc.call import Call, RpcError, Send, StatusCode
from commitbus.broker.rpc.http2 import server_connection
from commitbus.broker.rpc.http2.engine import (
    DataReceived,
    Engine,
    EngineLimits,
    ErrorCode,
    Event,
    GoAwayReceived,
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
from commitbus.broker.rpc.method import Handler, Later, Method, MethodKind, Parked
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


@pytest.mark.parametrize("in_pieces_of", [1 << 20, 7], ids=["whole", "pieces"])
@pytest.mark.parametrize("order", [adjacent, headers_first])
@pytest.mark.parametrize("handler", [at_once, refuse, in_a_task, later])
def test_a_call_is_answered_however_it_comes(
    handler: Handler, order: Callable[[Client, int], list[int]], in_pieces_of: int
) -> None:
    """By its own answer, once; nothing of it stays."""

    async def main() -> None:
        async with connected(handler) as client:
            ids = order(client, 20)
            await client.flush(in_pieces_of=in_pieces_of)
            answers = await client.answers(len(ids))
        good = {stream_id: (0, f"text {index}") for index, stream_id in enumerate(ids)}
        refused = dict.fromkeys(ids, (int(StatusCode.NOT_FOUND), ""))
        assert answers == (refused if handler is refuse else good)

    trio.run(main)


@pytest.mark.parametrize("handler", [at_once, refuse, in_a_task, later])
def test_what_was_handled_makes_room_for_more(handler: Handler) -> None:
    """Six times what a connection may send ahead, each request in one frame."""

    async def main() -> None:
        async with connected(handler) as client:
            for _ in range(40):
                client.give(client.begin(), "x" * 15_000)
                await client.flush()
                await client.answers(1)

    trio.run(main)


def test_a_request_over_the_limit_is_refused_in_its_headers_company() -> None:
    """Whether or not all of it has come."""

    async def main() -> None:
        async with connected(at_once) as client:
            stream_id = client.begin()
            client.give(stream_id, "x" * WINDOW_BYTES)
            await client.flush()
            answers = await client.answers(1)
            assert answers[stream_id][0] == StatusCode.RESOURCE_EXHAUSTED

    trio.run(main)


def test_a_client_that_lets_no_response_through_makes_no_more_calls() -> None:
    """Those in its queue are kept for it, up to a limit."""

    async def main() -> None:
        async with connected(at_once, client_limits=EngineLimits(stream_window_bytes=0)) as client:
            statuses: list[int] = []
            for _ in range(20):
                client.give(client.begin(), "x" * 10_000)
                await client.flush()
                await trio.testing.wait_all_tasks_blocked()
                statuses += [
                    int(dict(event.headers).get(b"grpc-status", 0))
                    for event in client.take_events()
                    if isinstance(event, ResponseReceived)
                ]
            assert statuses == [0] * 10 + [StatusCode.RESOURCE_EXHAUSTED] * 10

    trio.run(main)


def test_empty_responses_count_while_they_are_not_read() -> None:
    """Each takes memory, too."""
    sent = 0

    async def pour(_: Any, __: Call, send: Send) -> None:
        nonlocal sent
        while True:
            await send(b"")
            sent += 1

    async def main() -> None:
        limits = EngineLimits(stream_window_bytes=0)
        async with connected(pour, MethodKind.SERVER_STREAM, client_limits=limits) as client:
            stream_id = client.begin()
            client.give(stream_id, "")
            await client.flush()
            await trio.testing.wait_all_tasks_blocked()
            assert 500 < sent < 2000
            client.engine.reset(stream_id, ErrorCode.CANCEL)
            await client.flush()
            await trio.testing.wait_all_tasks_blocked()

    trio.run(main)


def test_a_request_that_is_refused_by_its_head_is_stopped() -> None:
    """Its client need not send the rest of it."""

    async def main() -> None:
        async with connected(at_once) as client:
            headers = [(name, value.replace(b"Ask", b"Tell")) for name, value in HEADERS]
            stream_id = client.engine.submit_request(headers)
            await client.flush()
            await trio.testing.wait_all_tasks_blocked()
            response, _, closed = client.take_events()[-3:]
            assert isinstance(response, ResponseReceived)
            assert dict(response.headers)[b"grpc-status"] == b"%d" % StatusCode.UNIMPLEMENTED
            assert isinstance(closed, StreamClosed)
            assert (closed.stream_id, closed.error_code) == (stream_id, ErrorCode.NO_ERROR)

    trio.run(main)


def test_a_server_that_stops_serves_what_is_on_its_way_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A call whose request has not come is refused, and then the connection ends."""
    monkeypatch.setattr(server_connection, "LINGER_S", 0)

    async def main() -> None:
        async with connected(at_once) as client:
            begun = client.begin()
            await client.flush()
            await trio.testing.wait_all_tasks_blocked()
            client.take_events()
            client.connection.announce_end()
            on_its_way = client.begin()
            client.give(on_its_way, "here")
            assert any(isinstance(event, GoAwayReceived) for event in client.take_events())
            await client.flush()
            assert await client.answers(1) == {on_its_way: (0, "here")}
            assert not client.wire.closed.is_set()
            client.connection.end_calls()
            assert await client.answers(1) == {begun: (StatusCode.UNAVAILABLE, "")}
            with trio.fail_after(WAIT_S):
                await client.wire.closed.wait()

    trio.run(main)


@pytest.mark.parametrize("in_pieces_of", [1 << 20, 7], ids=["whole", "pieces"])
def test_a_call_that_comes_after_the_drain_is_refused(in_pieces_of: int) -> None:
    async def main() -> None:
        async with connected(at_once) as client:
            client.state.crew.dismissed = True
            (stream_id,) = adjacent(client, 1)
            await client.flush(in_pieces_of=in_pieces_of)
            assert await client.answers(1) == {stream_id: (StatusCode.UNAVAILABLE, "")}

    trio.run(main)


def test_a_stream_without_requests_is_refused_once_by_a_server_that_stops() -> None:
    """Its headers are all that comes of it."""

    async def main() -> None:
        async with connected(at_once, MethodKind.BIDI) as client:
            client.state.crew.dismissed = True
            stream_id = client.engine.submit_request(HEADERS, end_stream=True)
            await client.flush()
            answers = await client.answers(1)
            assert answers == {stream_id: (StatusCode.UNAVAILABLE, "")}

    trio.run(main)


async def take_nothing(_: AsyncIterator[Any], __: Call) -> pb.RecallMessageResponse:
    await trio.sleep_forever()
    raise AssertionError


def test_what_a_handler_did_not_take_makes_room_when_it_has_ended() -> None:
    """The client is told without having to send anything: it may wait for just that."""

    async def main() -> None:
        async with connected(take_nothing, MethodKind.CLIENT_STREAM) as client:
            stream_id = client.begin()
            client.engine.submit_data(stream_id, encode_message(bytes(80_000)))
            await client.flush()
            await trio.testing.wait_all_tasks_blocked()
            client.engine.reset(stream_id, ErrorCode.CANCEL)
            await client.flush()
            await trio.testing.wait_all_tasks_blocked()
            client.take_events()
            client.engine.submit_data(client.begin(), bytes(90_000))
            assert len(client.engine.take_output()) > 90_000

    trio.run(main)


@final
class Waiter(Parked):
    """A call of `wait_together`."""

    def __init__(self, request: Any, send: Send) -> None:
        self._text, self._send = request.recall_handle, send

    def when_woken(self, go_on: Callable[[], None]) -> None:
        waiting.append(go_on)

    async def resume(self) -> None:
        await self._send(pb.RecallMessageResponse(message_id=self._text))

    def abandon(self) -> None:
        raise AssertionError


waiting: list[Callable[[], None]] = []
"""What wakes who waits."""


def park_together(request: Any, _: Call, send: Send) -> Parked:
    return Waiter(request, send)


def settle_together(request: Any, call: Call) -> Later:
    answer = Later()
    response = at_once(request, call)
    waiting.append(lambda: answer.settle(lambda: response))
    return answer


async def wake_together(request: Any, call: Call) -> pb.RecallMessageResponse:
    woken = trio.Event()
    waiting.append(woken.set)
    await woken.wait()
    return at_once(request, call)


@pytest.mark.parametrize(
    ("handler", "kind"),
    [
        (at_once, MethodKind.UNARY),
        (wake_together, MethodKind.UNARY),
        (settle_together, MethodKind.UNARY),
        (park_together, MethodKind.SERVER_STREAM),
    ],
)
def test_what_is_answered_together_leaves_in_one_write(handler: Handler, kind: MethodKind) -> None:
    """The calls of one read, and those of many who waited for the same: a message, or a flush."""

    async def main() -> None:
        waiting.clear()
        async with connected(handler, kind) as client:
            await client.flush()
            await trio.testing.wait_all_tasks_blocked()
            client.take_events()
            ids = adjacent(client, 100)
            await client.flush()
            await trio.testing.wait_all_tasks_blocked()
            if waiting:
                assert not client.take_events(), "nothing but windows"
                assert len(waiting) == len(ids)
            for wake in waiting:
                wake()
            await trio.testing.wait_all_tasks_blocked()
            assert client.writes == 1
            answers = await client.answers(len(ids))
        assert answers == {stream_id: (0, f"text {n}") for n, stream_id in enumerate(ids)}

    # Time stands still: a turn that takes too long is ended in the middle.
    trio.run(main, clock=trio.testing.MockClock())


class StuckWire(MemoryWire):
    """Takes what is written until it is told not to."""

    def __init__(self) -> None:
        super().__init__()
        self.is_stuck = False
        self.goes_on = trio.Event()

    def write_now(self, data: bytes | memoryview) -> int:
        return 0 if self.is_stuck else super().write_now(data)

    async def write_some(self, data: memoryview) -> int:
        await self.goes_on.wait()
        return super().write_now(data)


def test_who_writes_while_the_connection_ends_has_no_trouble() -> None:
    """Handlers of other connections answer meanwhile, and find out only then."""

    async def main() -> None:
        wire = StuckWire()
        async with trio.open_nursery() as nursery:
            limits = ServerLimits(max_message_bytes=WINDOW_BYTES, calls_max=1)
            connection = ServerConnection(wire, "test", ServerState([], limits, nursery))
            nursery.start_soon(connection.run)
            await trio.testing.wait_all_tasks_blocked()
            wire.is_stuck = True
            await wire.to_server.send(b"")
            for _ in range(10):
                connection.engine.ping()
                connection.flush()
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()

    # Which of two tasks runs first is trio's choice.
    for _ in range(20):
        trio.run(main)


def test_why_a_connection_ends_is_said_behind_what_waits_to_be_written() -> None:
    """However often others find out meanwhile that it has."""

    async def main() -> None:
        wire, client = StuckWire(), Engine(Role.CLIENT, EngineLimits())
        async with trio.open_nursery() as nursery:
            limits = ServerLimits(max_message_bytes=WINDOW_BYTES, calls_max=1)
            connection = ServerConnection(wire, "test", ServerState([], limits, nursery))
            nursery.start_soon(connection.run)
            await wire.to_server.send(client.take_output())
            await trio.testing.wait_all_tasks_blocked()
            wire.is_stuck = True
            connection.engine.ping()
            connection.flush()
            # A header block of more fields than a connection may have.
            block = b"\x10\x01a\x01b" * 200
            frame = len(block).to_bytes(3) + b"\x01\x04" + (1).to_bytes(4) + block
            await wire.to_server.send(frame)
            await trio.testing.wait_all_tasks_blocked()
            connection.flush()
            wire.goes_on.set()
            await trio.testing.wait_all_tasks_blocked()
            events: list[Event] = []
            while wire.from_server.statistics().current_buffer_used:
                events += client.receive(await wire.from_server.receive())
            (goaway,) = [event for event in events if isinstance(event, GoAwayReceived)]
            assert goaway.error_code == ErrorCode.ENHANCE_YOUR_CALM
            await wire.to_server.send(b"")

    trio.run(main)


def test_what_one_read_brings_does_not_hold_up_the_others() -> None:
    """300 calls of a millisecond each: others have their turn after 32 at most."""
    clock, gaps_s = trio.testing.MockClock(), [0.0]

    def takes_a_millisecond(request: Any, call: Call) -> pb.RecallMessageResponse:
        clock.jump(0.001)
        return at_once(request, call)

    async def neighbour() -> None:
        while True:
            before_s = trio.current_time()
            await trio.lowlevel.checkpoint()
            gaps_s.append(trio.current_time() - before_s)

    async def main() -> None:
        turns = Turns(clock.current_time)
        async with (
            connected(takes_a_millisecond, turns=turns) as client,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(neighbour)
            adjacent(client, 300)
            await client.flush()
            await client.answers(300)
            # For the neighbour to see the last one.
            await trio.lowlevel.checkpoint()
            await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()

    trio.run(main, clock=clock)
    assert sum(gaps_s) >= 0.3
    assert max(gaps_s) <= 0.05
