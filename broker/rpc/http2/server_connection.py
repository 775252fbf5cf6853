"""One connection: reads, hands what it means to its calls, writes what they answer."""

from __future__ import annotations

import logging
from contextlib import suppress
from itertools import islice
from math import inf
from typing import Final, final

import trio

from commitbus.broker.common.address import share_address
from commitbus.broker.rpc.call import Call, RpcError, StatusCode
from commitbus.broker.rpc.http2.call_places import CallPlaces
from commitbus.broker.rpc.http2.connection_places import ConnectionPlace
from commitbus.broker.rpc.http2.early_ends import EarlyEnds
from commitbus.broker.rpc.http2.engine import (
    ConnectionClosed,
    DataReceived,
    Engine,
    EngineError,
    Event,
    RequestReceived,
    Role,
    SettingsReceived,
    StreamClosed,
    TrailersReceived,
)
from commitbus.broker.rpc.http2.leaving import Leaving
from commitbus.broker.rpc.http2.liveness import Liveness, Verdict
from commitbus.broker.rpc.http2.read_loop import read_all
from commitbus.broker.rpc.http2.request_head import (
    HeadRefusedError,
    Heads,
    method_of,
    refuse,
    refused_with,
    whole_request,
)
from commitbus.broker.rpc.http2.response import respond
from commitbus.broker.rpc.http2.rotation import Rotation
from commitbus.broker.rpc.http2.server_call import ServerCall, begin_unary
from commitbus.broker.rpc.http2.server_state import ServerState
from commitbus.broker.rpc.http2.wire import (
    LINGER_S,
    NETWORK_ERRORS,
    Wire,
    say_goodbye,
)
from commitbus.broker.rpc.method import Method
from commitbus.broker.rpc.outcome import shutting_down

_log = logging.getLogger(__name__)

_ANSWERS_OF_ONE_READ_BYTES: Final = 64 * 1024
"""So many may wait because nothing was written yet: not worth a look at what is unread in all."""
_CALLS_AT_ONCE: Final = 32
"""Ended between two looks at other tasks, at the end of a connection."""

_TOO_SLOW: Final = RpcError(StatusCode.DEADLINE_EXCEEDED, "the request did not come in time")
_UNREAD: Final = RpcError(StatusCode.RESOURCE_EXHAUSTED, "too many responses were not read")


