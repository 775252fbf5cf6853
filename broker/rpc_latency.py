"""How long calls take, by method, outcome and code, under RocketMQ's labels."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Awaitable, Iterable
from dataclasses import replace
from typing import Any, Final, NamedTuple, final

import trio
from google.protobuf.message import Message

from commitbus.broker.rpc.call import Call, RpcError, Send
from commitbus.broker.rpc.method import Method, MethodKind

LATENCY_BUCKETS_MS: Final = (1, 3, 5, 7, 10, 100, 1000, 2000, 3000)
"""RocketMQ's, so that its dashboards compare."""


class CallLabels(NamedTuple):
    """What one time series of the latency histogram counts."""

    request_code: str
    response_code: str
    is_long_polling: str
    result: str


@final
class RpcLatency:
    """How long calls took. Filled on the trio thread."""

    def __init__(self) -> None:
        self._counts: dict[CallLabels, list[int]] = {}
        self._sums_ms: dict[CallLabels, float] = defaultdict(float)

    def observe(self, calls: CallLabels, elapsed_ms: float) -> None:
        """Count one call."""
        counts = self._counts.get(calls)
        if counts is None:
            counts = self._counts[calls] = [0] * (len(LATENCY_BUCKETS_MS) + 1)
        counts[bisect_left(LATENCY_BUCKETS_MS, elapsed_ms)] += 1
        self._sums_ms[calls] += elapsed_ms

    def snapshot(self) -> list[tuple[CallLabels, list[int], float]]:
        """Return a copy: labels, calls per bucket (the last one has no bound), milliseconds."""
        return [
            (calls, list(counts), self._sums_ms[calls]) for calls, counts in self._counts.items()
        ]


def timed_methods(methods: Iterable[Method], latency: RpcLatency) -> list[Method]:
    """Return the methods with their calls measured.

    Streams from the client are left as they are: they last as long as the client likes.
    """
    return [_timed(method, latency) for method in methods]


def _timed(method: Method, latency: RpcLatency) -> Method:
    name = method.path.rpartition("/")[2]
    if method.kind is MethodKind.UNARY:
        return replace(method, handler=_timed_unary(name, method.handler, latency))
    if method.kind is MethodKind.SERVER_STREAM:
        return replace(method, handler=_timed_stream(name, method.handler, latency))
    return method


def _timed_unary(name: str, handler: Any, latency: RpcLatency) -> Any:  # noqa: ANN401 - as Method
    def timed(request: Message, call: Call) -> Message | Awaitable[Message]:
        watch = _Stopwatch(name, latency, is_long_polling=False)
        try:
            response = handler(request, call)
        except Exception as error:
            watch.stop(error)
            raise
        # A handler that need not wait stays one: the transport serves it without a task.
        if isinstance(response, Message):
            watch.response_code = _code_of(response)
            watch.stop(None)
            return response
        return finished(watch, response)

    async def finished(watch: _Stopwatch, response: Awaitable[Message]) -> Message:
        with watch:
            message = await response
            watch.response_code = _code_of(message)
        return message

    return timed


def _timed_stream(name: str, handler: Any, latency: RpcLatency) -> Any:  # noqa: ANN401 - as Method
    async def timed(request: Message, call: Call, send: Send) -> None:
        watch = _Stopwatch(name, latency, is_long_polling=True)

        async def noting_send(message: Message) -> None:
            watch.response_code = watch.response_code or _code_of(message)
            await send(message)

        with watch:
            await handler(request, call, noting_send)

    return timed


@final
class _Stopwatch:
    """Measures a call and tells how it ended."""

    __slots__ = ("_begin_s", "_is_long_polling", "_latency", "_name", "response_code")

    def __init__(self, name: str, latency: RpcLatency, *, is_long_polling: bool) -> None:
        self._name, self._latency = name, latency
        self._is_long_polling = "true" if is_long_polling else "false"
        self.response_code = ""
        self._begin_s = trio.current_time()

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        self.stop(error)

    def stop(self, error: BaseException | None) -> None:
        """Count the call."""
        elapsed_ms = (trio.current_time() - self._begin_s) * 1000
        if error is None:
            result = "success"
        elif isinstance(error, trio.Cancelled):
            result = "cancelled"
        else:
            result = "process_request_failed"
        code = error.code.name if isinstance(error, RpcError) else self.response_code
        self._latency.observe(
            CallLabels(self._name, code or "OK", self._is_long_polling, result), elapsed_ms
        )


def _code_of(response: Message) -> str:
    """Return the number of the response's status, as RocketMQ labels it; empty without one."""
    status = getattr(response, "status", None)
    return str(status.code) if status is not None and status.code else ""
