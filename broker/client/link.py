"""The connection of a client: made, and made again when it is lost."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Final, final

import trio

from commitbus.broker.client.errors import BrokerUnavailableError, Trouble
from commitbus.broker.client.trouble import trouble_of
from commitbus.broker.common.address import Endpoint
from commitbus.broker.rpc.call import RpcError, StatusCode
from commitbus.broker.rpc.http2.client_connection import (
    CONNECT_TIMEOUT_S,
    ClientConnection,
    connect_to,
)
from commitbus.broker.wire.batch_memory import keep_freed_memory

_BACKOFF_S: Final = (0.05, 0.1, 0.2, 0.5, 1.0)
"""Before the first, second and so on attempt after one that failed; the last one for all others."""

_log = logging.getLogger(__name__)


def call_now(function: Callable[[], object]) -> None:
    """Call a function: for those who are on the trio thread already."""
    function()


@final
class Link:
    """One connection at a time for all calls of a client, and the nursery that its tasks run in.

    Warns in the log once for each time that the broker cannot be reached.
    """

    def __init__(self, endpoint: str, tls: ssl.SSLContext | None, server_name: str = "") -> None:
        """Name the broker as `host:port` or `unix:PATH`.

        Raises:
            ValueError: `endpoint` is no such thing.
        """
        keep_freed_memory()
        self._endpoint = Endpoint.parse(endpoint)
        self.endpoint = str(self._endpoint)
        self._tls, self._server_name = tls, server_name
        self._connection: ClientConnection | None = None
        self._connected = trio.Event()
        self._first_outcome = trio.Event()
        """Set by the first connection, or once it is known that a setting prevents it."""
        self._has_stood = self._warned = False
        self._trouble = Trouble.OTHER
        self.failure = "it does not answer"
        """Why the last attempt failed."""

    async def open(self, timeout_s: float) -> trio.Nursery:
        """Connect; return a nursery for tasks, which `close` ends.

        Raises:
            BrokerUnavailableError: there is no connection in time, or a setting of the client keeps
                it from ever standing.
        """
        # Only here: a client may be made before trio runs.
        self._manager: AbstractAsyncContextManager[trio.Nursery] = trio.open_nursery()
        self._nursery = await self._manager.__aenter__()
        self._nursery.start_soon(self._keep_connected)
        try:
            await self._first_connection(timeout_s)
        except BaseException:
            await self.close()
            raise
        return self._nursery

    async def _first_connection(self, timeout_s: float) -> None:
        deadline_s = trio.current_time() + timeout_s
        with trio.move_on_at(deadline_s):
            await self._first_outcome.wait()
        if self._trouble is not Trouble.OTHER:
            raise self._unavailable()
        await self.connection_within(max(0.0, deadline_s - trio.current_time()))

    async def close(self) -> None:
        """Cancel all tasks and disconnect."""
        self._nursery.cancel_scope.cancel()
        await self._manager.__aexit__(None, None, None)

    async def _keep_connected(self) -> None:
        failures = 0
        while True:
            try:
                async with connect_to(
                    self._endpoint, tls=self._tls, server_name=self._server_name
                ) as connection:
                    await self._await_greeting(connection)
                    self._begin(connection)
                    failures = 0
                    await connection.wait_unusable()
                    self._connection, self._connected = None, trio.Event()
                    self.failure = "the connection was lost"
            except RpcError as error:
                await self._note_failure(error)
            await trio.sleep(_BACKOFF_S[min(failures, len(_BACKOFF_S) - 1)])
            failures += 1

    async def _await_greeting(self, connection: ClientConnection) -> None:
        """Wait until the other side has shown that it speaks HTTP/2.

        The network takes a connection also for a broker that expects TLS, or that is hung.
        """
        with trio.move_on_after(CONNECT_TIMEOUT_S) as scope:
            await connection.greeted()
        if scope.cancelled_caught:
            raise RpcError(StatusCode.UNAVAILABLE, f"{self.endpoint}: the server says nothing")

    def _begin(self, connection: ClientConnection) -> None:
        self._connection, self._trouble = connection, Trouble.OTHER
        self._has_stood = True
        self._connected.set()
        self._first_outcome.set()
        if self._warned:
            self._warned = False
            _log.info("the broker at %s is available again", self.endpoint)

    async def _note_failure(self, error: RpcError) -> None:
        self._trouble, self.failure = await trouble_of(self._endpoint, self._tls, error)
        if self._trouble is not Trouble.OTHER:
            self._first_outcome.set()
        # A caller that waits for the first connection gets an exception.
        if self._has_stood and not self._warned:
            self._warned = True
            _log.warning("the broker at %s is not available: %s", self.endpoint, self.failure)

    def _unavailable(self) -> BrokerUnavailableError:
        return BrokerUnavailableError(self.endpoint, self.failure, self._trouble)

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
        raise self._unavailable()
