"""Serves methods over gRPC with grpcio: a grpc.aio loop in one thread, the handlers on trio.

The conservative transport: everything about HTTP/2 is gRPC's own. It costs about 250 us per call
whatever the handler does; the way to trio and back adds 30 to 40.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import final

import trio

from commitbus.broker.rpc.address import ListenError, split_address
from commitbus.broker.rpc.bridge import Hop
from commitbus.broker.rpc.defaults import (
    CONCURRENT_CALLS_MAX,
    DRAIN_GRACE_S,
    MAX_MESSAGE_BYTES,
)
from commitbus.broker.rpc.exchange import Crew
from commitbus.broker.rpc.grpcio_server import CallCarrier, GrpcioServer, Limits
from commitbus.broker.rpc.interceptor import Interceptor
from commitbus.broker.rpc.method import Method
from commitbus.broker.rpc.standard_services import with_standard_services


async def serve(
    methods: Sequence[Method],
    *,
    listen: str,
    interceptors: Sequence[Interceptor] = (),
    max_message_bytes: int = MAX_MESSAGE_BYTES,
    concurrent_calls_max: int = CONCURRENT_CALLS_MAX,
    drain_grace_s: float = DRAIN_GRACE_S,
    task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve the methods, health and reflection until cancelled. Plaintext.

    When cancelled, health turns NOT_SERVING, new calls are refused, unary calls may take
    `drain_grace_s` to finish, and then everything left is cancelled and answered with UNAVAILABLE.

    Args:
        methods: what is served. Their handlers run in this trio thread.
        listen: `HOST:PORT`; port 0 takes a free one.
        interceptors: what is around every call, those of health and reflection included.
        max_message_bytes: the largest request message that is accepted. gRPC has one limit for all
            methods: no more than the largest that one of them takes.
        concurrent_calls_max: calls at the same time, parked ones counted; beyond it the client
            gets RESOURCE_EXHAUSTED.
        drain_grace_s: how long unary calls in flight may take after a cancellation.
        task_status: told the port as soon as calls are accepted.

    Raises:
        ListenError: the address is malformed, taken, or not this machine's.
    """
    split_address(listen)
    health, methods = with_standard_services(methods, interceptors)
    largest_bytes = max(method.max_request_bytes for method in methods)
    limits = Limits(min(max_message_bytes, largest_bytes), concurrent_calls_max)
    failure: ListenError | None = None
    async with trio.open_nursery() as nursery:
        loop_thread = _LoopThread()
        await nursery.start(loop_thread.hold_nursery)
        try:
            with trio.CancelScope(shield=True):
                port = await loop_thread.start(methods, listen, limits)
            task_status.started(port)
            await trio.sleep_forever()
        except ListenError as error:
            failure = error
        finally:
            health.stop_serving()
            with trio.CancelScope(shield=True):
                await loop_thread.stop(drain_grace_s)
    if failure is not None:
        raise failure


@final
class _LoopThread:
    """The thread of the event loop, seen from trio, and the nursery of the handlers it feeds."""

    def __init__(self) -> None:
        self._nursery: trio.Nursery
        self._crew: Crew
        self._over = trio.Event()
        # Only while the loop runs.
        self._to_loop: Hop | None = None
        self._server: GrpcioServer

    async def hold_nursery(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Keep a nursery open that no cancellation reaches.

        What is in flight survives in it until `stop` has drained it.
        """
        async with trio.open_nursery() as self._nursery:
            self._nursery.cancel_scope.shield = True
            self._crew = Crew(self._nursery)
            task_status.started()
            await self._over.wait()

    async def start(self, methods: Sequence[Method], listen: str, limits: Limits) -> int:
        """Run the loop and its server in a thread; return the port.

        Raises:
            ListenError: the address is taken, or not this machine's.
        """
        port: int = await self._nursery.start(self._run, methods, listen, limits)
        return port

    async def stop(self, grace_s: float) -> None:
        """Drain what is in flight and end the loop."""
        if self._to_loop is not None:
            self._to_loop.put(self._server.drain_begins.set)
            await self._crew.drain(grace_s)
        if self._to_loop is not None:
            self._to_loop.put(self._server.drain_ended.set)
        self._over.set()

    async def _run(
        self,
        methods: Sequence[Method],
        listen: str,
        limits: Limits,
        *,
        task_status: trio.TaskStatus[int],
    ) -> None:
        to_trio = Hop(trio.lowlevel.current_trio_token().run_sync_soon)
        trio_clock_ahead_s = trio.current_time() - time.monotonic()

        def started(port: int, server: GrpcioServer, to_loop: Hop) -> None:
            self._server, self._to_loop = server, to_loop
            task_status.started(port)

        async def run_loop() -> None:
            loop = asyncio.get_running_loop()

            def wake(drain: Callable[[], None]) -> None:
                # A loop that has ended has nobody left who waits for what is put.
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(drain)

            to_loop = Hop(wake)
            server = GrpcioServer(methods, listen, limits)
            carrier = CallCarrier(
                to_trio, to_loop, self._crew, trio_clock_ahead_s, limits.call_limits
            )
            await server.run(carrier, lambda port: to_trio.put(started, port, server, to_loop))

        try:
            # A limiter of its own: the thread lives as long as the server, and must not take a
            # place from trio's short-lived workers.
            await trio.to_thread.run_sync(asyncio.run, run_loop(), limiter=trio.CapacityLimiter(1))
        finally:
            self._to_loop = None
