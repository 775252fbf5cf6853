"""How long calls take, by method, outcome and code, under RocketMQ's labels."""

from __future__ import annotations

from bisect import bisect_left
from functools import partial
from time import perf_counter
from typing import Final, NamedTuple, final

from commitbus.broker.rpc.call import Call, CallWatch, Pieces, Response, RpcError
from commitbus.broker.rpc.method import Begin, Method
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

    def intercept(self, method: Method) -> Begin | None:
        """Have the calls of a method counted (an interceptor).

        Streams from the client are left out, because they last as long as the client likes; and so
        are gRPC's own services, whose health checks may outnumber all other calls.
        """
        if method.kind.streams_requests or method.service.startswith("grpc."):
            return None
        counts = _MethodLatency(method, self)
        return partial(_TimedCall, counts)

    def series(self, calls: CallLabels) -> _Series:
        """Return where to count calls that have these labels."""
        return self._series.setdefault(calls, _Series())

    def snapshot(self) -> list[tuple[CallLabels, list[int], float]]:
        """Return a copy: labels, calls per bucket (the last one has no bound), milliseconds."""
        return [
            (calls, list(series.counts), series.sum_ms) for calls, series in self._series.items()
        ]


@final
class _MethodLatency:
    """Counts the calls of one method."""

    def __init__(self, method: Method, latency: RpcLatency) -> None:
        self._name = method.path.rpartition("/")[2]
        self._is_long_polling = "true" if method.kind.streams_responses else "false"
        self._latency = latency
        self._succeeded: dict[int, _Series] = {}

    def succeeded(self, code: int) -> _Series:
        """Return where calls are counted that were answered with this code in their status."""
        series = self._succeeded.get(code)
        if series is None:
            # Kept at hand, because making and looking up the labels takes longer than counting.
            series = self._succeeded[code] = self.labelled(code, "success")
        return series

    def labelled(self, code: int | str, result: str) -> _Series:
        """Return where calls with this code and result are counted."""
        # RocketMQ labels an answer with the number of its code; one without counts as good.
        return self._latency.series(
            CallLabels(self._name, str(code or "OK"), self._is_long_polling, result)
        )


@final
class _TimedCall(CallWatch):
    """A call from its begin to its end, over all its parking, and the first code it sent."""

    __slots__ = ("_began_s", "_code", "_counts")

    def __init__(self, counts: _MethodLatency, _: Call) -> None:
        self._counts, self._code = counts, 0
        self._began_s = perf_counter()

    def responding(self, responses: tuple[Response | Pieces, ...]) -> None:
        for response in responses:
            if self._code:
                return
            self._code = _code_of(response)

    def ended(self, error: RpcError | None, *, was_cancelled: bool) -> None:
        elapsed_ms = (perf_counter() - self._began_s) * 1000
        if was_cancelled:
            series = self._counts.labelled(self._code, "cancelled")
        elif error is not None:
            series = self._counts.labelled(error.code.name, "process_request_failed")
        else:
            series = self._counts.succeeded(self._code)
        series.add(elapsed_ms)


def _code_of(response: Response | Pieces) -> int:
    """Return the code of the response's status; 0 without one."""
    if isinstance(response, bytes):
        return pb.OK
    status = getattr(response, "status", None)
    return status.code if status is not None else 0
