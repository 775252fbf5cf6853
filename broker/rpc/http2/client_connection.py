"""The client's side of a connection: calls in, bytes out, over the same engine as the server's.

    async with connect("127.0.0.1", 8081) as connection:
        async with connection.call("/package.Service/Method") as call:
            await call.send(request)
            call.end_sending()
            response = await call.receive()

Messages are bytes here. A call fails with the `RpcError` that the server sent, or UNAVAILABLE when
the connection is lost; nothing is tried again.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Final, final

import trio

from commitbus.broker.common.address import Endpoint
from commitbus.broker.rpc.call import RpcError, StatusCode
from commitbus.broker.rpc.http2.client_call import ClientCall
from commitbus.broker.rpc.http2.engine import (
    ConnectionClosed,
    DataReceived,
    Engine,
    EngineError,
    EngineLimits,
    Event,
    GoAwayReceived,
    ResponseReceived,
    Role,
    StreamClosed,
    TrailersReceived,
)
from commitbus.broker.rpc.http2.grpc_wire import format_timeout
from commitbus.broker.rpc.http2.wire import BULK_READ_BYTES, Wire, wire_of

CONNECT_TIMEOUT_S: Final = 10.0
KEEPALIVE_S: Final = 30.0
"""Of silence during a call, after which the server is asked whether it is still there."""
KEEPALIVE_TIMEOUT_S: Final = 20.0

_LIMITS: Final = EngineLimits(
    stream_window_bytes=8 * 1024 * 1024, connection_window_bytes=32 * 1024 * 1024
)
_FRAME_HEADER_BYTES: Final = 9
_SETTINGS_HEADER_END: Final = b"\x04\x00\x00\x00\x00\x00"
"""Type, no flags, stream 0: what follows the length in the header of a first SETTINGS frame."""
_NETWORK_ERRORS: Final = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)


@asynccontextmanager
async def connect(
    host: str,
    port: int,
    *,
    tls: ssl.SSLContext | None = None,
    timeout_s: float = CONNECT_TIMEOUT_S,
) -> AsyncIterator[ClientConnection]:
    """Connect to a server's TCP port; arguments and errors as `connect_to`."""
    async with connect_to(Endpoint(host, port), tls=tls, timeout_s=timeout_s) as connection:
        yield connection


@asynccontextmanager
async def connect_to(
    endpoint: Endpoint,
    *,
    tls: ssl.SSLContext | None = None,
    server_name: str = "",
    timeout_s: float = CONNECT_TIMEOUT_S,
) -> AsyncIterator[ClientConnection]:
    """Connect to a server for the time of an `async with` block.

    Args:
        endpoint: A TCP port, or a Unix socket.
        tls: Context with the trusted certificates; None for plaintext; unused on a Unix socket.
        server_name: The name that the certificate must have; the endpoint's host if empty.
        timeout_s: For the connection to stand. Whether the other side speaks HTTP/2 is known later:
            see `ClientConnection.greeted`.

    Raises:
        RpcError: UNAVAILABLE, there is no connection to be had. Its cause is the network's error.
    """
    is_tls = tls is not None and not endpoint.path
    try:
        with trio.fail_after(timeout_s):
            stream = await _open_stream(endpoint)
            wire = await _wire(stream, server_name or endpoint.host, tls if is_tls else None)
    # UnicodeError: the resolver's, for a name that is none.
    except (*_NETWORK_ERRORS, UnicodeError, trio.TooSlowError) as error:
        text = f"cannot connect to {endpoint}: {_reason(error)}"
        raise RpcError(StatusCode.UNAVAILABLE, text) from error
    # gRPC's own clients name a Unix socket's server so.
    authority = "localhost" if endpoint.path else str(endpoint)
    connection = ClientConnection(wire, authority, is_tls=is_tls)
    failure: BaseException | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.run)
        try:
            yield connection
        except BaseException as error:  # noqa: BLE001 - raised below, where no group wraps it
            failure = error
        await connection.close()
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _open_stream(endpoint: Endpoint) -> trio.SocketStream:
    if endpoint.path:
        return await trio.open_unix_socket(endpoint.path)
    return await trio.open_tcp_stream(endpoint.host, endpoint.port)


