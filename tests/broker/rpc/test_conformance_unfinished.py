"""What every transport tells a handler that has ended: whether its response left."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from commitbus.broker.rpc.call import Call, Send
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from tests.broker.rpc.unread_client import UnreadClient

WAIT_S = 20.0
# Defined in conftest.py, which a test module cannot import.
Kit = Any
Start = Callable[..., Any]
Connect = Callable[..., Any]
PIECE = pb.PullMessageResponse(message=pb.Message(body=b"x" * 20_000))


class Handler:
    """Sends 180 KB, which the transport takes at once and a client that does not read does not."""

    def __init__(self) -> None:
        self.ended, self.unfinished = threading.Event(), threading.Event()

    async def __call__(self, _: object, call: Call, send: Send) -> None:
        for _piece in range(9):
            await send(PIECE)
        call.when_unfinished = self.unfinished.set
        self.ended.set()


@pytest.mark.parametrize("loses_connection", [False, True])
def test_a_response_that_ends_while_it_waits_for_its_reader_is_unfinished(
    kit: Kit, start_server: Start, *, loses_connection: bool
) -> None:
    """Although its handler has ended without an error."""
    handler = Handler()
    method = kit.stream(handler)
    client = UnreadClient(start_server(method).port, method.path)
    assert handler.ended.wait(WAIT_S)
    assert not handler.unfinished.wait(0.2)
    if not loses_connection:
        client.cancel()
        assert handler.unfinished.wait(WAIT_S)
    client.close()
    assert handler.unfinished.wait(WAIT_S)


def test_a_response_that_was_read_to_its_end_is_finished(
    kit: Kit, start_server: Start, connect: Connect
) -> None:
    """What becomes of the connection later is nothing to it."""
    handler = Handler()
    server = start_server(kit.stream(handler))
    client = connect(server)
    assert len(list(client.pull(pb.PullMessageRequest()))) == 9
    client.channel.close()
    server.stop()
    assert not handler.unfinished.is_set()
