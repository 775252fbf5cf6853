"""One connection: reads, hands what it means to its calls, writes what they answer."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Final, final

import trio

from commitbus.broker.rpc.call import Call, RpcError, StatusCode
from commitbus.broker.rpc.http2.engine import (
    ConnectionClosed,
    DataReceived,
    Engine,
    EngineError,
    ErrorCode,
    Event,
    RequestReceived,
    Role,
    SettingsReceived,
    StreamClosed,
    TrailersReceived,
)
from commitbus.broker.rpc.http2.grpc_wire import only_message, parse_timeout_s
from commitbus.broker.rpc.http2.metadata import Metadata
from commitbus.broker.rpc.http2.request_head import HeadRefusedError, method_of, refused_with
from commitbus.broker.rpc.http2.response import respond
from commitbus.broker.rpc.http2.server_call import ServerCall, begin_unary
from commitbus.broker.rpc.http2.server_state import ServerState
from commitbus.broker.rpc.http2.wire import BULK_READ_BYTES, READ_BYTES, Wire
from commitbus.broker.rpc.method import Method, MethodKind
from commitbus.broker.rpc.outcome import shutting_down

_log = logging.getLogger(__name__)

_LINGER_S: Final = 1.0
"""How long a peer may take to read the last words: to close a socket while bytes of the peer are
unread would take them back."""
_LINGER_BYTES: Final = 1024 * 1024
"""What a peer may have sent meanwhile. Whoever sends more does not read."""
_EVENTS_AT_ONCE: Final = 1000
"""Handled before other tasks have their turn: 330 unary calls, some 8 ms. A flood of calls that are
reset at once must not make thousands of tasks that then only end."""
_BULK_EVENT_BYTES: Final = 4096
"""Events this large on average make the next read a large one."""
_NETWORK_ERRORS: Final = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)

_BUSY: Final = RpcError(StatusCode.RESOURCE_EXHAUSTED, "too many calls at the same time")
_UNREAD: Final = RpcError(StatusCode.RESOURCE_EXHAUSTED, "too many responses were not read")


@final
class ServerConnection:
    """The server's side of a connection.

    One task reads. Whoever has something to send queues it in the engine and flushes. A second task
    exists only while the network does not take what was flushed; until it does, everything else
    waits in the engine's queues.
    """

    __slots__ = (
        *("_authority", "_calls", "_ending_early", "_heard_s", "_is_established", "_is_over"),
        *("_is_reading", "_is_writing", "_last_words", "_now_s", "_nursery", "_opened_s"),
        *("_peer", "_pinged_s", "_read_scope", "_waiting", "_wire", "_written"),
        *("engine", "state"),
    )

    def __init__(self, wire: Wire, peer: str, state: ServerState) -> None:
        self._wire, self._peer, self.state = wire, peer, state
        self.engine = Engine(Role.SERVER, state.limits.engine)
        self._calls: dict[int, ServerCall] = {}
        self._ending_early: set[int] = set()
        self._waiting: dict[ServerCall, None] = {}
        self._authority: tuple[bytes | None, str | None] = (None, None)
        self._opened_s = self._heard_s = self._now_s = trio.current_time()
        self._pinged_s: float | None = None
        self._is_established = self._is_over = self._is_reading = self._is_writing = False
        state.strangers += 1
        self._last_words = b""
        self._read_scope = trio.CancelScope()
        self._written: trio.Event | None = None
        self._nursery: trio.Nursery

    async def run(self) -> None:
        """Serve until the connection ends, from either side."""
        try:
            async with trio.open_nursery() as self._nursery:
                try:
                    self.flush()
                    with self._read_scope, suppress(*_NETWORK_ERRORS):
                        await self._read_all()
                    if self._is_over:
                        await self._say_goodbye()
                finally:
                    # Others may still want to write, but the nursery soon takes no more tasks.
                    self.abort()
        finally:
            self.state.strangers -= not self._is_established
            for call in list(self._calls.values()):
                call.client_is_gone()
            self._calls.clear()
            self._waiting.clear()
            with trio.CancelScope(shield=True):
                await self._wire.close()

    # Reading

    async def _read_all(self) -> None:
        read_bytes = READ_BYTES
        while not self._is_over:
            data = await self._wire.read(read_bytes)
            if not data:
                return
            self._now_s = trio.current_time()
            try:
                events = self.engine.receive(data)
            except EngineError as error:
                self._end_with(error)
                return
            if events:
                self._heard_s = self._now_s
            is_bulk = len(data) > len(events) * _BULK_EVENT_BYTES
            read_bytes = BULK_READ_BYTES if is_bulk else READ_BYTES
            # Nearly always one turn: the answers to what one read brought leave with one write.
            while len(events) > _EVENTS_AT_ONCE:
                self._receive(events[:_EVENTS_AT_ONCE])
                del events[:_EVENTS_AT_ONCE]
                await trio.lowlevel.checkpoint()
            self._receive(events)
            # Headers of calls that may now be parked for minutes.
            del events

    def _receive(self, events: list[Event]) -> None:
        self._is_reading = True
        self._handle(events)
        self._is_reading = False
        self.flush()

    def _handle(self, events: list[Event]) -> None:
        for event, following in zip(events, [*events[1:], None], strict=False):
            if isinstance(event, DataReceived):
                call = self._calls.get(event.stream_id)
                if call is None:
                    self.engine.consume(event.stream_id, len(event.data))
                else:
                    call.data_received(event.data, has_ended=event.end_stream)
            elif isinstance(event, RequestReceived):
                self._request_received(event, following)
            elif isinstance(event, StreamClosed):
                self._ending_early.discard(event.stream_id)
                call = self._calls.pop(event.stream_id, None)
                if call is not None:
                    call.client_is_gone()
            else:
                self._handle_rare(event)

    def _handle_rare(self, event: Event) -> None:
        if isinstance(event, TrailersReceived):
            call = self._calls.get(event.stream_id)
            if call is not None:
                call.data_received(b"", has_ended=True)
        elif isinstance(event, SettingsReceived) and not self._is_established:
            self._is_established = True
            self.state.strangers -= 1
        elif isinstance(event, ConnectionClosed):
            self._end()

    def _request_received(self, event: RequestReceived, following: Event | None) -> None:
        stream_id, fields = event.stream_id, dict(event.headers)
        try:
            method = method_of(fields, self.state.methods)
            call = self._describe(method.path, fields)
            self._check_room()
        except HeadRefusedError as refused:
            self.engine.submit_headers(stream_id, refused.fields, end_stream=not refused.text)
            if refused.text:
                self.engine.submit_data(stream_id, refused.text, end_stream=True)
            if not event.end_stream:
                self._ending_early.add(stream_id)
            return
        is_gzip = fields.get(b"grpc-encoding") == b"gzip"
        request = whole_request(method, event, following)
        if request is not None:
            self._answer(stream_id, method, call, request, is_gzip=is_gzip)
            return
        server_call = self._open(stream_id, method, call, is_gzip=is_gzip)
        if method.kind.streams_requests:
            server_call.start_streaming()
        if event.end_stream and stream_id in self._calls:
            server_call.data_received(b"", has_ended=True)

    def _open(self, stream_id: int, method: Method, call: Call, *, is_gzip: bool) -> ServerCall:
        server_call = ServerCall(self, stream_id, method, call, is_gzip=is_gzip)
        self._calls[stream_id] = server_call
        return server_call

    def _answer(
        self, stream_id: int, method: Method, call: Call, request: bytes, *, is_gzip: bool
    ) -> None:
        """Serve a unary call whose request is complete: no `ServerCall` unless it must wait."""
        answer = begin_unary(self.state.crew, method, call, request)
        if isinstance(answer, (bytes, RpcError)):
            respond(self.engine, stream_id, answer, is_gzip=is_gzip)
        else:
            self._open(stream_id, method, call, is_gzip=is_gzip).wait_for(answer)

    def _describe(self, path: str, fields: dict[bytes, bytes]) -> Call:
        timeout = fields.get(b"grpc-timeout")
        try:
            deadline_s = None if timeout is None else self._now_s + parse_timeout_s(timeout)
        except RpcError as error:
            raise refused_with(error) from None
        authority = fields.get(b":authority")
        if authority != self._authority[0]:
            text = None if authority is None else authority.decode("latin-1")
            self._authority = (authority, text)
        return Call(path, Metadata(fields), self._peer, self._authority[1], deadline_s)

    def _check_room(self) -> None:
        limits = self.state.limits
        if self.state.calls >= limits.calls_max:
            raise refused_with(_BUSY)
        if self.engine.unsent_bytes() > limits.unsent_response_bytes:
            raise refused_with(_UNREAD)

    # Writing

    def forget(self, call: ServerCall, *, client_has_ended: bool) -> None:
        """Note that a call was answered; unless its client has ended, it is to be stopped."""
        self._calls.pop(call.stream_id, None)
        if not client_has_ended:
            self._ending_early.add(call.stream_id)

    def wake_when_flushed(self, call: ServerCall) -> None:
        """Call `make_room` after every flush until it returns True."""
        self._waiting[call] = None

    def flush_soon(self) -> None:
        """Write what is queued, together with what others are about to queue."""
        if not self._is_reading:
            self.state.flusher.flush_soon(self)

    def flush(self) -> None:
        """Write what the engine has to send, without waiting: what is left goes to a task."""
        if self._is_writing:
            return
        try:
            output = self.engine.take_output()
            if self._ending_early:
                output += self._stop_clients()
        except EngineError as error:
            self._end_with(error)
            return
        events = self.engine.take_events()
        if events:
            self._handle(events)
        if output:
            self._write(output)
        if self._waiting:
            for call in [call for call in self._waiting if call.make_room()]:
                del self._waiting[call]

    def _stop_clients(self) -> bytes:
        """Reset the streams whose response has left, but whose request goes on."""
        for stream_id in list(self._ending_early):
            if not self.engine.unsent_bytes(stream_id):
                self._ending_early.discard(stream_id)
                self.engine.reset(stream_id, ErrorCode.NO_ERROR)
        return self.engine.take_output()

    def _write(self, output: bytes) -> None:
        try:
            written = self._wire.write_now(output)
        except OSError:
            self.abort()
            return
        if written < len(output):
            self._is_writing = True
            self._nursery.start_soon(self._write_rest, memoryview(output)[written:])

    async def _write_rest(self, rest: memoryview) -> None:
        try:
            while rest:
                with trio.fail_after(self.state.limits.write_s):
                    rest = rest[await self._wire.write_some(rest) :]
        except (*_NETWORK_ERRORS, trio.TooSlowError):
            self.abort()
            return
        self._is_writing = False
        self.flush()
        if self._written is not None and not self._is_writing:
            self._written.set()

    # The end

    def abort(self) -> None:
        """End the connection without a word."""
        self._is_writing = True  # and nothing is written any more
        self._nursery.cancel_scope.cancel()

    def _end(self) -> None:
        """Read no more; what is queued is still written."""
        self._is_over = True
        self._read_scope.cancel()

    def _end_with(self, error: EngineError) -> None:
        if self._is_over:
            return  # Whoever flushes after the first error is told again, without last words.
        _log.info("connection ended", extra={"peer": self._peer, "reason": error.reason})
        self._last_words = error.last_words
        self._end()

    async def _say_goodbye(self) -> None:
        with trio.move_on_after(_LINGER_S), suppress(*_NETWORK_ERRORS):
            if self._is_writing:
                self._written = trio.Event()
                await self._written.wait()
            if self._last_words:
                await self._wire.write(self._last_words)
            await self._wire.end_writing()
            unread_bytes = _LINGER_BYTES
            while unread_bytes > 0 and (data := await self._wire.read(READ_BYTES)):
                unread_bytes -= len(data)

    def announce_end(self) -> None:
        """Ask the client for no new calls; those on their way are still served."""
        self.engine.announce_end()
        self.flush()

    def end_calls(self) -> None:
        """Refuse calls that were not begun, and end the connection when all are answered."""
        for call in list(self._calls.values()):
            call.refuse(shutting_down())
        self.engine.end()
        self.flush()

    def check(self, now_s: float) -> None:
        """End the connection if its client never began, or has vanished."""
        limits = self.state.limits
        if not self._is_established:
            if now_s - self._opened_s > limits.preface_s:
                self.abort()
        elif self._pinged_s is None or self._heard_s >= self._pinged_s:
            self._pinged_s = None
            if now_s - self._heard_s > limits.keepalive_s:
                self._pinged_s = now_s
                self.engine.ping()
                self.flush()
        elif now_s - self._pinged_s > limits.keepalive_timeout_s:
            _log.info("client vanished", extra={"peer": self._peer})
            self.abort()


def whole_request(method: Method, head: RequestReceived, following: Event | None) -> bytes | None:
    """Return the request of a unary call if the event after its headers is all of it.

    It is for 97 of 100 calls of grpc-go with 64 in flight.
    """
    if (
        isinstance(following, DataReceived)
        and following.stream_id == head.stream_id
        and following.end_stream
        and method.kind is MethodKind.UNARY
    ):
        return only_message(following.data, method.max_request_bytes)
    return None
