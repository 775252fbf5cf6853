"""What every transport promises to handlers and clients: streams, one way and both ways."""

from __future__ import annotations

import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import grpc
import trio
from google.protobuf.message import Message

from commitbus.broker.rpc.call import Call, RpcError, Send, StatusCode
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb

WAIT_S = 20.0
# Defined in conftest.py, which a test module cannot import.
Kit = Any
Start = Callable[..., Any]
Connect = Callable[..., Any]


def test_a_response_stream_arrives_in_order(
    kit: Kit, start_server: Start, connect: Connect
) -> None:
    """Every message, then the end."""

    async def handler(request: pb.PullMessageRequest, _: Call, send: Send) -> None:
        for offset in range(request.batch_size):
            await send(pb.PullMessageResponse(next_offset=offset))

    client = connect(start_server(kit.stream(handler)))
    responses = client.pull(pb.PullMessageRequest(batch_size=500))
    assert [response.next_offset for response in responses] == list(range(500))


def test_responses_may_be_sent_several_at_once(
    kit: Kit, start_server: Start, connect: Connect
) -> None:
    """Messages and bytes of messages, in their order, none at all too."""
    wanted = [pb.PullMessageResponse(next_offset=offset) for offset in range(500)]

    async def handler(_: object, __: Call, send: Send) -> None:
        await send(wanted[0])
        await send()
        await send(*(message.SerializeToString() for message in wanted[1:100]))
        await send(wanted[100], wanted[101].SerializeToString(), *wanted[102:])

    client = connect(start_server(kit.stream(handler)))
    assert list(client.pull(pb.PullMessageRequest())) == wanted


def test_messages_before_an_error_still_arrive(
    kit: Kit, start_server: Start, connect: Connect
) -> None:
    """A stream that fails in the middle delivers what came before."""

    async def handler(_: object, __: Call, send: Send) -> None:
        await send(pb.PullMessageResponse(next_offset=7))
        raise RpcError(StatusCode.ABORTED, "enough")

    responses = connect(start_server(kit.stream(handler))).pull(pb.PullMessageRequest())
    assert next(responses).next_offset == 7
    with kit.refused(grpc.StatusCode.ABORTED, "enough"):
        next(responses)


def test_a_slow_reader_slows_the_handler_down(
    kit: Kit, start_server: Start, connect: Connect
) -> None:
    """A client that does not read keeps the handler waiting in `send`, and loses nothing."""
    chunk, count = b"x" * 262_144, 400
    sent = []

    async def handler(_: object, __: Call, send: Send) -> None:
        for number in range(count):
            message = pb.Message(body=chunk)
            message.system_properties.queue_offset = number
            await send(pb.PullMessageResponse(message=message))
            sent.append(number)

    client = connect(start_server(kit.stream(handler)))
    responses = client.pull(pb.PullMessageRequest())
    received = [next(responses)]
    before = -1
    tick = threading.Event()
    while len(sent) != before:  # until the handler stands still
        before = len(sent)
        tick.wait(0.3)
    assert len(sent) < count / 2
    received += responses
    assert [r.message.system_properties.queue_offset for r in received] == list(range(count))


def test_send_beyond_the_end_of_the_call_is_refused(
    kit: Kit, start_server: Start, connect: Connect
) -> None:
    """A registry of streams may keep `send`; using it late raises instead of waiting for ever."""
    kept: list[Send] = []
    raised = []

    async def handler(_: object, __: Call, send: Send) -> None:
        kept.append(send)

    async def use(request: pb.RecallMessageRequest, call: Call) -> Any:
        try:
            await kept[0](pb.PullMessageResponse(next_offset=1))
        except RpcError as error:
            raised.append(error.code)
        return kit.echo(request, call)

    client = connect(start_server(kit.stream(handler), kit.unary(use)))
    assert list(client.pull(pb.PullMessageRequest())) == []
    client.ask(kit.text("a"))
    assert raised == [StatusCode.CANCELLED]


def test_both_ways_at_once(kit: Kit, start_server: Start, connect: Connect) -> None:
    """Each command is answered before the next one is sent."""

    async def handler(requests: AsyncIterator[pb.TelemetryCommand], _: Call, send: Send) -> None:
        async for request in requests:
            await send(request)

    outgoing: queue.Queue[Any] = queue.Queue()
    replies = connect(start_server(kit.bidi(handler))).talk(iter(outgoing.get, None))
    for number in range(50):
        outgoing.put(kit.command(str(number)))
        assert next(replies).verify_message_result.nonce == str(number)
    outgoing.put(None)
    assert list(replies) == []


def test_a_handler_may_answer_after_the_client_has_finished(
    kit: Kit, start_server: Start, connect: Connect
) -> None:
    """Half-close ends the requests, not the call."""

    async def handler(requests: AsyncIterator[pb.TelemetryCommand], _: Call, send: Send) -> None:
        nonces = [request.verify_message_result.nonce async for request in requests]
        await send(kit.command("+".join(nonces)))

    client = connect(start_server(kit.bidi(handler)))
    (reply,) = client.talk(iter([kit.command("a"), kit.command("b")]))
    assert reply.verify_message_result.nonce == "a+b"


def test_a_handler_may_end_before_the_client_has_finished(
    kit: Kit, start_server: Start, connect: Connect
) -> None:
    """The client's stream ends with the handler's status."""

    async def handler(requests: AsyncIterator[Message], _: Call, send: Send) -> None:
        async for request in requests:
            await send(request)
            raise RpcError(StatusCode.FAILED_PRECONDITION, "one is enough")

    outgoing: queue.Queue[Any] = queue.Queue()
    outgoing.put(kit.command("a"))
    replies = connect(start_server(kit.bidi(handler))).talk(iter(outgoing.get, None))
    assert next(replies).verify_message_result.nonce == "a"
    with kit.refused(grpc.StatusCode.FAILED_PRECONDITION):
        next(replies)
    outgoing.put(None)


def test_a_handler_that_does_not_read_slows_the_client_down(
    kit: Kit, start_server: Start, connect: Connect
) -> None:
    """The client cannot push 100 MB into a server that does not take them."""
    go_on = threading.Event()
    taken = [0]

    async def handler(
        requests: AsyncIterator[pb.RecallMessageRequest], _: Call
    ) -> pb.RecallMessageResponse:
        await trio.to_thread.run_sync(go_on.wait, WAIT_S)
        async for request in requests:
            taken[0] += len(request.recall_handle)
        return pb.RecallMessageResponse(message_id=str(taken[0]))

    pushed = []

    def requests() -> Iterator[pb.RecallMessageRequest]:
        for number in range(400):
            pushed.append(number)
            yield kit.text("x" * 262_144)

    client = connect(start_server(kit.upload(handler)))
    future = client.upload.future(requests())
    before = -1
    tick = threading.Event()
    while len(pushed) != before:  # until the client stands still
        before = len(pushed)
        tick.wait(0.3)
    assert len(pushed) < 200
    go_on.set()
    assert future.result(WAIT_S).message_id == str(400 * 262_144)
