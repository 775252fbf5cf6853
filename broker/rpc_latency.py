"""How long calls take, by method, outcome and code, under RocketMQ's labels."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any, Final, NamedTuple, final

import trio
from google.protobuf.message import Message

from commitbus.broker.rpc.call import Call, Response, RpcError, Send
from commitbus.broker.rpc.method import Later, Method, MethodKind, Parked, Result
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb

LATENCY_BUCKETS_MS: Final = (1, 3, 5, 7, 10, 100, 1000, 2000, 3000)
"""RocketMQ's, so that its dashboards compare."""


class CallLabels(NamedTuple):
    """What one time series of the latency histogram counts."""

    request_code: str
    response_code: str
    is_long_polling: str
    result: str


class _Series:
    """The calls that have the same labels."""

    __slots__ = ("counts", "sum_ms")

    def __init__(self) -> None:
        self.counts = [0] * (len(LATENCY_BUCKETS_MS) + 1)
        self.sum_ms = 0.0

    def add(self, elapsed_ms: float) -> None:
        """Count one call."""
        self.counts[bisect_left(LATENCY_BUCKETS_MS, elapsed_ms)] += 1
        self.sum_ms += elapsed_ms


@final
class RpcLatency:
    """How long calls took. Filled on the trio thread."""

    def __init__(self) -> None:
        self._series: dict[CallLabels, _Series] = {}

    def series(self, calls: CallLabels) -> _Series:
        """Return where to count calls that have these labels."""
        return self._series.setdefault(calls, _Series())

    def snapshot(self) -> list[tuple[CallLabels, list[int], float]]:
        """Return a copy: labels, calls per bucket (the last one has no bound), milliseconds."""
        return [
            (calls, list(series.counts), series.sum_ms) for calls, series in self._series.items()
        ]


def timed_methods(methods: Iterable[Method], latency: RpcLatency) -> list[Method]:
    """Return the methods with their calls measured.

    Streams from the client are left as they are: they last as long as the client likes.
    """
    return [_timed(method, latency) for method in methods]


def _timed(method: Method, latency: RpcLatency) -> Method:
    if method.kind is MethodKind.UNARY:
        return replace(method, handler=_timed_unary(method, _MethodLatency(method, latency)))
    if method.kind is MethodKind.SERVER_STREAM:
        return replace(method, handler=_timed_stream(method, _MethodLatency(method, latency)))
    return method


@final
class _MethodLatency:
    """Counts the calls of one method."""

    def __init__(self, method: Method, latency: RpcLatency) -> None:
        self._name = method.path.rpartition("/")[2]
        self._is_long_polling = "true" if method.kind.streams_responses else "false"
        self._latency = latency
        self._succeeded: dict[int, _Series] = {}

    def succeeded(self, begin_s: float, code: int) -> None:
        """Count a call that was answered, with the code of its status."""
        elapsed_ms = (perf_counter() - begin_s) * 1000
        series = self._succeeded.get(code)
        if series is None:
            # Kept at hand, because making and looking up the labels takes longer than counting.
            series = self._succeeded[code] = self._labelled(code, "success")
        series.add(elapsed_ms)

    def failed(self, begin_s: float, code: int, error: BaseException) -> None:
        """Count a call that ended with an error, with what was answered before."""
        if isinstance(error, trio.Cancelled):
            self.cancelled(begin_s, code)
            return
        shown = error.code.name if isinstance(error, RpcError) else code
        elapsed_ms = (perf_counter() - begin_s) * 1000
        self._labelled(shown, "process_request_failed").add(elapsed_ms)

    def cancelled(self, begin_s: float, code: int) -> None:
        """Count a call that its client gave up, with what was answered before."""
        self._labelled(code, "cancelled").add((perf_counter() - begin_s) * 1000)

    def _labelled(self, code: int | str, result: str) -> _Series:
        # RocketMQ labels an answer with the number of its code; one without counts as good.
        return self._latency.series(
            CallLabels(self._name, str(code or "OK"), self._is_long_polling, result)
        )


def _timed_unary(method: Method, latency: _MethodLatency) -> Any:  # noqa: ANN401 - as Method
    handler: Any = method.handler

    def timed(request: Message, call: Call) -> Response | Later | Awaitable[Response]:
        begin_s = perf_counter()
        try:
            response = handler(request, call)
        except Exception as error:
            latency.failed(begin_s, 0, error)
            raise
        # A handler that need not wait stays one: the transport serves it without a task.
        if isinstance(response, (bytes, Message)):
            latency.succeeded(begin_s, _code_of(response))
            return response
        if isinstance(response, Later):
            response.then(partial(settled, begin_s))
            return response
        return finished(begin_s, response)

    def settled(begin_s: float, result: Result) -> Response:
        try:
            message = result()
        except Exception as error:
            latency.failed(begin_s, 0, error)
            raise
        latency.succeeded(begin_s, _code_of(message))
        return message

    async def finished(begin_s: float, response: Awaitable[Response]) -> Response:
        try:
            message = await response
        except BaseException as error:
            latency.failed(begin_s, 0, error)
            raise
        latency.succeeded(begin_s, _code_of(message))
        return message

    return timed


def _timed_stream(method: Method, latency: _MethodLatency) -> Any:  # noqa: ANN401 - as Method
    handler: Any = method.handler

    def timed(request: Message, call: Call, send: Send) -> Parked | Awaitable[Parked | None]:
        stream = _TimedStream(latency, send)
        try:
            answer = handler(request, call, stream.send)
        except Exception as error:
            latency.failed(stream.begin_s, 0, error)
            raise
        if isinstance(answer, Parked):
            return _TimedParked(stream, answer)
        return stream.finished(answer)

    return timed


@final
class _TimedStream:
    """A stream from its begin to its end, over all its parking, and the first code it sent."""

    __slots__ = ("_code", "_latency", "_send", "begin_s")

    def __init__(self, latency: _MethodLatency, send: Send) -> None:
        self._latency, self._send, self._code = latency, send, 0
        self.begin_s = perf_counter()

    def send(self, *responses: Response) -> Awaitable[None]:
        """Send responses."""
        for response in responses:
            self._code = self._code or _code_of(response)
        return self._send(*responses)

    async def finished(self, answer: Awaitable[Parked | None]) -> Parked | None:
        """Count the call unless it parks."""
        try:
            parked = await answer
        except BaseException as error:
            self._latency.failed(self.begin_s, self._code, error)
            raise
        if parked is not None:
            return _TimedParked(self, parked)
        self._latency.succeeded(self.begin_s, self._code)
        return None

    def abandoned(self) -> None:
        """Count the call as given up."""
        self._latency.cancelled(self.begin_s, self._code)


@final
class _TimedParked(Parked):
    __slots__ = ("_parked", "_stream")

    def __init__(self, stream: _TimedStream, parked: Parked) -> None:
        self._stream, self._parked = stream, parked

    def when_woken(self, go_on: Callable[[], None]) -> None:
        self._parked.when_woken(go_on)

    def resume(self) -> Awaitable[Parked | None]:
        return self._stream.finished(self._parked.resume())

    def abandon(self) -> None:
        self._parked.abandon()
        self._stream.abandoned()


def _code_of(response: Response) -> int:
    """Return the code of the response's status; 0 without one."""
    if isinstance(response, bytes):
        return pb.OK
    status = getattr(response, "status", None)
    return status.code if status is not None else 0
