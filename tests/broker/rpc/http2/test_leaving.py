"""Responses that a connection takes with it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from commitbus.broker.rpc.call import Call, Send
from commitbus.broker.rpc.http2.engine import ErrorCode
from commitbus.broker.rpc.http2.leaving import Leaving
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from tests.broker.rpc.unread_client import UnreadClient

WAIT_S = 20.0
# Defined in conftest.py, which a test module cannot import.
Kit = Any
Start = Callable[..., Any]


def test_each_is_told_once_at_most() -> None:
    """That its stream was reset, or that the socket did not take it; not that it left."""
    leaving, told = Leaving(), list[int]()
    for stream_id in range(5):
        leaving.add(stream_id, partial(told.append, stream_id))
    leaving.stream_closed(0, ErrorCode.NO_ERROR)
    leaving.written()
    leaving.stream_closed(1, ErrorCode.CANCEL)
    assert told == [1]
    leaving.stream_closed(2, ErrorCode.NO_ERROR)
    leaving.stream_closed(99, ErrorCode.CANCEL)
    for _ in range(2):
        leaving.connection_lost()
    assert told == [1, 2, 3, 4]


def test_a_response_that_waits_when_the_server_stops_is_unfinished(
    kit: Kit, start_server: Start
) -> None:
    """Nobody will send the rest."""
    ended, unfinished = threading.Event(), threading.Event()
    piece = pb.PullMessageResponse(message=pb.Message(body=b"x" * 20_000))

    async def handler(_: object, call: Call, send: Send) -> None:
        for _piece in range(9):
            await send(piece)
        call.when_unfinished = unfinished.set
        ended.set()

    method = kit.stream(handler)
    server = start_server(method)
    client = UnreadClient(server.port, method.path)
    assert ended.wait(WAIT_S)
    server.stop()
    assert unfinished.is_set()
    client.close()
