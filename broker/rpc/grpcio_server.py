"""The part of the grpcio transport that lives in its event loop's thread.

It moves bytes between gRPC and the bridge; no handler runs here.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, TypeAlias, final

import grpc
import grpc.aio
from google.protobuf.message import Message

from commitbus.broker.rpc.address import ListenError, peer_address, why_not_listening
from commitbus.broker.rpc.bridge import Hop, Inlet, Outlet, cost_bytes
from commitbus.broker.rpc.call import Call, RpcError, StatusCode
from commitbus.broker.rpc.exchange import SEND_WINDOW_BYTES, Crew, Exchange, Outcome, parse
from commitbus.broker.rpc.method import Method, MethodKind
from commitbus.broker.rpc.outcome import too_large
from commitbus.broker.rpc.peer_places import PeerPlaces
from commitbus.broker.rpc.shares import CallLimits

GrpcMethods: TypeAlias = "dict[str, grpc.RpcMethodHandler[bytes, bytes]]"
Context = grpc.aio.ServicerContext[bytes, bytes]

PENDING_CALLS_MAX = 200_000
"""Calls that gRPC has accepted and not yet handed over. With its default, 10,000 receivers that
reconnect together are answered with CANCELLED."""
OVER_THE_CAP = 1_000
"""Calls that may be here while they are refused, or are in the operators' reserve."""
LAST_WORDS_S = 0.5
"""How long the last statuses may take to reach clients once every handler has ended."""
DRAIN_MAX_S = 3600.0
"""Trio decides when the drain ends; this only has to be longer."""

_GRPC_CODES = {StatusCode(code.value[0]): code for code in grpc.StatusCode}


