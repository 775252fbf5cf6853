"""Calls however their frames arrive, and however their handlers answer; without sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, final

import pytest
import trio
import trio.testing

from commitbus.broker.rpc.call import Call, Send, StatusCode
from commitbus.broker.rpc.http2 import server_connection
from commitbus.broker.rpc.http2.engine import (
    Engine,
    EngineLimits,
    ErrorCode,
    Event,
    GoAwayReceived,
    ResponseReceived,
    Role,
    StreamClosed,
)
from commitbus.broker.rpc.http2.grpc_wire import encode_message
from commitbus.broker.rpc.http2.limits import ServerLimits
from commitbus.broker.rpc.http2.server_connection import ServerConnection
from commitbus.broker.rpc.http2.server_state import ServerState
from commitbus.broker.rpc.http2.turns import Turns
from commitbus.broker.rpc.method import Handler, Later, MethodKind, Parked
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from tests.broker.rpc.http2.memory_client import (
    HEADERS,
    WAIT_S,
    WINDOW_BYTES,
    Client,
    MemoryWire,
    adjacent,
    at_once,
    connected,
    headers_first,
    in_a_task,
    later,
    refuse,
)


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
