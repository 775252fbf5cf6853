"""The standard health service, `grpc.health.v1`, for whatever transport carries it.

The whole server is one thing to be healthy or not: its services come and go together.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

import trio
from grpc_health.v1 import health_pb2

from commitbus.broker.rpc.access import NOTHING
from commitbus.broker.rpc.call import Call, RpcError, Send, StatusCode
from commitbus.broker.rpc.defaults import SMALL_REQUEST_BYTES_MAX
from commitbus.broker.rpc.method import Method, MethodKind

_SERVICE = "grpc.health.v1.Health"
_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
_SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


@final
class Health:
    """Says SERVING of the services it knows, and of the server itself (the empty name)."""

    def __init__(self, services: Iterable[str]) -> None:
        self._services = {"", *services}
        self._status = _SERVING
        self._changed = trio.Event()

    def stop_serving(self) -> None:
        """Say NOT_SERVING from now on, also to whoever watches."""
        self._status = _NOT_SERVING
        self._changed.set()

    def methods(self) -> list[Method]:
        """Return the service's methods."""
        types = (health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse)
        return [
            Method(
                f"/{_SERVICE}/Check",
                MethodKind.UNARY,
                *types,
                self._check,
                SMALL_REQUEST_BYTES_MAX,
                access=NOTHING,
                is_for_operators=True,
            ),
            # Not Watch: it never ends, and a few of them would use up the reserve.
            Method(
                f"/{_SERVICE}/Watch",
                MethodKind.SERVER_STREAM,
                *types,
                self._watch,
                SMALL_REQUEST_BYTES_MAX,
                access=NOTHING,
                lasts=True,
            ),
        ]

    def _check(
        self, request: health_pb2.HealthCheckRequest, _: Call
    ) -> health_pb2.HealthCheckResponse:
        if request.service not in self._services:
            raise RpcError(StatusCode.NOT_FOUND, "unknown service")
        return health_pb2.HealthCheckResponse(status=self._status)

    async def _watch(self, request: health_pb2.HealthCheckRequest, _: Call, send: Send) -> None:
        if request.service not in self._services:
            await send(health_pb2.HealthCheckResponse(status=_SERVICE_UNKNOWN))
            await trio.sleep_forever()
        if self._status == _SERVING:
            await send(health_pb2.HealthCheckResponse(status=_SERVING))
            await self._changed.wait()
        await send(health_pb2.HealthCheckResponse(status=_NOT_SERVING))
        await trio.sleep_forever()