@final
@dataclass(frozen=True, slots=True)
class Limits:
    """What a server accepts."""

    max_message_bytes: int
    """A request message beyond it is answered with RESOURCE_EXHAUSTED."""
    concurrent_calls_max: int
    """Calls beyond it, long polls and telemetry counted, are answered with RESOURCE_EXHAUSTED."""

    streams_of_connection: int = 10_000
    """Streams beyond it wait in their client."""

    @property
    def call_limits(self) -> CallLimits:
        """Return the shares of connections and addresses, and the operators' reserve."""
        return CallLimits(self.concurrent_calls_max)

    def grpc_options(self) -> list[tuple[str, int]]:
        """Return gRPC's channel arguments."""
        return [
            ("grpc.max_receive_message_length", self.max_message_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_concurrent_streams", self.streams_of_connection),
            # A second broker on the same port must fail, not take half of the connections.
            ("grpc.so_reuseport", 0),
            # Official clients ping every 60 s without calls; gRPC's servers hang up on that.
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
            ("grpc.http2.max_ping_strikes", 0),
            # A client whose machine vanished ends its telemetry stream only this way.
            ("grpc.keepalive_time_ms", 60_000),
            ("grpc.keepalive_timeout_ms", 20_000),
            ("grpc.server.max_pending_requests", PENDING_CALLS_MAX),
            ("grpc.server.max_pending_requests_hard_limit", PENDING_CALLS_MAX),
        ]


@final
class CallCarrier:
    """Hands each call to the bridge, and what comes back to gRPC."""

    def __init__(
        self,
        to_trio: Hop,
        to_loop: Hop,
        crew: Crew,
        trio_clock_ahead_s: float,
        limits: CallLimits,
    ) -> None:
        """`trio_clock_ahead_s` is what trio's clock shows beyond `time.monotonic()`."""
        self._to_trio, self._to_loop, self._crew = to_trio, to_loop, crew
        self._places = PeerPlaces(limits)
        self._trio_clock_ahead_s = trio_clock_ahead_s

    def offer(self, methods: Sequence[Method], server: grpc.aio.Server) -> None:
        """Have a server that is not started yet carry these methods' calls."""
        make = {
            MethodKind.UNARY: (grpc.unary_unary_rpc_method_handler, self._unary),
            MethodKind.SERVER_STREAM: (grpc.unary_stream_rpc_method_handler, self._server_stream),
            MethodKind.CLIENT_STREAM: (grpc.stream_unary_rpc_method_handler, self._client_stream),
            MethodKind.BIDI: (grpc.stream_stream_rpc_method_handler, self._bidi),
        }
        services: defaultdict[str, GrpcMethods] = defaultdict(dict)
        for method in methods:
            wrap, carry = make[method.kind]
            carried = self._in_its_place(method, partial(carry, method))
            services[method.service][method.path.split("/")[2]] = wrap(carried)
        for service, grpc_methods in services.items():
            generic = grpc.method_handlers_generic_handler(service, grpc_methods)
            server.add_generic_rpc_handlers([generic])

    def _in_its_place(
        self, method: Method, carry: Callable[..., Awaitable[Any]]
    ) -> Callable[..., Awaitable[Any]]:
        async def carry_if_there_is_room(request: object, context: Context) -> object:
            peer = peer_address(context.peer())
            try:
                call_id = self._places.take(peer, method)
            except RpcError as error:
                await abort(context, error)
            try:
                return await carry(request, context)
            finally:
                self._places.leave(peer, call_id)

        return carry_if_there_is_room

    async def _unary(self, method: Method, data: bytes, context: Context) -> bytes:
        request = request_of(method, data)
        if isinstance(request, RpcError):
            await abort(context, request)
        return await self._one_response(method, request, context)

    async def _server_stream(self, method: Method, data: bytes, context: Context) -> None:
        request = request_of(method, data)
        if isinstance(request, RpcError):
            await abort(context, request)
        await self._many_responses(method, request, context)

    async def _client_stream(self, method: Method, _: object, context: Context) -> bytes:
        inlet, reader = self._read_requests(method, context)
        try:
            return await self._one_response(method, inlet, context)
        finally:
            reader.cancel()

    async def _bidi(self, method: Method, _: object, context: Context) -> None:
        inlet, reader = self._read_requests(method, context)
        try:
            await self._many_responses(method, inlet, context)
        finally:
            reader.cancel()

    async def _one_response(
        self, method: Method, request: Message | bytes | Inlet, context: Context
    ) -> bytes:
        answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

        def finish(outcome: Outcome) -> None:
            self._to_loop.put(set_result, answer, outcome)

        call = self._describe(method, context)
        exchange = Exchange(method, call, crew=self._crew, finish=finish)
        self._to_trio.put(exchange.start, request, call)
        try:
            outcome = await answer
        except asyncio.CancelledError:
            self._to_trio.put(exchange.cancel)
            raise
        assert outcome is not None, "a method with one response ended without it"
        if isinstance(outcome, RpcError):
            await abort(context, outcome)
        return outcome

    async def _many_responses(
        self, method: Method, request: Message | bytes | Inlet, context: Context
    ) -> None:
        writes: asyncio.Queue[Outcome] = asyncio.Queue()
        outlet = Outlet(self._to_loop, writes.put_nowait)

        def finish(outcome: Outcome) -> None:
            outlet.close()
            self._to_loop.put(writes.put_nowait, outcome)

        call = self._describe(method, context)
        exchange = Exchange(method, call, crew=self._crew, finish=finish)
        self._to_trio.put(exchange.start, request, call, outlet.send)
        try:
            outcome = await self._write_all(writes, outlet, context)
        except BaseException:
            # Cancelled, or the connection broke under a write.
            self._to_trio.put(exchange.cancel)
            self._to_trio.put(did_not_finish, call)
            raise
        if outcome is not None:
            await abort(context, outcome)

    async def _write_all(
        self, writes: asyncio.Queue[Outcome], outlet: Outlet, context: Context
    ) -> RpcError | None:
        written_bytes = 0
        while isinstance(data := await writes.get(), bytes):
            await context.write(data)
            written_bytes += cost_bytes(data)
            # A credit for every message would wake trio for every message.
            if written_bytes >= SEND_WINDOW_BYTES // 4:
                self._to_trio.put(outlet.credit, written_bytes)
                written_bytes = 0
        return data

    def _read_requests(self, method: Method, context: Context) -> tuple[Inlet, asyncio.Task[None]]:
        read_on = asyncio.Event()
        inlet = Inlet(self._to_loop, read_on.set)
        return inlet, asyncio.create_task(self._read_all(method, context, inlet, read_on))

    async def _read_all(
        self, method: Method, context: Context, inlet: Inlet, read_on: asyncio.Event
    ) -> None:
        item: Message | bytes | RpcError | None
        while True:
            data = await context.read()
            item = request_of(method, data) if isinstance(data, bytes) else None
            self._to_trio.put(inlet.deliver, item)
            if item is None or isinstance(item, RpcError):
                return
            await read_on.wait()
            read_on.clear()

    def _describe(self, method: Method, context: Context) -> Call:
        remaining_s = context.time_remaining()
        deadline_s = (
            None
            if remaining_s is None
            else time.monotonic() + self._trio_clock_ahead_s + remaining_s
        )
        return Call(
            method=method.path,
            metadata={
                key: value
                for key, value in context.invocation_metadata() or ()
                if isinstance(value, str) and not key.endswith("-bin")
            },
            peer=peer_address(context.peer()),
            authority=None,
            deadline_s=deadline_s,
        )


@final
class GrpcioServer:
    """The gRPC server: its port and its end. Loop thread only, but for the events."""

    def __init__(self, methods: Sequence[Method], address: str, limits: Limits) -> None:
        """Made inside the running loop."""
        self.drain_begins, self.drain_ended = asyncio.Event(), asyncio.Event()
        self._methods, self._address, self._limits = methods, address, limits

    async def run(self, carrier: CallCarrier, started: Callable[[int], None]) -> None:
        """Serve until both events were set; `started` gets the port once calls are accepted.

        Raises:
            ListenError: the address cannot be listened on.
        """
        server = grpc.aio.server(
            options=self._limits.grpc_options(),
            # A last resort: the carrier knows shares.
            maximum_concurrent_rpcs=self._limits.concurrent_calls_max + OVER_THE_CAP,
        )
        carrier.offer(self._methods, server)
        try:
            port = server.add_insecure_port(self._address)
        except RuntimeError:
            raise ListenError(self._address, why_not_listening(self._address)) from None
        await server.start()
        started(port)
        await self.drain_begins.wait()
        refusing = asyncio.create_task(server.stop(DRAIN_MAX_S))
        await self.drain_ended.wait()
        await server.stop(LAST_WORDS_S)
        await refusing


def request_of(method: Method, data: bytes) -> Message | bytes | RpcError:
    """Return a request, or the status for one that is too large or malformed.

    gRPC itself has one limit for all methods, so here the bytes are there already; what is spared
    is parsing them.
    """
    if len(data) > method.max_request_bytes:
        return too_large(len(data), method.max_request_bytes)
    return parse(method, data)


async def abort(context: Context, error: RpcError) -> NoReturn:
    """End the call with an error's status."""
    await context.abort(_GRPC_CODES[error.code], error.message)


def set_result(answer: asyncio.Future[Outcome], outcome: Outcome) -> None:
    """Answer whoever waits, if it still does."""
    if not answer.done():
        answer.set_result(outcome)


def did_not_finish(call: Call) -> None:
    """Tell a handler that has ended, if it has to know, that its response did not leave in full."""
    if call.when_unfinished is not None:
        call.when_unfinished()
