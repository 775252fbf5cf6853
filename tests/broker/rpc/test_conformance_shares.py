"""What every transport keeps for others when one client takes all it can get."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import grpc

from commitbus.broker.rpc.method import MethodKind
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb

WAIT_S = 20.0
# Defined in conftest.py, which a test module cannot import.
Kit = Any
Start = Callable[..., Any]
Connect = Callable[..., Any]


def park(client: Any, count: int, stack: ExitStack) -> int:
    """Open so many streams; return how many of them are refused at once."""
    calls = [client.pull(pb.PullMessageRequest()) for _ in range(count)]
    for call in calls:
        stack.callback(call.cancel)
    refused = 0
    for call in calls:
        try:
            next(call)
        except grpc.RpcError:
            refused += 1
    return refused


def test_one_address_leaves_room_for_others_and_for_operators(
    kit: Kit, start_server: Start, connect: Connect
) -> None:
    """A client takes half of all calls, its address a little more; then another one comes."""
    parked = kit.parked()

    async def greet_and_park(_: object, __: object, send: Any) -> None:
        await send(pb.PullMessageResponse())
        await parked()

    operate = replace(kit.of_kind(MethodKind.UNARY, kit.echo), is_for_operators=True)
    server = start_server(
        kit.stream(greet_and_park), operate, listen="[::]:0", concurrent_calls_max=60
    )
    with ExitStack() as stack:
        assert park(connect(server), 60, stack) == 30
        for _ in range(6):
            park(connect(server), 60, stack)
        other = connect(server, "[::1]")
        assert 60 > park(other, 60, stack) > 0, "some of what is left, and not all of it"
        # All is taken, and a health check comes, or an operator.
        assert other.ask(kit.text("a"), timeout=WAIT_S).message_id == "a"
        assert connect(server).ask(kit.text("b"), timeout=WAIT_S).message_id == "b"


def test_streams_that_last_have_a_share_of_a_connection(
    kit: Kit, start_server: Start, connect: Connect
) -> None:
    """And give it back."""
    parked = kit.parked()
    lasting = replace(kit.stream(parked), lasts=True)
    client = connect(start_server(lasting, kit.unary(kit.echo), concurrent_calls_max=2))
    waiting = client.pull(pb.PullMessageRequest())
    assert parked.entered.wait(WAIT_S)
    with kit.refused(grpc.StatusCode.RESOURCE_EXHAUSTED):
        next(client.pull(pb.PullMessageRequest()))
    assert client.ask(kit.text("a"), timeout=WAIT_S).message_id == "a"
    waiting.cancel()
