"""What every transport promises to operators: start, drain and health."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

import grpc
import pytest
import trio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from commitbus.broker.rpc.address import ListenError
from commitbus.broker.rpc.call import Call, RpcError, StatusCode
from commitbus.broker.rpc.method import Later, Result
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb

WAIT_S = 20.0
SERVICE = "apache.rocketmq.v2.MessagingService"
# Defined in conftest.py, which a test module cannot import.
Kit = Any
Start = Callable[..., Any]
Connect = Callable[..., Any]


# Start and stop


def test_a_drain_lets_unary_calls_finish_and_cancels_streams(
    kit: Kit, start_server: Start, connect: Connect
) -> None:
    """New calls are refused meanwhile; health says so to whoever watches."""
    parked, asked = kit.parked(), threading.Event()
    release = threading.Event()

    async def handler(request: pb.RecallMessageRequest, call: Call) -> Any:
        asked.set()
        await trio.to_thread.run_sync(release.wait, WAIT_S)
        return kit.echo(request, call)

    server = start_server(kit.unary(handler), kit.stream(parked), drain_grace_s=WAIT_S)
    client = connect(server)
    watch = health_pb2_grpc.HealthStub(client.channel).Watch(
        health_pb2.HealthCheckRequest(service="")
    )
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
    responses = client.pull(pb.PullMessageRequest())
    future = client.ask.future(kit.text("last"))
    assert parked.entered.wait(WAIT_S)
    assert asked.wait(WAIT_S)

    server.begin_stop()
    assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
    with kit.refused(grpc.StatusCode.UNAVAILABLE):
        connect(server).ask(kit.text("new"))
    assert not parked.left.is_set()

    release.set()
    assert future.result(WAIT_S).message_id == "last"
    with kit.refused(grpc.StatusCode.UNAVAILABLE, "the server is shutting down"):
        list(responses)
    assert parked.left.wait(WAIT_S)
    server.stop()


def test_a_drain_does_not_wait_beyond_its_grace(
    kit: Kit, start_server: Start, connect: Connect
) -> None:
    """A unary call that takes longer is cancelled and answered with UNAVAILABLE."""
    parked = kit.parked()
    server = start_server(kit.unary(parked), drain_grace_s=0.05)
    future = connect(server).ask.future(kit.text("a"))
    assert parked.entered.wait(WAIT_S)
    server.stop()
    assert parked.left.is_set()
    with kit.refused(grpc.StatusCode.UNAVAILABLE):
        future.result(WAIT_S)


class Settled:
    """A handler whose answers are given by the test, from its own thread."""

    def __init__(self) -> None:
        self.answers: queue.Queue[tuple[trio.lowlevel.TrioToken, Later]] = queue.Queue()

    def __call__(self, *_: object) -> Later:
        """Be a unary handler."""
        answer = Later()
        self.answers.put((trio.lowlevel.current_trio_token(), answer))
        return answer

    def settle(self, result: Result) -> None:
        """Give the answer to the oldest call."""
        token, answer = self.answers.get(timeout=WAIT_S)
        token.run_sync_soon(answer.settle, result)


def test_an_answer_may_be_settled_later(kit: Kit, start_server: Start, connect: Connect) -> None:
    """With a response, a status, or a mistake of ours; for a client that is gone, in vain."""
    handler = Settled()
    client = connect(start_server(kit.unary(handler)))
    future = client.ask.future(kit.text("a"))
    handler.settle(lambda: pb.RecallMessageResponse(message_id="late"))
    assert future.result(WAIT_S).message_id == "late"

    def refuse() -> pb.RecallMessageResponse:
        raise RpcError(StatusCode.ABORTED, "no")

    def fail() -> pb.RecallMessageResponse:
        raise KeyError("ours")

    for result, code in ((refuse, grpc.StatusCode.ABORTED), (fail, grpc.StatusCode.INTERNAL)):
        future = client.ask.future(kit.text("a"))
        handler.settle(result)
        with kit.refused(code):
            future.result(WAIT_S)
    future = client.ask.future(kit.text("a"), timeout=0.1)
    with kit.refused(grpc.StatusCode.DEADLINE_EXCEEDED):
        future.result(WAIT_S)
    handler.settle(lambda: pb.RecallMessageResponse(message_id="nobody"))
    future = client.ask.future(kit.text("a"))
    handler.settle(lambda: pb.RecallMessageResponse(message_id="next"))
    assert future.result(WAIT_S).message_id == "next"


def test_a_drain_waits_for_what_is_settled_later(
    kit: Kit, start_server: Start, connect: Connect
) -> None:
    """Within its grace, as for any unary call."""
    handler = Settled()
    server = start_server(kit.unary(handler), drain_grace_s=WAIT_S)
    future = connect(server).ask.future(kit.text("a"))
    token, answer = handler.answers.get(timeout=WAIT_S)
    server.begin_stop()
    token.run_sync_soon(answer.settle, lambda: pb.RecallMessageResponse(message_id="last"))
    assert future.result(WAIT_S).message_id == "last"
    server.stop()


def test_a_drain_ends_what_is_never_settled(
    kit: Kit, start_server: Start, connect: Connect
) -> None:
    """Whoever settles it after that does no harm."""
    handler = Settled()
    server = start_server(kit.unary(handler), kit.stream(kit.parked()), drain_grace_s=0.05)
    future = connect(server).ask.future(kit.text("a"))
    _, answer = handler.answers.get(timeout=WAIT_S)
    server.stop()
    with kit.refused(grpc.StatusCode.UNAVAILABLE):
        future.result(WAIT_S)
    answer.settle(lambda: pb.RecallMessageResponse(message_id="nobody"))


def test_a_taken_port_is_a_clear_error(kit: Kit, start_server: Start, connect: Connect) -> None:
    """A second server never shares the first one's port; the first one is not disturbed."""
    first = start_server(kit.unary(kit.echo))
    with pytest.raises(ListenError) as caught:
        start_server(kit.unary(kit.echo), listen=f"127.0.0.1:{first.port}")
    assert caught.value.address == f"127.0.0.1:{first.port}"
    assert caught.value.reason == "Address already in use"
    assert connect(first).ask(kit.text("a")).message_id == "a"


