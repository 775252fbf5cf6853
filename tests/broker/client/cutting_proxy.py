"""A TCP proxy whose connections a test can cut: the network between client and broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import final

import trio

from commitbus.broker.common.address import split_host_port


@final
class CuttingProxy:
    """Carries bytes to a broker until it is told to cut."""

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream
        self._scopes: set[trio.CancelScope] = set()
        self.connections = 0
        self.cut_after_bytes: int | None = None
        """Cut the connection that has carried so many bytes to the broker."""
        self.endpoint = ""

    def cut(self) -> None:
        """Cut every connection that there is."""
        for scope in list(self._scopes):
            scope.cancel()

    async def carry(self, client: trio.SocketStream) -> None:
        self.connections += 1
        carried = 0

        async def pump(
            source: trio.SocketStream, target: trio.SocketStream, *, counts: bool
        ) -> None:
            nonlocal carried
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                async for data in source:
                    if counts:
                        carried += len(data)
                        if self.cut_after_bytes is not None and carried > self.cut_after_bytes:
                            break
                    await target.send_all(data)
            scope.cancel()

        with trio.CancelScope() as scope:
            self._scopes.add(scope)
            up = await trio.open_tcp_stream(*split_host_port(self._upstream))
            async with client, up, trio.open_nursery() as nursery:
                nursery.start_soon(lambda: pump(client, up, counts=True))
                nursery.start_soon(lambda: pump(up, client, counts=False))
        self._scopes.discard(scope)


@asynccontextmanager
async def cutting_proxy(upstream: str) -> AsyncIterator[CuttingProxy]:
    """Run a proxy for the time of a block."""
    proxy = CuttingProxy(upstream)
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, proxy.carry, 0)
        port = listeners[0].socket.getsockname()[1]
        proxy.endpoint = f"127.0.0.1:{port}"
        yield proxy
        nursery.cancel_scope.cancel()
