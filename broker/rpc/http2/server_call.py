"""One call: its request as it arrives, its handler, its response as it leaves."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Final, Protocol, final

import trio
from google.protobuf.message import Message

from commitbus.broker.rpc.call import Call, Pieces, Response, RpcError, StatusCode
from commitbus.broker.rpc.exchange import (
    MESSAGE_COST_BYTES,
    SEND_WINDOW_BYTES,
    Crew,
    Exchange,
    Outcome,
    begin,
    encoded,
    parse,
)
from commitbus.broker.rpc.http2.engine import Engine
from commitbus.broker.rpc.http2.grpc_wire import (
    PREFIX,
    MessageReader,
    encode_message,
    only_message,
)
from commitbus.broker.rpc.http2.held_bytes import HeldAccount
from commitbus.broker.rpc.http2.leaving import Leaving
from commitbus.broker.rpc.http2.metadata import Metadata
from commitbus.broker.rpc.http2.request_stream import RequestStream
from commitbus.broker.rpc.http2.response import respond, response_fields, status_of
from commitbus.broker.rpc.http2.server_state import ServerState
from commitbus.broker.rpc.http2.turns import Load
from commitbus.broker.rpc.http2.unpacking import (
    answer_of,
    is_for_worker,
    unpack,
    unpack_in_worker,
)
from commitbus.broker.rpc.method import Later, Method, MethodKind, Parked
from commitbus.broker.rpc.outcome import shutting_down

_CONNECTION_WINDOW_BYTES: Final = 4 * 1024 * 1024
"""The response streams of one connection wait when this much waits in all of them."""
_FLUSH_BYTES: Final = 64 * 1024
"""From here on a response stream is written at once, not with those of other handlers."""


class Connection(Protocol):
    """What a call needs of the connection that it came by."""

    engine: Engine
    state: ServerState
    requests: HeldAccount
    """What is held of requests."""
    leaving: Leaving
    load: Load
    """The client's use of the thread."""

    def flush(self) -> None:
        """Write what is queued."""

    def flush_soon(self) -> None:
        """Write what is queued, together with what others are about to queue."""

    def forget(self, call: ServerCall, *, client_has_ended: bool) -> None:
        """Note that a call was answered; unless its client has ended, it is to be stopped."""

    def wake_when_flushed(self, call: ServerCall) -> None:
        """Call `make_room` whenever responses have left, until it returns True."""

    def unread_refusal(self) -> RpcError | None:
        """Return what a call is answered with while its client must read first."""

    def is_complete(self, call: ServerCall) -> None:
        """Note that all of a request has come."""

    def orphan_ended(self, call: ServerCall) -> None:
        """Note that the handler of a call has ended whose client was gone already."""


def begin_unary(
    crew: Crew, method: Method, call: Call, data: bytes
) -> bytes | RpcError | Later | Parked | Awaitable[object]:
    """Call the handler of a unary call with its request; return what `begin` does."""
    if crew.dismissed:
        return shutting_down()
    request = parse(method, data)
    return request if isinstance(request, RpcError) else begin(method, call, (request, call))