@pytest.mark.parametrize("listen", ["", "8081", "localhost", "127.0.0.1:", "h:65536", "::1:80"])
def test_a_malformed_address_is_a_clear_error(kit: Kit, start_server: Start, listen: str) -> None:
    """Before anything is started."""
    with pytest.raises(ListenError):
        start_server(kit.unary(kit.echo), listen=listen)


def test_an_address_of_another_machine_is_a_clear_error(kit: Kit, start_server: Start) -> None:
    """192.0.2.0/24 belongs to documentation, never to this machine."""
    with pytest.raises(ListenError) as caught:
        start_server(kit.unary(kit.echo), listen="192.0.2.1:0")
    assert caught.value.reason == "Cannot assign requested address"


def test_the_port_is_free_after_a_stop(kit: Kit, start_server: Start, connect: Connect) -> None:
    """A restart on the same port works at once, though old connections linger in the kernel."""
    first = start_server(kit.unary(kit.echo))
    connect(first).ask(kit.text("a"))
    first.stop()
    second = start_server(kit.unary(kit.echo), listen=f"127.0.0.1:{first.port}")
    assert second.port == first.port
    assert connect(second).ask(kit.text("b")).message_id == "b"


# Health


def test_health_knows_the_server_and_its_services(
    kit: Kit, start_server: Start, connect: Connect
) -> None:
    """SERVING for both; an unknown service is NOT_FOUND."""
    stub = health_pb2_grpc.HealthStub(connect(start_server(kit.unary(kit.echo))).channel)
    for service in ("", SERVICE):
        response = stub.Check(health_pb2.HealthCheckRequest(service=service))
        assert response.status == health_pb2.HealthCheckResponse.SERVING
    with kit.refused(grpc.StatusCode.NOT_FOUND):
        stub.Check(health_pb2.HealthCheckRequest(service="nonsense"))


def test_health_of_an_unknown_service_is_watched_without_an_error(
    kit: Kit, start_server: Start, connect: Connect
) -> None:
    """As the health protocol wants it: the service might come later."""
    stub = health_pb2_grpc.HealthStub(connect(start_server(kit.unary(kit.echo))).channel)
    watch = stub.Watch(health_pb2.HealthCheckRequest(service="nonsense"))
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    watch.cancel()
