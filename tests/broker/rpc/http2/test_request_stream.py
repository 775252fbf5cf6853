"""A handler that reads a stream of small requests lets others have their turn."""

from __future__ import annotations

import trio

from commitbus.broker.rpc.access import NOTHING
from commitbus.broker.rpc.http2.grpc_wire import MessageReader, encode_message
from commitbus.broker.rpc.http2.request_stream import RequestStream
from commitbus.broker.rpc.method import Method, MethodKind
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb

REQUESTS = 10_000


def test_a_window_full_of_small_requests_is_not_read_at_one_go() -> None:
    """It would take half a second, in which nobody else is served."""

    async def handler(*_: object) -> None:
        return

    method = Method("/a.B/C", MethodKind.BIDI, None, pb.TelemetryCommand, handler, access=NOTHING)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async def main() -> None:
        stream = RequestStream(method, MessageReader(100), lambda _: None)
        stream.feed(encode_message(b"") * REQUESTS, has_ended=True)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(others)
            assert [request async for request in stream] == [b""] * REQUESTS
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert turns > REQUESTS // 100
