"""What every transport does for stream handlers that park: no task until they are woken."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import grpc
import trio

from commitbus.broker.rpc.call import RpcError, Send, StatusCode
from commitbus.broker.rpc.method import Parked
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb

WAIT_S = 20.0
# Defined in conftest.py, which a test module cannot import.
Kit = Any
Start = Callable[..., Any]
Connect = Callable[..., Any]


class Waiter(Parked):
    """A stream's handler that is parked until the test wakes it, from its own thread."""

    def __init__(self) -> None:
        self.parked, self.abandoned = threading.Semaphore(0), threading.Event()
        self._answers: list[Any] = []
        self._token: trio.lowlevel.TrioToken
        self._go_on: Callable[[], None]
        self._send: Send

    def __call__(self, _: object, __: object, send: Send) -> Parked:
        """Be a handler that parks at once."""
        self._token, self._send = trio.lowlevel.current_trio_token(), send
        return self

    def when_woken(self, go_on: Callable[[], None]) -> None:
        """Be parked."""
        self._go_on = go_on
        self.parked.release()

    async def resume(self) -> Parked | None:
        """Give the answers; park again if they end with None."""
        for answer in self._answers:
            if answer is None:
                return self
            if isinstance(answer, Exception):
                raise answer
            await self._send(pb.PullMessageResponse(next_offset=answer))
        return None

    def abandon(self) -> None:
        """Be told that nobody waits."""
        self.abandoned.set()

    def wake(self, *answers: object) -> None:
        """Have the handler give these answers."""
        assert self.parked.acquire(timeout=WAIT_S)
        self._answers = list(answers)
        self._token.run_sync_soon(self._go_on)


def test_a_parked_stream_goes_on_when_it_is_woken(
    kit: Kit, start_server: Start, connect: Connect
) -> None:
    """And may park again, before and after it has sent something; it may fail as any other."""
    handler = Waiter()
    client = connect(start_server(kit.stream(handler)))
    responses = client.pull(pb.PullMessageRequest())
    handler.wake(None)
    handler.wake(1, 2, None)
    assert [next(responses).next_offset for _ in range(2)] == [1, 2]
    handler.wake(3)
    assert [response.next_offset for response in responses] == [3]

    responses = client.pull(pb.PullMessageRequest())
    handler.wake(4, RpcError(StatusCode.ABORTED, "no"))
    assert next(responses).next_offset == 4
    with kit.refused(grpc.StatusCode.ABORTED, "no"):
        next(responses)
    assert not handler.abandoned.is_set()


def test_a_parked_stream_whose_client_goes_is_abandoned(
    kit: Kit, start_server: Start, connect: Connect
) -> None:
    """At once, also one that has sent something; the next is not concerned."""
    for answers in ((), (1, None)):
        handler = Waiter()
        client = connect(start_server(kit.stream(handler)))
        responses = client.pull(pb.PullMessageRequest())
        if answers:
            handler.wake(*answers)
            assert next(responses).next_offset == 1
        assert handler.parked.acquire(timeout=WAIT_S)
        responses.cancel()
        assert handler.abandoned.wait(WAIT_S)
        responses = client.pull(pb.PullMessageRequest())
        handler.wake(5)
        assert [response.next_offset for response in responses] == [5]


def test_a_parked_stream_does_not_outlive_the_server(
    kit: Kit, start_server: Start, connect: Connect
) -> None:
    """It is not waited for, and its client learns why."""
    handler = Waiter()
    server = start_server(kit.stream(handler), drain_grace_s=WAIT_S)
    responses = connect(server).pull(pb.PullMessageRequest())
    assert handler.parked.acquire(timeout=WAIT_S)
    server.stop()
    assert handler.abandoned.is_set()
    with kit.refused(grpc.StatusCode.UNAVAILABLE, "the server is shutting down"):
        next(responses)


def test_a_stream_that_parks_too_late_is_abandoned(
    kit: Kit, start_server: Start, connect: Connect
) -> None:
    """Its client went while it worked, and it looked for that nowhere."""
    handler, works, is_gone = Waiter(), threading.Event(), threading.Event()

    async def oblivious(request: object, call: object, send: Send) -> Parked:
        with trio.CancelScope(shield=True):
            works.set()
            await trio.to_thread.run_sync(is_gone.wait, WAIT_S)
        return handler(request, call, send)

    server = start_server(kit.stream(oblivious), kit.unary(kit.echo))
    client = connect(server)
    responses = client.pull(pb.PullMessageRequest())
    assert works.wait(WAIT_S)
    responses.cancel()
    # What comes by the same connection afterwards is answered afterwards.
    assert client.ask(kit.text("a")).message_id == "a"
    is_gone.set()
    assert handler.abandoned.wait(WAIT_S)