@final
class ServerCall:
    """A call from its headers on, until it was answered or its client went away."""

    __slots__ = (
        *("_call", "_connection", "_exchange", "_has_begun", "_has_ended", "_head_bytes"),
        "_held_bytes",
        *(
            "_is_gzip",
            "_is_incomplete",
            "_is_orphan",
            "_is_over",
            "_method",
            "_queued_messages",
            "_reader",
        ),
        "_request",
        *("_requests", "_room", "_state", "stream_id"),
    )

    def __init__(
        self, connection: Connection, stream_id: int, method: Method, call: Call, *, is_gzip: bool
    ) -> None:
        """`is_gzip`: the client may compress its messages, and then we do so with ours."""
        self._connection, self._state, self.stream_id = connection, connection.state, stream_id
        self._method, self._call, self._is_gzip = method, call, is_gzip
        self._state.calls += 1
        self._reader: MessageReader | None = None
        self._request: bytes | None = None
        self._requests: RequestStream | None = None
        self._held_bytes = self._head_bytes = 0
        self._exchange: Exchange | None = None
        self._has_ended = False  # the client, its request
        self._has_begun = False  # we, our response
        self._is_incomplete = self._is_over = self._is_orphan = False
        self._queued_messages = 0
        self._room: trio.Event | None = None

    # The request

    def start_streaming(self) -> None:
        """Run a handler that reads its requests itself."""
        self._requests = RequestStream(self._method, self._new_reader(), self._consume)
        self._run(self._requests)

    def data_received(self, data: bytes, *, has_ended: bool) -> None:
        """Take a piece of the request's body."""
        self._has_ended = has_ended
        if self._requests is not None:
            self._requests.feed(data, has_ended=has_ended)
            self._hold(self._requests.held_bytes)
            return
        self._connection.engine.consume(self.stream_id, len(data))
        if self._exchange is not None:
            return  # The handler was given these bytes as soon as the call was known.
        message = None
        if has_ended and self._reader is None:
            message = only_message(data, self._method.max_request_bytes)
        if message is None:
            self._assemble(data, has_ended=has_ended)
        else:
            self._run_with(message)

    def _assemble(self, data: bytes, *, has_ended: bool) -> None:
        """Collect the one request of a call whose handler does not read itself."""
        if self._reader is None:
            self._reader = self._new_reader()
        reader = self._reader
        reader.feed(data)
        try:
            # Also before it is complete: one that is too large must be refused before it is here.
            request = reader.take_as_sent()
        except RpcError as error:
            self.finish(error)
            return
        if request is not None and self._request is None and reader.is_between_messages:
            self._request = request
        elif request is not None or (has_ended and not reader.is_between_messages):
            self._refuse_count()
            return
        if not has_ended:
            self._hold(reader.buffered_bytes + len(self._request or b""))
        elif self._request is None:
            self._refuse_count()
        else:
            self._run_with(self._request)

    def _refuse_count(self) -> None:
        self.finish(RpcError(StatusCode.UNIMPLEMENTED, "the call takes exactly one request"))

    def _run_with(self, data: bytes) -> None:
        compressed_bytes = None if self._reader is None else self._reader.compressed_bytes
        if self._is_incomplete:
            self._complete()
        # Thousands of calls may have been begun before the first of them was answered.
        error = self._connection.unread_refusal()
        if error is None and is_for_worker(data, compressed_bytes):
            self._run_unpacked(data)
            return
        if self._held_bytes:
            self._release()
        if error is None and compressed_bytes is not None:
            request = unpack(self._method, data)
        else:
            request = error or parse(self._method, data)
        if isinstance(request, RpcError):
            self.finish(request)
        else:
            self._run(request)

    def _run_unpacked(self, packed: bytes) -> None:
        if self._state.crew.dismissed:
            self.finish(shutting_down())
        else:
            self.wait_for(self._unpacked(packed))

    async def _unpacked(self, packed: bytes) -> object:
        """Return the answer to a request that a worker unpacks; until then its bytes are held."""
        try:
            request = await unpack_in_worker(self._method, packed)
        finally:
            self._release()
        return await answer_of(self._method, self._call, self._arguments(request))

    def _arguments(self, request: Message | bytes | RequestStream) -> tuple[Any, ...]:
        if self._method.kind.streams_responses:
            return request, self._call, self.send
        return request, self._call

    @property
    def is_waited_for(self) -> bool:
        """Return whether the rest of the request has still to come before the handler begins."""
        return self._exchange is None and not self._is_over and self._requests is None

    def note_incomplete(self) -> None:
        """Have the connection told when the request is complete, or the call over."""
        self._is_incomplete = True
        self.hold_head()

    def _complete(self) -> None:
        self._is_incomplete = False
        self._connection.is_complete(self)

    def hold_head(self) -> None:
        """Account for the headers of a call that waits."""
        if isinstance(self._call.metadata, Metadata) and not self._head_bytes:
            self._count_head(self._call.metadata.size)

    def _count_head(self, size: int) -> None:
        account, change = self._connection.requests, size - self._head_bytes
        self._head_bytes = size
        account.hold(account.bytes + change)

    def _hold(self, size: int) -> None:
        """Account for what is kept of the request; that may end this call, or others."""
        account, change = self._connection.requests, size - self._held_bytes
        self._held_bytes = size
        account.hold(account.bytes + change)

    def give_up_request(self) -> None:
        """Drop what is kept of the request, because too much is kept in all."""
        if not self._held_bytes and not self._head_bytes:
            return
        error = RpcError(StatusCode.RESOURCE_EXHAUSTED, "too many requests are incomplete")
        if self._requests is not None:
            self._requests.fail(error)
            self._hold(0)
        elif self._exchange is None:
            self.finish(error)

    def _release(self) -> None:
        """Drop what is kept of the request."""
        if self._held_bytes:
            self._hold(0)
        self._reader = self._request = None

    def _consume(self, size: int) -> None:
        assert self._requests is not None, "only a stream of requests is consumed this way"
        self._hold(self._requests.held_bytes)
        self._connection.engine.consume(self.stream_id, size)
        self._connection.flush_soon()

    def _new_reader(self) -> MessageReader:
        return MessageReader(self._method.max_request_bytes, is_gzip=self._is_gzip)

    # The handler

    def _run(self, request: Message | bytes | RequestStream) -> None:
        method, call = self._method, self._call
        if self._state.crew.dismissed:
            self.finish(shutting_down())
            return
        answer = begin(method, call, self._arguments(request))
        if isinstance(answer, bytes | RpcError):
            self.finish(answer)
        else:
            # Streams last, a unary call is over in milliseconds.
            if method.kind is not MethodKind.UNARY and isinstance(call.metadata, Metadata):
                if isinstance(answer, Parked):
                    call.metadata.shrink_to_client_id(self._state.shared_bytes)
                else:
                    call.metadata.shrink(self._state.shared_bytes)
                if self._head_bytes:
                    self._count_head(call.metadata.size)
            self.wait_for(answer)

    def wait_for(self, answer: Later | Parked | Awaitable[object]) -> None:
        """End the call with what its handler, which has begun, will answer."""
        if not isinstance(answer, Later):
            self._connection.load.task_started()
        self._exchange = Exchange(
            self._method, self._call, crew=self._state.crew, finish=self.finish
        )
        self._exchange.wait_for(answer)

    def client_is_gone(self) -> bool:
        """End the call: the stream was reset, or the connection is lost.

        Returns whether its handler has ended too; if not, the connection is told when it has.
        """
        self._is_over = True
        self._wake()
        if self._exchange is None:
            self._end()
        else:
            self._exchange.cancel()
        self._is_orphan = self._exchange is not None
        return not self._is_orphan

    def refuse(self, error: RpcError) -> None:
        """End a call whose handler has not begun."""
        if self._exchange is None:
            self.finish(error)

    def finish(self, outcome: Outcome) -> None:
        """End the call with this, which its client is told unless it is gone."""
        if not self._is_over:
            self._is_over = True
            self._respond(outcome)
            if self._call.when_unfinished is not None:
                self._connection.leaving.add(self.stream_id, self._call.when_unfinished)
            self._connection.forget(self, client_has_ended=self._has_ended)
        self._wake()
        self._end()
        if self._is_orphan:
            self._connection.orphan_ended(self)

    def _end(self) -> None:
        self._state.calls -= 1
        if self._held_bytes:
            self._release()
        if self._is_incomplete:
            self._complete()
        if self._head_bytes:
            self._count_head(0)
        if self._requests is not None:
            self._connection.engine.consume(self.stream_id, self._requests.close())
        # They hold methods of this object: without the collector's help only if let go.
        self._requests = self._exchange = None
        # The answer, if there is one, and the room that the client has again.
        self._connection.flush_soon()

    # The response

    def _respond(self, outcome: Outcome) -> None:
        engine, stream_id = self._connection.engine, self.stream_id
        if not self._has_begun or isinstance(outcome, bytes):
            respond(engine, stream_id, outcome, is_gzip=self._is_gzip)
        else:
            engine.submit_trailers(stream_id, status_of(outcome))

    async def send(self, *responses: Response | Pieces) -> None:
        """Queue the next responses; wait while too much waits for the client to read.

        Raises:
            RpcError: the call is over; whoever kept this function beyond it learns so.
        """
        # Even a handler that never waits must notice that it is cancelled.
        await trio.lowlevel.checkpoint_if_cancelled()
        self._check_open()
        connection, engine = self._connection, self._connection.engine
        is_gzip = self._is_gzip
        if not self._has_begun:
            self._has_begun = True
            engine.submit_headers(self.stream_id, response_fields(is_gzip=is_gzip))
        match responses:
            case [tuple() as pieces] if not is_gzip:
                engine.submit_data(self.stream_id, PREFIX.pack(0, sum(map(len, pieces))))
                for piece in pieces:
                    engine.submit_data(self.stream_id, piece)
            case _:
                data = b"".join([encode_message(encoded(one), gzip=is_gzip) for one in responses])
                engine.submit_data(self.stream_id, data)
        self._queued_messages += len(responses)
        if engine.unsent_bytes(self.stream_id) < _FLUSH_BYTES:
            connection.flush_soon()
        else:
            connection.flush()
            # A client that is fast enough must not keep the others waiting.
            await trio.lowlevel.checkpoint()
        while not self._is_over and not self._has_room():
            if self._room is None:
                self._room = trio.Event()
                connection.wake_when_flushed(self)
            await self._room.wait()
        self._check_open()

    def make_room(self) -> bool:
        """Wake the handler that waits in `send`, if there is room again; return whether."""
        if not self._is_over and not self._has_room():
            return False
        self._wake()
        return True

    def _has_room(self) -> bool:
        engine = self._connection.engine
        unsent = engine.unsent_bytes(self.stream_id)
        if unsent == 0:
            self._queued_messages = 0
            return True
        cost = unsent + self._queued_messages * MESSAGE_COST_BYTES
        # All connections together have a limit, too: near it, one may have as much as is free.
        window = min(_CONNECTION_WINDOW_BYTES, self._state.unread.room)
        return cost < SEND_WINDOW_BYTES and engine.unsent_bytes() < window

    def _wake(self) -> None:
        if self._room is not None:
            self._room.set()
            self._room = None

    def _check_open(self) -> None:
        if self._is_over:
            raise RpcError(StatusCode.CANCELLED, "the call is over")