@final
class ServerConnection:
    """The server's side of a connection.

    One task reads. Whoever has something to send queues it in the engine and flushes. A second task
    exists only while the network does not take what was flushed; until it does, everything else
    waits in the engine's queues.
    """

    __slots__ = (
        *("_calls", "_early_ends", "_fresh", "_heads", "_incomplete", "_is_closed"),
        *("_is_established", "_is_over", "_is_reading", "_is_writing", "_last_words"),
        *("_left_bytes", "_liveness", "_noted", "_now_s", "_nursery", "_peer"),
        *("_places", "_read_scope", "_rest_bytes", "_shares", "_unread", "_waiting", "_wire"),
        *("__weakref__", "_written", "engine", "leaving", "load", "requests", "state"),
    )

    def __init__(
        self, wire: Wire, peer: str, state: ServerState, place: ConnectionPlace | None = None
    ) -> None:
        """`place` is given back by whoever gave it."""
        self._wire, self._peer, self.state = wire, peer, state
        self.engine = Engine(Role.SERVER, state.limits.engine)
        address = share_address(peer)
        self.load = state.turns.load_of(address)
        self._places = CallPlaces(state.shares, address, place)
        self._shares = state.shares
        self.leaving = Leaving()
        self._calls: dict[int, ServerCall] = {}
        self._fresh: list[ServerCall] = []
        self._incomplete: dict[ServerCall, float] = {}
        """Calls without all of their requests, by when their headers came."""
        self.requests = state.requests.account(self._give_up_requests)
        self._unread = state.unread.account(self._give_up_unread)
        self._left_bytes = 0
        """In the engine's queues after the last flush that somebody waited for."""
        self._rest_bytes = 0
        """Taken from the engine, not yet by the network."""
        self._noted: set[int] = set()
        """Streams whose end is to be noted elsewhere than in a number."""
        self._early_ends = EarlyEnds(self.engine)
        self._waiting: Rotation[ServerCall] = Rotation()
        self._heads = Heads(peer)
        self._now_s = trio.current_time()
        self._liveness = Liveness(state.limits, self._now_s)
        self._is_established = self._is_over = self._is_reading = self._is_writing = False
        self._is_closed = False
        self._last_words = b""
        self._read_scope = trio.CancelScope()
        self._written: trio.Event | None = None
        self._nursery: trio.Nursery

    async def run(self) -> None:
        """Serve until the connection ends, from either side."""
        begin_s = self.load.begin()
        try:
            async with trio.open_nursery() as self._nursery:
                try:
                    self.flush()
                    self.load.end(begin_s)
                    with self._read_scope, suppress(*NETWORK_ERRORS):
                        await read_all(self, self._wire, self.load)
                    if self._is_over:
                        await self._say_goodbye()
                finally:
                    # Others may still want to write, but the nursery soon takes no more tasks.
                    self.abort()
        finally:
            self._fresh.clear()
            self._waiting.clear()
            self._incomplete.clear()
            self._unread.close()
            self.requests.close()
            self._is_closed = True
            self.leaving.connection_lost()
            with trio.CancelScope(shield=True):
                await self._end_calls_of_client()
                await self._wire.close()

    async def _end_calls_of_client(self) -> None:
        """End the calls that are left, a few at a time: there may be thousands."""
        calls = self._calls
        while True:
            for _ in range(min(len(calls), _CALLS_AT_ONCE)):
                self._places.client_is_gone(calls.popitem()[1])
            if not calls:
                break
            # Without a turn: what they hold is to be free soon.
            await trio.lowlevel.checkpoint()
        self._places.close()

    # Reading

    @property
    def is_over(self) -> bool:
        """Return whether nothing is to be read any more."""
        return self._is_over

    @property
    def is_writing(self) -> bool:
        """Return whether the network has not yet taken what was written."""
        return self._is_writing

    def heard(self) -> None:
        """Note the time of a read, before its events."""
        self._now_s = trio.current_time()

    def handle_read(self, events: list[Event]) -> None:
        """Handle some events of a read."""
        if events:
            self._liveness.heard_s = self._now_s
        self._is_reading = True
        self._handle(events)
        self._is_reading = False
        if self._fresh:
            self._note_waiting()

    def _note_waiting(self) -> None:
        """Account for calls that have begun, and are not over by the end of what brought them."""
        fresh, self._fresh = self._fresh, []
        for call in fresh:
            if call.is_waited_for:
                self._incomplete[call] = self._now_s
                call.note_incomplete()
            elif self._shares.is_tight and call.stream_id in self._calls:
                call.hold_head()

    def _handle(self, events: list[Event]) -> None:
        places = self._places
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
                stream_id = event.stream_id
                if stream_id in self.leaving.streams:
                    self.leaving.stream_closed(stream_id, event.error_code)
                call = self._calls.pop(stream_id, None)
                if call is None and stream_id not in self._noted:
                    places.open -= 1
                else:
                    self._stream_closed(stream_id, call)
            else:
                self._handle_rare(event)

    def _handle_rare(self, event: Event) -> None:
        if isinstance(event, TrailersReceived):
            call = self._calls.get(event.stream_id)
            if call is not None:
                call.data_received(b"", has_ended=True)
        elif isinstance(event, SettingsReceived) and not self._is_established:
            self._is_established = True
            self._places.is_known()
        elif isinstance(event, ConnectionClosed):
            self._end()

    def _request_received(self, event: RequestReceived, following: Event | None) -> None:
        stream_id, fields = event.stream_id, dict(event.headers)
        self._places.open += 1
        try:
            method = method_of(fields, self.state.methods)
            call = self._heads.describe(method.path, fields, self._now_s)
            self._check_room(method, stream_id)
        except (HeadRefusedError, RpcError) as error:
            refuse(self.engine, stream_id, error)
            if not event.end_stream:
                self._end_early(stream_id)
            return
        is_gzip = fields.get(b"grpc-encoding") == b"gzip"
        request = whole_request(method, event, following)
        if request is not None:
            self._answer(stream_id, method, call, request, is_gzip=is_gzip)
            return
        server_call = self._open_call(stream_id, method, call, is_gzip=is_gzip)
        self._fresh.append(server_call)
        if method.kind.streams_requests:
            server_call.start_streaming()
        if event.end_stream and stream_id in self._calls:
            server_call.data_received(b"", has_ended=True)

    def _open_call(
        self, stream_id: int, method: Method, call: Call, *, is_gzip: bool
    ) -> ServerCall:
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
            server_call = self._open_call(stream_id, method, call, is_gzip=is_gzip)
            if self._shares.is_tight:
                self._fresh.append(server_call)
            server_call.wait_for(answer)

    def _check_room(self, method: Method, stream_id: int) -> None:
        places = self._places
        if self._shares.is_tight or places.open > places.ask_from or method.lasts:
            self._noted.add(stream_id)
            self._places.take(method, stream_id)
        if self.engine.unsent_bytes() > _ANSWERS_OF_ONE_READ_BYTES:
            error = self.unread_refusal()
            if error is not None:
                raise refused_with(error)

    def unread_refusal(self) -> RpcError | None:
        """Return what a call is answered with while its client must read first; None: it need not.

        One error for all: it is never raised, which would keep what it was raised through.
        """
        unread = self.engine.unsent_bytes()
        if unread > _ANSWERS_OF_ONE_READ_BYTES:
            state = self.state
            self._unread.hold(unread + self._rest_bytes)
            if unread > min(state.limits.unsent_response_bytes, state.unread.share):
                return _UNREAD
        return None

    def is_complete(self, call: ServerCall) -> None:
        """Note that all of a request has come."""
        self._incomplete.pop(call, None)

    def orphan_ended(self, call: ServerCall) -> None:
        """Note that the handler of a call has ended whose client was gone already."""
        self._places.orphan_ended(call)

    def _stream_closed(self, stream_id: int, call: ServerCall | None) -> None:
        if stream_id in self._noted:
            self._noted.remove(stream_id)
            self._early_ends.discard(stream_id)
        if call is None:
            self._places.leave(stream_id)
        else:
            self._waiting.discard(call)
            self._places.client_is_gone(call)

    # Writing

    def forget(self, call: ServerCall, *, client_has_ended: bool) -> None:
        """Note that a call was answered; unless its client has ended, it is to be stopped."""
        self._calls.pop(call.stream_id, None)
        if self._waiting.items:
            self._waiting.discard(call)
        if not client_has_ended:
            self._end_early(call.stream_id)

    def _end_early(self, stream_id: int) -> None:
        self._early_ends.new.add(stream_id)
        self._noted.add(stream_id)

    def wake_when_flushed(self, call: ServerCall) -> None:
        """Call `make_room` whenever responses have left, until it returns True."""
        self._waiting.add(call)
        self._left_bytes = self.engine.unsent_bytes()

    def flush_soon(self) -> None:
        """Write what is queued, together with what others are about to queue."""
        if not self._is_reading:
            self.state.flusher.flush_soon(self)

    def flush(self) -> None:
        """Write what the engine has to send, without waiting: what is left goes to a task."""
        engine = self.engine
        if not self._is_writing:
            is_awaited = self._waiting.items or self._early_ends.late.items
            if is_awaited:
                self._left_bytes = max(self._left_bytes, engine.unsent_bytes())
            try:
                output = engine.take_output()
                if self._early_ends.new:
                    output += self._early_ends.stop_new()
            except EngineError as error:
                self.end_with(error)
                return
            events = engine.take_events()
            if events:
                self._handle(events)
            self._write(output)
            if is_awaited:
                self._wake_some()
        unread = engine.unsent_bytes() + self._rest_bytes
        if unread or self._unread.bytes:
            self._unread.hold(unread)
        places = self._places
        if places.open != places.counted:
            places.settle()

    def _wake_some(self) -> None:
        """Have those go on whose responses have left, or who have room because others' are gone."""
        left_bytes = self.engine.unsent_bytes()
        has_less = left_bytes < self._left_bytes
        if has_less:
            self._waiting.start()
        self._left_bytes = left_bytes
        goes_on = self._waiting.step(ServerCall.make_room)
        if self._early_ends.stop_late(have_some_left=has_less) or goes_on:
            self.state.flusher.flush_soon(self)

    def _write(self, output: bytes) -> None:
        try:
            written = self._wire.write_now(output) if output else 0
        except OSError:
            self.abort()
            return
        if written == len(output):
            self.leaving.written()
            return
        self._is_writing = True
        rest = memoryview(output)[written:]
        self._rest_bytes = len(rest)
        self._nursery.start_soon(self._write_rest, rest)

    async def _write_rest(self, rest: memoryview) -> None:
        try:
            while rest:
                with trio.fail_after(self.state.limits.write_s):
                    rest = rest[await self._wire.write_some(rest) :]
                self._rest_bytes = len(rest)
        except (*NETWORK_ERRORS, trio.TooSlowError):
            self.abort()
            return
        self._is_writing = False
        self.flush()
        if self._written is not None and not self._is_writing:
            self._written.set()
            self._written = None

    async def until_written(self) -> None:
        """Wait until the network has taken what was written."""
        if self._is_writing:
            self._written = self._written or trio.Event()
            await self._written.wait()

    # The end

    def abort(self) -> None:
        """End the connection without a word."""
        self._is_writing = True  # and nothing is written any more
        self._nursery.cancel_scope.cancel()

    def _end(self) -> None:
        """Read no more; what is queued is still written."""
        self._is_over = True
        self._read_scope.cancel()

    def end_with(self, error: EngineError) -> None:
        """End the connection because its client breaks the protocol."""
        if self._is_over:
            return  # Whoever flushes after the first error is told again, without last words.
        _log.info("connection ended", extra={"peer": self._peer, "reason": error.reason})
        self._last_words = error.last_words
        self._end()

    async def _say_goodbye(self) -> None:
        with trio.move_on_after(LINGER_S), suppress(*NETWORK_ERRORS):
            await self.until_written()
            await say_goodbye(self._wire, self._last_words)

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

    def check(self, now_s: float) -> float:
        """Do what is due: end the connection if its client never began, vanished, or takes nothing.

        Returns the seconds until the next look.
        """
        if self._is_closed:
            return inf
        limits = self.state.limits
        if self._unread.bytes and now_s - self._unread.moved_s > limits.write_s:
            self._give_up_unread()
        for call, since_s in list(islice(self._incomplete.items(), 1000)):
            if now_s - since_s <= limits.request_s:
                break
            call.finish(_TOO_SLOW)
        verdict = self._liveness.look(now_s, is_established=self._is_established)
        if verdict is Verdict.ASK:
            self.engine.ping()
            self.flush()
        elif verdict is not Verdict.THERE:
            if verdict is Verdict.GONE:
                _log.info("client vanished", extra={"peer": self._peer})
            self.abort()
        return limits.check_s if self._is_established else limits.preface_check_s

    def _give_up_unread(self) -> None:
        """End the connection of a client that does not read."""
        _log.info("client does not read", extra={"peer": self._peer})
        self.abort()

    def _give_up_requests(self) -> None:
        """Refuse the calls whose requests are held; without any, end the connection."""
        _log.info("incomplete requests refused", extra={"peer": self._peer})
        held_bytes = self.requests.bytes
        for call in list(self._calls.values()):
            call.give_up_request()
        if self.requests.bytes < held_bytes:
            self.state.flusher.flush_soon(self)
        else:
            # Headers of calls at work. The account is closed now, so it could hold anything.
            self.abort()
