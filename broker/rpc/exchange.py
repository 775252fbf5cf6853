"""The life of a call, whatever carries it: its handler, its cancel scope, its one outcome.

A handler that need not wait is run by `begin` alone. One that must wait becomes an `Exchange`: a
task with a scope that ends with the deadline, with the client, or with the server; or no task, if
the handler says that somebody will settle the answer later, or parks until it is woken. The `Crew`
knows all of them, so that a server that stops can wait for some and cancel the rest.

Everything here belongs to trio's thread. Nothing here knows gRPC or HTTP/2.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from math import inf
from typing import Any, Final, cast, final

import trio
from google.protobuf.message import DecodeError, Message

from commitbus.broker.common.worker_lines import serve_caller
from commitbus.broker.rpc.call import Call, Pieces, Response, RpcError, StatusCode
from commitbus.broker.rpc.defaults import COMPRESSED_FIELDS_MIN, COMPRESSED_FIELDS_PER_BYTE
from commitbus.broker.rpc.interceptor import begin_watches
from commitbus.broker.rpc.method import Later, Method, MethodKind, Parked, Result
from commitbus.broker.rpc.outcome import (
    deadline_exceeded,
    refusal,
    shutting_down,
    too_many_fields,
)
from commitbus.broker.rpc.proto.field_count import FIELD_BYTES_MIN, has_more_fields, shape_of

Outcome = bytes | RpcError | None
"""How a call ended: the one response, a status, or (after a response stream) nothing to add."""

SEND_WINDOW_BYTES = 256 * 1024
"""A response stream waits once this much was given to the transport and is not yet written."""
MESSAGE_COST_BYTES = 256
"""What a message counts beyond its bytes, so that endless empty ones cannot pile up either."""

_CUT_SHORT: Final = shutting_down()
"""The outcome of every call until it has another: one for all, since thousands may wait."""
_TOO_LATE: Final = deadline_exceeded()
"""The outcome of calls whose deadline passed, or whose client has gone."""


def parse(
    method: Method, data: bytes, compressed_bytes: int | None = None
) -> Message | bytes | RpcError:
    """Return the request as the handler takes it, or the status for bytes that are none.

    Args:
        method: it knows the type, and how many fields a request may have.
        data: the request, unpacked.
        compressed_bytes: its size on the wire, if it was compressed there.
    """
    if method.request_type is None:
        return data
    max_fields = method.max_request_fields
    if compressed_bytes is not None:
        by_size = COMPRESSED_FIELDS_MIN + COMPRESSED_FIELDS_PER_BYTE * compressed_bytes
        max_fields = min(max_fields, by_size)
    # What is this small is not even looked at.
    if len(data) > max_fields * FIELD_BYTES_MIN and has_more_fields(
        data, shape_of(method.request_type.DESCRIPTOR), max_fields
    ):
        return too_many_fields(len(data), max_fields)
    try:
        return method.request_type.FromString(data)
    except DecodeError:
        return RpcError(StatusCode.INTERNAL, "the request message cannot be parsed")


def begin(
    method: Method, call: Call, arguments: tuple[Any, ...]
) -> bytes | RpcError | Later | Parked | Awaitable[object]:
    """Call the handler; return the outcome if it is known at once, else what to wait for."""
    handler: Callable[..., object] = method.handler
    if method.kind.streams_responses:
        call.send = arguments[2]
    try:
        if method.begins:
            arguments = begin_watches(method, call, arguments)
        result = handler(*arguments)
        if not isinstance(result, (bytes, Message)):
            return cast("Later | Parked | Awaitable[object]", result)
        answer = _encode(method, call, result)
    except Exception as error:  # noqa: BLE001 - whatever it is, it becomes a refusal
        outcome = _refused(error, method, call)
        if isinstance(outcome, (bytes, RpcError)):
            _tell_end(call, outcome)
        return outcome
    if call.watches:
        _tell_end(call, answer)
    return answer


def _refused(error: Exception, method: Method, call: Call) -> bytes | RpcError | Awaitable[None]:
    """Return the outcome of a call whose handler has raised; or, of a stream, what ends it well."""
    refused = refusal(error, method, call)
    if isinstance(refused, RpcError):
        return refused
    if not method.kind.streams_responses:
        return _encode(method, call, *refused)
    assert call.send is not None, "a stream has begun with it"
    for watch in call.watches:
        watch.responding(refused)
    return call.send(*refused)


def _encode(method: Method, call: Call, result: object) -> bytes:
    assert not method.kind.streams_responses, f"{method.path} sends its responses, returns none"
    for watch in call.watches:
        watch.responding((cast("Response", result),))
    if isinstance(result, bytes):
        return result
    assert isinstance(result, method.response_type), f"{method.path} returned {type(result)}"
    return result.SerializeToString()


def _tell_end(call: Call, outcome: Outcome) -> None:
    # It and the watches may hold the call: without the collector's help only if let go.
    call.send = None
    if call.watches:
        watches, call.watches = call.watches, ()
        error = outcome if isinstance(outcome, RpcError) else None
        was_cancelled = outcome is _CUT_SHORT or outcome is _TOO_LATE
        for watch in watches:
            watch.ended(error, was_cancelled=was_cancelled)


def encoded(response: Response | Pieces) -> bytes:
    """Return the bytes of a response in a stream."""
    if isinstance(response, tuple):
        return b"".join(response)
    return response if isinstance(response, bytes) else response.SerializeToString()


@final
class Exchange:
    """A call whose handler must wait: its task and scope, if any, and the outcome it ends with."""

    __slots__ = (
        *("_call", "_crew", "_finish", "_is_over", "_method", "_parked", "_scope"),
        "_server_stops",
    )

    def __init__(
        self,
        method: Method,
        call: Call,
        *,
        crew: Crew,
        finish: Callable[[Outcome], None],
    ) -> None:
        """`finish` is told the outcome exactly once."""
        self._method, self._call = method, call
        self._crew, self._finish = crew, finish
        # At most one of these: a handler works, or it is parked.
        self._scope: trio.CancelScope | None = None
        self._parked: Parked | None = None
        self._server_stops = self._is_over = False

    @property
    def is_unary(self) -> bool:
        """Return whether the client sends one request and waits for one response."""
        return self._method.kind is MethodKind.UNARY

    def start(self, *arguments: Any) -> None:  # noqa: ANN401 - whatever the handler takes
        """Run the handler: here and now if it need not wait, else in a task."""
        if self._crew.dismissed:
            self._finish(shutting_down())
            return
        answer = begin(self._method, self._call, arguments)
        if isinstance(answer, bytes | RpcError):
            self._finish(answer)
        else:
            self.wait_for(answer)

    def wait_for(self, answer: Later | Parked | Awaitable[object]) -> None:
        """Wait for what the handler returned, in a task of its own unless it does without."""
        self._crew.add(self)
        if isinstance(answer, Later):
            answer.when_settled(self._settled)
        elif isinstance(answer, Parked):
            self._park(answer)
        else:
            self._work(answer)

    def _work(self, answer: Awaitable[object]) -> None:
        deadline_s = self._call.deadline_s
        self._scope = trio.CancelScope(deadline=inf if deadline_s is None else deadline_s)
        self._crew.nursery.start_soon(self._run, self._scope, answer)

    def _park(self, parked: Parked) -> None:
        self._scope, self._parked = None, parked
        parked.when_woken(self._go_on)

    def _go_on(self) -> None:
        parked, self._parked = self._parked, None
        assert parked is not None, "who is parked is woken once, and not after it was abandoned"
        self._work(parked.resume())

    def cancel(self) -> None:
        """Cancel the handler, because nobody waits for it any more."""
        if self._scope is not None:
            self._scope.cancel()
        elif self._parked is not None:
            self._parked.abandon()
            self._end(_CUT_SHORT if self._server_stops else _TOO_LATE)

    def dismiss(self) -> None:
        """Cancel the handler, because the server stops; the client is told so."""
        self._server_stops = True
        if self._scope is None and self._parked is None:
            self._end(_CUT_SHORT)
        else:
            self.cancel()

    def _settled(self, result: Result) -> None:
        if self._is_over:
            return
        outcome: Outcome
        try:
            outcome = _encode(self._method, self._call, result())
        except Exception as error:  # noqa: BLE001 - whatever it is, it becomes a refusal
            refused = _refused(error, self._method, self._call)
            assert isinstance(refused, (bytes, RpcError)), "a unary call has one response"
            outcome = refused
        self._end(outcome)

    async def _run(self, scope: trio.CancelScope, answer: Awaitable[object]) -> None:
        outcome: Outcome | Parked = _CUT_SHORT
        # Who woke a parked call may have been at work for another caller.
        serve_caller(self._call.peer)
        try:
            with scope:
                outcome = await self._outcome(answer)
            if scope.cancelled_caught and not self._server_stops:
                outcome = _TOO_LATE
        except Exception as error:  # noqa: BLE001 - of a group that had the cancellation in it
            refused = refusal(error, self._method, self._call)
            outcome = refused if isinstance(refused, RpcError) else _TOO_LATE
        finally:
            self._worked(outcome)

    async def _outcome(self, answer: Awaitable[object]) -> Outcome | Parked:
        method, call = self._method, self._call
        try:
            result = await answer
            if not method.kind.streams_responses:
                return _encode(method, call, result)
            assert isinstance(result, Parked | None), f"{method.path} returned more"
        except Exception as error:  # noqa: BLE001 - whatever it is, it becomes a refusal
            outcome = _refused(error, method, call)
        else:
            return result
        if isinstance(outcome, (bytes, RpcError)):
            return outcome
        try:
            await outcome
        except RpcError as error:
            return error  # The client has gone, or reads too slowly.
        return None

    def _worked(self, outcome: Outcome | Parked) -> None:
        if not isinstance(outcome, Parked):
            self._end(outcome)
            return
        assert self._scope is not None, "it has just worked"
        is_cancelled = self._scope.cancel_called
        self._park(outcome)
        if is_cancelled:
            # In vain, while it worked on without a look at that.
            self.cancel()

    def _end(self, outcome: Outcome) -> None:
        self._is_over, self._parked = True, None
        _tell_end(self._call, outcome)
        self._crew.finished(self)
        self._finish(outcome)


@final
class Crew:
    """The handlers at work, and how their work is brought to an end."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.dismissed = False
        self.nursery = nursery
        self._running: set[Exchange] = set()
        self._unary_count = 0
        self._fewer = trio.Event()

    def add(self, exchange: Exchange) -> None:
        """Note that a handler must wait."""
        self._running.add(exchange)
        self._unary_count += exchange.is_unary

    def finished(self, exchange: Exchange) -> None:
        """Note that a handler has ended."""
        self._running.discard(exchange)
        self._unary_count -= exchange.is_unary
        if self._unary_count == 0:
            self._fewer.set()
            self._fewer = trio.Event()

    async def drain(self, grace_s: float) -> None:
        """Wait for the unary handlers, at most this long; then cancel all that are left.

        Streams are not waited for: long polls and telemetry end only by being ended.
        """
        with trio.move_on_after(grace_s):
            while self._unary_count:
                await self._fewer.wait()
        self.dismissed = True
        for exchange in list(self._running):
            exchange.dismiss()
        while self._running:
            await self._fewer.wait()
