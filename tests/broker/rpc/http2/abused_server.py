"""A server to be treated badly, in a process of its own; prints its port. A script.

Its one argument is JSON: fields of `ServerLimits` that differ from the defaults, and under
`engine` those of `EngineLimits`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import trio

from commitbus.broker.rpc.access import NOTHING
from commitbus.broker.rpc.call import Call, Send
from commitbus.broker.rpc.defaults import MAX_MESSAGE_BYTES
from commitbus.broker.rpc.http2.engine import EngineLimits
from commitbus.broker.rpc.http2.limits import ServerLimits
from commitbus.broker.rpc.listen.accept import AcceptOptions
from commitbus.broker.rpc.listen.certificate import TlsContexts
from commitbus.broker.rpc.method import Method, MethodKind
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from commitbus.broker.rpc.trio_transport import serve

PIECE = b"x" * 16_384

parked = 0


async def park(*_: object) -> None:
    global parked  # noqa: PLW0603 - a process of its own
    parked += 1
    try:
        await trio.sleep_forever()
    finally:
        parked -= 1


async def pour(_: object, __: Call, send: Send) -> None:
    """Send for ever."""
    global parked  # noqa: PLW0603 - a process of its own
    parked += 1
    try:
        while True:
            await send(pb.RecallMessageResponse(message_id=PIECE.decode()))
    finally:
        parked -= 1


async def ignore(_: AsyncIterator[Any], __: Call) -> Any:
    """Take no request."""
    await park()


async def measure(requests: AsyncIterator[Any], _: Call) -> Any:
    """How much was sent in all."""
    size = sum([len(request.recall_handle) async for request in requests])
    return pb.RecallMessageResponse(message_id=str(size))


async def drip(_: object, __: Call, send: Send) -> None:
    """Send little."""
    global parked  # noqa: PLW0603 - a process of its own
    parked += 1
    try:
        while True:
            await send(pb.RecallMessageResponse())
    finally:
        parked -= 1


async def chat(_: AsyncIterator[Any], __: Call, ___: Send) -> None:
    """Stay open, as telemetry does."""
    await park()


def answer(_: object, __: Call) -> Any:
    """Answer with a megabyte."""
    return pb.RecallMessageResponse(message_id="x" * (1 << 20))


def count(_: object, __: Call) -> Any:
    """How many handlers have begun and not ended."""
    return pb.RecallMessageResponse(message_id=str(parked))


def method(name: str, kind: MethodKind, handler: Any, **options: Any) -> Method:
    types = (pb.RecallMessageRequest, pb.RecallMessageResponse)
    return Method(
        f"/test.Abused/{name}", kind, *types, handler, MAX_MESSAGE_BYTES, access=NOTHING, **options
    )


METHODS = [
    method("Count", MethodKind.UNARY, count),
    method("Park", MethodKind.SERVER_STREAM, park),
    method("Pour", MethodKind.SERVER_STREAM, pour),
    method("Measure", MethodKind.CLIENT_STREAM, measure),
    method("Drip", MethodKind.SERVER_STREAM, drip),
    method("Answer", MethodKind.UNARY, answer),
    method("Operate", MethodKind.UNARY, count, is_for_operators=True),
    method("Chat", MethodKind.BIDI, chat, lasts=True),
    method("Ignore", MethodKind.CLIENT_STREAM, ignore),
]


async def main(changes: dict[str, Any]) -> None:
    """Serve until the process is ended."""
    engine = EngineLimits(**changes.pop("engine", {}))
    defaults = {"max_message_bytes": 130 << 20, "calls_max": 20_000, "engine": engine}
    limits = ServerLimits(**{**defaults, **changes})
    async with trio.open_nursery() as nursery:
        options = AcceptOptions(tls=TlsContexts(), time_limit_s=limits.preface_s)
        start = partial(serve, METHODS, listen="127.0.0.1:0", limits=limits, accept_options=options)
        port = await nursery.start(start)
        sys.stdout.write(f"{port}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    trio.run(main, json.loads(sys.argv[1]))