async def _wire(stream: trio.SocketStream, server_name: str, tls: ssl.SSLContext | None) -> Wire:
    if tls is None:
        return wire_of(stream, bytearray(BULK_READ_BYTES))
    try:
        tls.set_alpn_protocols(["h2"])
        secured = trio.SSLStream(stream, tls, server_hostname=server_name, https_compatible=True)
        await secured.do_handshake()
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise
    return wire_of(secured, bytearray(BULK_READ_BYTES))


def _reason(error: BaseException) -> str:
    """Return what the operating system, the resolver or OpenSSL said first.

    trio's own text for a host with several addresses says no more than that all failed.
    """
    if isinstance(error, trio.TooSlowError):
        return "it takes too long"
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, BaseExceptionGroup):
            cause = cause.exceptions[0]
        elif isinstance(cause, ssl.SSLCertVerificationError):
            return f"certificate verify failed: {cause.verify_message}"
        elif isinstance(cause, ssl.SSLError | socket.gaierror) and cause.strerror:
            return cause.strerror
        elif isinstance(cause, OSError) and cause.errno is not None:
            # trio's own text has the address once more.
            return os.strerror(cause.errno)
        else:
            error, cause = cause, cause.__cause__
    return str(error) or type(error).__name__


@final
class ClientConnection:
    """One connection and its calls. Belongs to the trio run that made it."""

    def __init__(self, wire: Wire, authority: str, *, is_tls: bool) -> None:
        """Begin over bytes that flow already; `run` must run for anything to happen."""
        self.engine = Engine(Role.CLIENT, _LIMITS)
        self._wire = wire
        self._fields: tuple[tuple[bytes, bytes], ...] = (
            (b":method", b"POST"),
            (b":scheme", b"https" if is_tls else b"http"),
            (b":authority", authority.encode()),
        )
        self._authority = authority
        self._calls: dict[int, ClientCall] = {}
        self._has_output = trio.Event()
        self._heard_s = trio.current_time()
        self._first_frame = b""
        self._greeted = trio.Event()
        self._lost: RpcError | None = None
        self._is_draining = False
        self._unusable = trio.Event()

    @property
    def is_usable(self) -> bool:
        """Return whether new calls can be made."""
        return self._lost is None and not self._is_draining

    async def wait_unusable(self) -> None:
        """Return when no more calls can be made."""
        await self._unusable.wait()

    async def greeted(self) -> None:
        """Return when the server has begun to speak HTTP/2, which it does unasked.

        Raises:
            RpcError: UNAVAILABLE, it closed the connection before, or speaks something else.
        """
        # The server may wait for the client's first bytes: they tell it that this is no TLS.
        self.flush_soon()
        await self._greeted.wait()
        if self._lost is not None:
            raise self._lost

    async def run(self) -> None:
        """Carry bytes until the connection ends, or this is cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write_all)
                nursery.start_soon(self._watch)
                with suppress(*_NETWORK_ERRORS, EngineError):
                    await self._read_all()
                nursery.cancel_scope.cancel()
        finally:
            self._lose()

    async def close(self) -> None:
        """End all calls and the connection."""
        for call in list(self._calls.values()):
            call.cancel()
        self.engine.end()
        with trio.move_on_after(1, shield=True), suppress(*_NETWORK_ERRORS, EngineError):
            await self._wire.write(self.engine.take_output())
        self._lose()
        with trio.CancelScope(shield=True):
            await self._wire.close()

    # Calls

    @asynccontextmanager
    async def call(
        self,
        path: str,
        *,
        timeout_s: float | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> AsyncIterator[ClientCall]:
        """Make a call of any kind for the time of an `async with` block, which cancels it.

        Args:
            path: `/package.Service/Method`.
            timeout_s: After which it fails with DEADLINE_EXCEEDED, here and at the server.
            metadata: Header fields, their names in lower case.

        Raises:
            RpcError: UNAVAILABLE, the connection is lost or takes no more calls.
        """
        fields = [*self._fields, (b":path", path.encode()), (b"te", b"trailers")]
        fields.append((b"content-type", b"application/grpc"))
        if timeout_s is not None:
            fields.append((b"grpc-timeout", format_timeout(timeout_s)))
        fields += [(name.encode(), text.encode()) for name, text in (metadata or {}).items()]
        stream_id = self.engine.submit_request(fields) if self.is_usable else None
        if stream_id is None:
            raise self._lost or self._unavailable("the server is shutting down")
        deadline_s = None if timeout_s is None else trio.current_time() + timeout_s
        call = ClientCall(self.engine, stream_id, self.flush_soon, deadline_s)
        self._calls[stream_id] = call
        self.flush_soon()
        try:
            yield call
        finally:
            call.cancel()
            self._calls.pop(stream_id, None)

    async def unary(
        self,
        path: str,
        request: bytes,
        *,
        timeout_s: float | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> bytes:
        """Make a call with one request and one response; arguments and errors as `call`."""
        async with self.call(path, timeout_s=timeout_s, metadata=metadata) as call:
            await call.send(request)
            call.end_sending()
            response = await call.receive()
            if response is None or await call.receive() is not None:
                raise RpcError(StatusCode.INTERNAL, "the server sent not exactly one response")
            return response

    # Bytes

    def flush_soon(self) -> None:
        """Have what is queued written, together with what others are about to queue."""
        self._has_output.set()

    async def _write_all(self) -> None:
        try:
            while True:
                await self._has_output.wait()
                self._has_output = trio.Event()
                while output := self.engine.take_output():
                    self._handle(self.engine.take_events())
                    written = self._wire.write_now(output)
                    if written < len(output):
                        await self._wire.write(memoryview(output)[written:])
                    for call in self._calls.values():
                        call.make_room()
        except (*_NETWORK_ERRORS, EngineError):
            self._lose()
            await self._wire.close()

    async def _read_all(self) -> None:
        while data := await self._wire.read(BULK_READ_BYTES):
            self._heard_s = trio.current_time()
            if len(self._first_frame) < _FRAME_HEADER_BYTES:
                self._note_first_frame(bytes(data[:_FRAME_HEADER_BYTES]))
            self._handle(self.engine.receive(data))
            # Answers of the engine itself, and what the server's windows now allow.
            self.flush_soon()

    def _handle(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, DataReceived):
                call = self._calls.get(event.stream_id)
                if call is None:
                    self.engine.consume(event.stream_id, len(event.data))
                else:
                    call.data_received(event.data, has_ended=event.end_stream)
            elif isinstance(event, ResponseReceived | TrailersReceived):
                call = self._calls.get(event.stream_id)
                if call is not None:
                    has_ended = not isinstance(event, ResponseReceived) or event.end_stream
                    call.fields_received(event.headers, has_ended=has_ended)
            elif isinstance(event, StreamClosed):
                call = self._calls.get(event.stream_id)
                if call is not None:
                    call.closed(event.error_code)
            elif isinstance(event, GoAwayReceived):
                self._is_draining = True
                self._unusable.set()
            elif isinstance(event, ConnectionClosed):
                self._lose()

    async def _watch(self) -> None:
        """Give a server up that is silent, and does not answer when it is asked."""
        while True:
            await trio.sleep(KEEPALIVE_S)
            silent_since_s = self._heard_s
            if self._calls and trio.current_time() - silent_since_s >= KEEPALIVE_S:
                self.engine.ping()
                self.flush_soon()
                await trio.sleep(KEEPALIVE_TIMEOUT_S)
                if self._heard_s == silent_since_s:
                    self._lose()
                    await self._wire.close()

    def _note_first_frame(self, data: bytes) -> None:
        """Find out whether the server begins with SETTINGS, as RFC 9113, 3.4 demands."""
        self._first_frame = (self._first_frame + data)[:_FRAME_HEADER_BYTES]
        if len(self._first_frame) == _FRAME_HEADER_BYTES:
            if self._first_frame[3:] != _SETTINGS_HEADER_END:
                self._lose("the server does not speak HTTP/2")
            self._greeted.set()

    def _lose(self, reason: str = "the connection is lost") -> None:
        """End all calls: nothing more comes."""
        if self._lost is None:
            if not self._first_frame:
                reason = "the server closed the connection without a word"
            self._lost = self._unavailable(reason)
            self._unusable.set()
            self._greeted.set()
        for call in list(self._calls.values()):
            call.fail(self._lost)

    def _unavailable(self, reason: str) -> RpcError:
        return RpcError(StatusCode.UNAVAILABLE, f"{self._authority}: {reason}")
