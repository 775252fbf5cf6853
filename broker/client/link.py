"""The connection of a client: made, and made again when it is lost."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Final, final

import trio

from commitbus.broker.address import join_host_port, split_host_port
from commitbus.broker.bulk.memory import keep_freed_memory
from commitbus.broker.client.errors import BrokerUnavailableError
from commitbus.broker.rpc.call import RpcError
from commitbus.broker.rpc.http2.client_connection import ClientConnection, connect

_BACKOFF_S: Final = (0.05, 0.1, 0.2, 0.5, 1.0)
"""Before the first, second and so on attempt after one that failed; the last one for all others."""


def call_now(function: Callable[[], object]) -> None:
    """Call a function: for those who are on the trio thread already."""
    function()


@final
class Link:
    """One connection at a time for all calls of a client, and the nursery that its tasks run in."""

    def __init__(self, endpoint: str, tls: ssl.SSLContext | None) -> None:
        """Name the broker as `host:port`.

        Raises:
            ValueError: `endpoint` is no such thing.
        """
        keep_freed_memory()
        self._host, self._port = split_host_port(endpoint)
        self.endpoint = join_host_port(self._host, self._port)
        self._tls = tls
        self._connection: ClientConnection | None = None
        self._connected = trio.Event()
        self.failure = "no attempt to connect was made"
        """Why the last attempt failed."""

    async def open(self, timeout_s: float) -> trio.Nursery:
        """Connect; return a nursery for tasks, which `close` ends.

        Raises:
            BrokerUnavailableError: there is no connection in time.
        """
        # Only here: a client may be made before trio runs.
        self._manager = trio.open_nursery()
        self._nursery = await self._manager.__aenter__()
        self._nursery.start_soon(self._keep_connected)
        try:
            await self.connection_within(timeout_s)
        except BaseException:
            await self.close()
            raise
        return self._nursery

    async def close(self) -> None:
        """Cancel all tasks and disconnect."""
        self._nursery.cancel_scope.cancel()
        await self._manager.__aexit__(None, None, None)

    async def _keep_connected(self) -> None:
        failures = 0
        while True:
            try:
                async with connect(self._host, self._port, tls=self._tls) as connection:
                    self._connection = connection
                    self._connected.set()
                    failures = 0
                    await connection.wait_unusable()
                    self._connection, self._connected = None, trio.Event()
                    self.failure = "the connection was lost"
            except RpcError as error:
                self.failure = error.message
            await trio.sleep(_BACKOFF_S[min(failures, len(_BACKOFF_S) - 1)])
            failures += 1

    async def connection(self) -> ClientConnection:
        """Return the connection, once there is one. It may be lost at any time."""
        while True:
            await self._connected.wait()
            if self._connection is not None and self._connection.is_usable:
                return self._connection
            # It was lost; `_keep_connected` takes it away in its next turn.
            await trio.lowlevel.checkpoint()

    async def connection_within(self, timeout_s: float) -> ClientConnection:
        """Return the connection as soon as there is one.

        Raises:
            BrokerUnavailableError: there is none in time.
        """
        with trio.move_on_after(timeout_s):
            return await self.connection()
        raise BrokerUnavailableError(self.endpoint, self.failure)
