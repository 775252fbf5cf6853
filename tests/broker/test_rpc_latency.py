"""What is measured of a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
from google.protobuf.message import Message

from commitbus.broker.rpc.call import Call, Response, RpcError, Send, StatusCode
from commitbus.broker.rpc.method import Later, Method, MethodKind, Parked, Result
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from commitbus.broker.rpc_latency import RpcLatency, timed_methods

CALL = Call(method="/s/M", metadata={}, peer="127.0.0.1:1", authority=None, deadline_s=None)
OK = pb.SendMessageResponse(status=pb.Status(code=pb.OK))


def timed_handler(kind: MethodKind, handler: Callable[..., Any], latency: RpcLatency) -> Any:
    """The handler as the transport sees it. Which kind it is, the types do not tell."""
    method = Method("/s/Do", kind, pb.SendMessageRequest, pb.SendMessageResponse, handler)
    (timed,) = timed_methods([method], latency)
    return timed.handler


async def call(kind: MethodKind, handler: Callable[..., Any]) -> list[tuple[str, ...]]:
    """Call the timed handler, and return the labels that were counted."""
    latency = RpcLatency()
    timed = timed_handler(kind, handler, latency)

    async def send(_message: Message) -> None:
        pass

    arguments = (pb.SendMessageRequest(), CALL) + ((send,) if kind.streams_responses else ())
    try:
        result = timed(*arguments)
        if not isinstance(result, Message):
            await result
    except RpcError:
        pass
    assert all(sum(counts) == 1 for _, counts, _ in latency.snapshot())
    return [tuple(labels) for labels, _, _ in latency.snapshot()]


def test_a_handler_that_does_not_wait_is_counted_and_stays_so() -> None:
    """The transport runs it without a task, as before."""
    latency = RpcLatency()
    timed = timed_handler(MethodKind.UNARY, lambda _request, _call: OK, latency)

    async def run() -> None:
        assert timed(pb.SendMessageRequest(), CALL) is OK

    trio.run(run)
    assert [tuple(labels) for labels, _, _ in latency.snapshot()] == [
        ("Do", "20000", "false", "success")
    ]


def test_a_handler_that_waits_is_counted_when_it_is_done() -> None:
    """With the code of its status."""

    async def handler(_request: Message, _call: Call) -> Message:
        await trio.lowlevel.checkpoint()
        return pb.SendMessageResponse(status=pb.Status(code=pb.TOPIC_NOT_FOUND))

    assert trio.run(call, MethodKind.UNARY, handler) == [("Do", "40402", "false", "success")]


@pytest.mark.parametrize("refused", [False, True])
def test_an_answer_that_is_settled_later_is_counted_then(*, refused: bool) -> None:
    """And not before; what it raises goes on to the transport."""

    def result() -> Message:
        if refused:
            raise RpcError(StatusCode.ABORTED, "no")
        return OK

    latency, answer = RpcLatency(), Later()
    timed = timed_handler(MethodKind.UNARY, lambda _request, _call: answer, latency)
    assert timed(pb.SendMessageRequest(), CALL) is answer
    assert latency.snapshot() == []
    outcomes: list[Response | str] = []

    def finish(given: Result) -> None:
        try:
            outcomes.append(given())
        except RpcError as error:
            outcomes.append(error.message)

    answer.when_settled(finish)
    answer.settle(result)
    assert outcomes == ["no" if refused else OK]
    assert [tuple(labels) for labels, _, _ in latency.snapshot()] == [
        ("Do", "ABORTED", "false", "process_request_failed")
        if refused
        else ("Do", "20000", "false", "success")
    ]


def test_a_stream_is_counted_with_its_first_code() -> None:
    """A receive says in its first message how it went."""

    async def handler(_request: Message, _call: Call, send: Send) -> None:
        await send(pb.ReceiveMessageResponse(status=pb.Status(code=pb.MESSAGE_NOT_FOUND)))
        await send(pb.ReceiveMessageResponse())

    labels = trio.run(call, MethodKind.SERVER_STREAM, handler)
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
    latency, woken = RpcLatency(), []

    async def run() -> None:
        async def send(*_: object) -> None:
            pass

        waiter: list[Waiter] = []

        def handler(_request: Message, _call: Call, send: Send) -> Parked:
            waiter.append(Waiter(send))
            return waiter[0]

        timed = timed_handler(MethodKind.SERVER_STREAM, handler, latency)
        parked: Parked | None = timed(pb.SendMessageRequest(), CALL, send)
        for _ in range(looks):
            assert parked is not None
            parked.when_woken(lambda: woken.append(True))
            waiter[0].go_on()
            assert latency.snapshot() == []
            parked = await parked.resume()
        if parked is not None:
            parked.abandon()
        assert waiter[0].abandoned == (result == "cancelled")

    trio.run(run)
    assert len(woken) == looks
    assert [tuple(labels) for labels, _, _ in latency.snapshot()] == [
        ("Do", "40401", "true", result)
    ]


@pytest.mark.parametrize("waits", [False, True])
def test_a_refusal_is_counted_with_its_status(*, waits: bool) -> None:
    """Handlers of either kind may refuse."""

    def refuse(_request: Message, _call: Call) -> Message:
        raise RpcError(StatusCode.NOT_FOUND, "there is no topic")

    async def refuse_later(request: Message, call: Call) -> Message:
        await trio.lowlevel.checkpoint()
        return refuse(request, call)

    labels = trio.run(call, MethodKind.UNARY, refuse_later if waits else refuse)
    assert labels == [("Do", "NOT_FOUND", "false", "process_request_failed")]


def test_a_call_that_the_client_gave_up_is_counted() -> None:
    """As RocketMQ does, under a result of its own."""
    latency = RpcLatency()

    async def handler(_request: Message, _call: Call) -> Message:
        await trio.sleep_forever()

    timed = timed_handler(MethodKind.UNARY, handler, latency)

    async def run() -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            await timed(pb.SendMessageRequest(), CALL)

    trio.run(run)
    assert [tuple(labels) for labels, _, _ in latency.snapshot()] == [
        ("Do", "OK", "false", "cancelled")
    ]
