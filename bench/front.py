"""The trio transport alone, from bytes read to bytes to be written: no sockets, no handler."""

from __future__ import annotations

import statistics
import time
from typing import Final, final

import trio

from bench.load import METADATA, SEND, send_request
from bench.measure import Row
from commitbus.broker.rpc.access import NOTHING
from commitbus.broker.rpc.call import Call
from commitbus.broker.rpc.defaults import MAX_MESSAGE_BYTES
from commitbus.broker.rpc.http2.engine import DataReceived, Engine, EngineLimits, Role
from commitbus.broker.rpc.http2.grpc_wire import encode_message
from commitbus.broker.rpc.http2.limits import ServerLimits
from commitbus.broker.rpc.http2.server_connection import ServerConnection
from commitbus.broker.rpc.http2.server_state import ServerState
from commitbus.broker.rpc.http2.wire import Turn
from commitbus.broker.rpc.method import Method, MethodKind
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb

CALLS_IN_A_READ: Final = (1, 32)
READS: Final = 500
WARM_UP_READS: Final = 50
REQUEST_ID: Final = "x-mq-request-id"
HEADERS: Final = [
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", SEND.encode()),
    (b":authority", b"127.0.0.1:8081"),
    (b"content-type", b"application/grpc"),
    (b"user-agent", b"grpc-go/1.60.0"),
    (b"te", b"trailers"),
    (b"grpc-timeout", b"2999876u"),
    *((name.encode(), value.encode()) for name, value in METADATA if name != REQUEST_ID),
]
ANSWER: Final = pb.SendMessageResponse(
    entries=[pb.SendResultEntry(message_id="01" * 17, transaction_id="01" * 17, offset=10**6)]
)


@final
class MeasuringWire:
    """Gives the server calls to read, and takes the time until it writes the answers."""

    def __init__(self, calls_in_a_read: int) -> None:
        self._client = Engine(Role.CLIENT, EngineLimits())
        self._calls_in_a_read = calls_in_a_read
        self._body = encode_message(send_request(0))
        self._began_s = 0.0
        self._call = 0
        self.cpu_s: list[float] = []

    async def read(self, size: int = 0, turn: Turn | None = None) -> bytes:
        """Return the next calls, each one's headers and request in a row as of most clients."""
        await trio.lowlevel.checkpoint()
        if turn is not None:
            await turn.wait()
        if len(self.cpu_s) >= WARM_UP_READS + READS:
            return b""
        pieces = [self._client.take_output()]
        for _ in range(self._calls_in_a_read):
            self._call += 1
            request_id = (REQUEST_ID.encode(), b"%036d" % self._call)
            stream_id = self._client.submit_request([*HEADERS, request_id])
            assert stream_id is not None
            self._client.submit_data(stream_id, self._body, end_stream=True)
            pieces.append(self._client.take_output())
        data = b"".join(pieces)
        self._began_s = time.thread_time()
        return data

    def write_now(self, data: bytes | memoryview) -> int:
        """Take answers."""
        self.cpu_s.append(time.thread_time() - self._began_s)
        for event in self._client.receive(data):
            if isinstance(event, DataReceived):
                self._client.consume(event.stream_id, len(event.data))
        return len(data)

    async def write_some(self, data: memoryview) -> int:
        """Not called: everything is written at once."""
        return len(data)

    async def write(self, data: bytes | memoryview) -> None:
        """Not called: everything is written at once."""

    async def end_writing(self) -> None:
        """Nobody waits for it."""

    async def close(self) -> None:
        """Nothing is open."""


def answer(_: pb.SendMessageRequest, __: Call) -> pb.SendMessageResponse:
    """Do nothing for a message."""
    return ANSWER


async def cpu_us(calls_in_a_read: int) -> float:
    """Return the CPU time of a call, in us."""
    types = (pb.SendMessageRequest, pb.SendMessageResponse)
    methods = [Method(SEND, MethodKind.UNARY, *types, answer, access=NOTHING)]
    wire = MeasuringWire(calls_in_a_read)
    async with trio.open_nursery() as nursery:
        limits = ServerLimits(max_message_bytes=MAX_MESSAGE_BYTES, calls_max=1000)
        state = ServerState(methods, limits, nursery)
        nursery.start_soon(state.turns.run)
        await ServerConnection(wire, "bench", state).run()
        nursery.cancel_scope.cancel()
    return statistics.median(wire.cpu_s[WARM_UP_READS:]) / calls_in_a_read * 1e6


def front() -> list[Row]:
    """Serve unary calls of 1 KB whose handler does nothing."""
    note = "HTTP/2, gRPC and protobuf"
    return [
        (f"transport, {calls} calls in a read", "us CPU/call", trio.run(cpu_us, calls), note)
        for calls in CALLS_IN_A_READ
    ]
