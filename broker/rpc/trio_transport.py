"""Serves methods over gRPC on trio itself: no other event loop, no other thread.

HTTP/2 is libnghttp2's; gRPC on top of it is `http2/`.
"""

from __future__ import annotations

import resource
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import trio

from commitbus.broker.rpc.defaults import (
    DRAIN_GRACE_S,
    MAX_MESSAGE_BYTES,
    TRIO_CALLS_MAX,
)
from commitbus.broker.rpc.http2.limits import ServerLimits
from commitbus.broker.rpc.http2.server import Http2Server
from commitbus.broker.rpc.interceptor import Interceptor
from commitbus.broker.rpc.listen.accept import AcceptOptions
from commitbus.broker.rpc.listen.certificate import TlsContexts
from commitbus.broker.rpc.listen.sockets import open_listeners
from commitbus.broker.rpc.method import Method
from commitbus.broker.rpc.standard_services import with_standard_services


async def serve(
    methods: Sequence[Method],
    *,
    listen: str,
    interceptors: Sequence[Interceptor] = (),
    unix_socket: Path | None = None,
    accept_options: AcceptOptions | None = None,
    max_message_bytes: int = MAX_MESSAGE_BYTES,
    concurrent_calls_max: int = TRIO_CALLS_MAX,
    limits: ServerLimits | None = None,
    drain_grace_s: float = DRAIN_GRACE_S,
    task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve the methods, health and reflection until cancelled.

    When cancelled, health turns NOT_SERVING, new connections are refused and clients asked for no
    new calls, unary calls may take `drain_grace_s` to finish, and then everything left is cancelled
    and answered with UNAVAILABLE.

    Args:
        methods: what is served. Their handlers run in this trio thread.
        listen: `HOST:PORT`; port 0 takes a free one.
        interceptors: what is around every call, those of health and reflection included.
        unix_socket: the path of a socket to listen on as well.
        accept_options: TLS and PROXY protocol; without it, plaintext and TLS as the client begins,
            with a certificate made for the occasion.
        max_message_bytes: the largest request message that is accepted.
        concurrent_calls_max: calls at the same time, parked ones counted; beyond it the client
            gets RESOURCE_EXHAUSTED.
        limits: all limits; these two are not looked at then.
        drain_grace_s: how long unary calls in flight may take after a cancellation.
        task_status: told the port as soon as calls are accepted.

    Raises:
        ListenError: the address is malformed, taken, or not this machine's.
    """
    limits = limits or default_limits(max_message_bytes, concurrent_calls_max)
    options = accept_options or AcceptOptions(tls=TlsContexts())
    health, all_methods = with_standard_services(methods, interceptors)
    with open_listeners(listen, unix_socket) as listeners:
        server = Http2Server(all_methods, limits)
        async with trio.open_nursery() as nursery:
            await nursery.start(server.run, listeners.sockets, options)
            try:
                task_status.started(listeners.port)
                await trio.sleep_forever()
            finally:
                health.stop_serving()
                with trio.CancelScope(shield=True):
                    await server.stop(drain_grace_s)


def default_limits(max_message_bytes: int, calls_max: int) -> ServerLimits:
    """Return the limits of a server in this process.

    Connections leave half of the process's file descriptors to the store: without any it could not
    begin its next file.
    """
    limits = ServerLimits(max_message_bytes, calls_max)
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return limits
    # Once for whoever comes by TCP, once for the Unix socket.
    own = descriptors // 2 - 2 * limits.operator_connections
    return replace(limits, connections_max=max(min(limits.connections_max, own), 1))
