"""What is measured of a call."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import trio
import trio.testing
from google.protobuf.message import Message

from commitbus.broker.observe.rpc_latency import RpcLatency
from commitbus.broker.rpc.access import NOTHING
from commitbus.broker.rpc.call import Call, Response, RpcError, Send, StatusCode
from commitbus.broker.rpc.exchange import begin
from commitbus.broker.rpc.interceptor import intercepted
from commitbus.broker.rpc.method import Later, Method, MethodKind, Parked
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from tests.broker.rpc.carried import carried

OK = pb.SendMessageResponse(status=pb.Status(code=pb.OK))
Labels = tuple[str, ...]


def new_call() -> Call:
    """What a transport tells about a call."""
    return Call(method="/s/M", metadata={}, peer="127.0.0.1:1", authority=None, deadline_s=None)


def timed(kind: MethodKind, handler: Callable[..., Any], latency: RpcLatency) -> Method:
    """A method whose calls are measured."""
    method = Method(
        "/s/Do", kind, pb.SendMessageRequest, pb.SendMessageResponse, handler, access=NOTHING
    )
    return intercepted([method], [latency.intercept])[0]


def counted(latency: RpcLatency) -> list[Labels]:
    """The labels under which one call each was counted."""
    assert all(sum(counts) == 1 for _, counts, _ in latency.snapshot())
    return [tuple(labels) for labels, _, _ in latency.snapshot()]


async def labels_of(kind: MethodKind, handler: Callable[..., Any]) -> list[Labels]:
    """Call the handler, and return the labels that were counted."""
    latency = RpcLatency()

    async def send(*_: object) -> None:
        pass

    method = timed(kind, handler, latency)
    try:
        streams = kind.streams_responses
        await carried(method, pb.SendMessageRequest(), new_call(), send if streams else None)
    except RpcError:
        pass
    return counted(latency)


def test_a_handler_that_does_not_wait_is_counted_and_needs_no_task() -> None:
    """The transport has its answer at once."""
    latency = RpcLatency()
    call = new_call()
    method = timed(MethodKind.UNARY, lambda _request, _call: OK, latency)
    assert begin(method, call, (pb.SendMessageRequest(), call)) == OK.SerializeToString()
    assert counted(latency) == [("Do", "20000", "false", "success")]


def test_a_handler_that_waits_is_counted_when_it_is_done() -> None:
    """With the code of its status."""

    async def handler(_request: Message, _call: Call) -> Message:
        await trio.lowlevel.checkpoint()
        return pb.SendMessageResponse(status=pb.Status(code=pb.TOPIC_NOT_FOUND))

    assert trio.run(labels_of, MethodKind.UNARY, handler) == [("Do", "40402", "false", "success")]


@pytest.mark.parametrize("refused", [False, True])
def test_an_answer_that_is_settled_later_is_counted_then(*, refused: bool) -> None:
    """And not before; what it raises goes on to the client."""

    def result() -> Message:
        if refused:
            raise RpcError(StatusCode.ABORTED, "no")
        return OK

    latency, answer = RpcLatency(), Later()
    outcomes: list[Response | str] = []

    async def make_call() -> None:
        method = timed(MethodKind.UNARY, lambda _request, _call: answer, latency)
        try:
            outcomes.append(await carried(method, pb.SendMessageRequest(), new_call()))
        except RpcError as error:
            outcomes.append(error.message)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(make_call)
            await trio.testing.wait_all_tasks_blocked()
            assert latency.snapshot() == []
            answer.settle(result)

    trio.run(main)
    assert outcomes == ["no" if refused else OK.SerializeToString()]
    assert counted(latency) == [
        ("Do", "ABORTED", "false", "process_request_failed")
        if refused
        else ("Do", "20000", "false", "success")
    ]


def test_a_stream_is_counted_with_its_first_code() -> None:
    """A receive says in its first message how it went."""

    async def handler(_request: Message, _call: Call, send: Send) -> None:
        await send(pb.ReceiveMessageResponse(status=pb.Status(code=pb.MESSAGE_NOT_FOUND)))
        await send(pb.ReceiveMessageResponse())

    labels = trio.run(labels_of, MethodKind.SERVER_STREAM, handler)
    assert labels == [("Do", "40401", "true", "success")]


class Waiter(Parked):
    """A handler that parks before its response and after it; woken by whoever holds it."""

    def __init__(self, send: Send) -> None:
        self._send, self.looks, self.abandoned = send, 0, False

    def when_woken(self, go_on: Callable[[], None]) -> None:
        self.go_on = go_on

    async def resume(self) -> Parked | None:
        self.looks += 1
        if self.looks > 1:
            return None
        await self._send(pb.ReceiveMessageResponse(status=pb.Status(code=pb.MESSAGE_NOT_FOUND)))
        return self

    def abandon(self) -> None:
        self.abandoned = True


@pytest.mark.parametrize(("looks", "result"), [(2, "success"), (1, "cancelled")])
def test_a_stream_that_parks_is_counted_once(looks: int, result: str) -> None:
    """At its end, which may be that its client gives up."""
    latency, waiters = RpcLatency(), list[Waiter]()

    def handler(_request: Message, _call: Call, send: Send) -> Parked:
        waiters.append(Waiter(send))
        return waiters[0]

    async def send(*_: object) -> None:
        pass

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            method = timed(MethodKind.SERVER_STREAM, handler, latency)
            nursery.start_soon(carried, method, pb.SendMessageRequest(), new_call(), send)
            for _ in range(looks):
                await trio.testing.wait_all_tasks_blocked()
                assert latency.snapshot() == []
                waiters[0].go_on()
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()

    trio.run(main)
    (waiter,) = waiters
    assert (waiter.looks, waiter.abandoned) == (looks, result == "cancelled")
    assert counted(latency) == [("Do", "40401", "true", result)]


@pytest.mark.parametrize("waits", [False, True])
def test_a_refusal_is_counted_with_its_status(*, waits: bool) -> None:
    """Handlers of either kind may refuse."""

    def refuse(_request: Message, _call: Call) -> Message:
        raise RpcError(StatusCode.NOT_FOUND, "there is no topic")

    async def refuse_later(request: Message, call: Call) -> Message:
        await trio.lowlevel.checkpoint()
        return refuse(request, call)

    labels = trio.run(labels_of, MethodKind.UNARY, refuse_later if waits else refuse)
    assert labels == [("Do", "NOT_FOUND", "false", "process_request_failed")]


def test_a_call_that_the_client_gave_up_is_counted() -> None:
    """As RocketMQ does, under a result of its own."""
    latency = RpcLatency()

    async def handler(_request: Message, _call: Call) -> Message:
        await trio.sleep_forever()

    async def main() -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            method = timed(MethodKind.UNARY, handler, latency)
            await carried(method, pb.SendMessageRequest(), new_call())

    trio.run(main)
    assert counted(latency) == [("Do", "OK", "false", "cancelled")]


def test_a_stream_of_the_clients_is_not_counted() -> None:
    """It lasts as long as the client likes."""

    async def handler(requests: AsyncIterator[Message], _call: Call, _send: Send) -> None:
        assert requests is not None

    assert trio.run(labels_of, MethodKind.BIDI, handler) == []
