"""The server: takes connections, looks after them, and brings them to an end."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Final, final

import trio

from commitbus.broker.rpc.http2.limits import ServerLimits
from commitbus.broker.rpc.http2.server_connection import ServerConnection
from commitbus.broker.rpc.http2.server_state import ServerState
from commitbus.broker.rpc.http2.wire import wire_of
from commitbus.broker.rpc.listen.accept import AcceptError, AcceptOptions, ProbedError, accept
from commitbus.broker.rpc.method import Method

_log = logging.getLogger(__name__)

_LOOKS_PER_TIME_LIMIT: Final = 8
"""How often connections are looked at, within the shortest time that one may take."""
_LAST_WORDS_S: Final = 0.5
"""How long the last statuses may take to reach clients once every handler has ended."""


@final
class Http2Server:
    """All connections of a server, their handlers, and the tasks that serve both."""

    def __init__(self, methods: Sequence[Method], limits: ServerLimits) -> None:
        self._methods, self._limits = methods, limits
        self._connections: set[ServerConnection] = set()
        self._open_count = 0
        self._accept_scope = trio.CancelScope()
        self._fewer = trio.Event()
        self._nursery: trio.Nursery
        self._state: ServerState

    async def run(
        self,
        listeners: list[trio.SocketListener],
        options: AcceptOptions,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve until `stop`; no cancellation from outside reaches what is in flight."""
        async with trio.open_nursery() as self._nursery:
            self._nursery.cancel_scope.shield = True
            self._state = ServerState(self._methods, self._limits, self._nursery)
            self._nursery.start_soon(self._state.flusher.run)
            self._nursery.start_soon(self._look_after)
            with self._accept_scope:
                task_status.started()
                take = partial(self._take, options=options)
                await trio.serve_listeners(take, listeners, handler_nursery=self._nursery)
            await trio.sleep_forever()

    async def stop(self, grace_s: float) -> None:
        """Take no new connections, let unary calls finish within the grace, end the rest."""
        self._accept_scope.cancel()
        for connection in list(self._connections):
            connection.announce_end()
        await self._state.crew.drain(grace_s)
        for connection in list(self._connections):
            connection.end_calls()
        with trio.move_on_after(_LAST_WORDS_S):
            while self._connections:
                await self._fewer.wait()
        self._nursery.cancel_scope.cancel()

    async def _take(self, stream: trio.SocketStream, options: AcceptOptions) -> None:
        """Serve one connection; whatever goes wrong with it is its own matter."""
        limits = self._limits
        is_full = self._open_count >= limits.connections_max
        if is_full or self._state.strangers >= limits.strangers_max:
            await trio.aclose_forcefully(stream)
            return
        self._open_count += 1
        try:
            await self._serve(stream, options)
        except AcceptError as error:
            # Load balancers and health checks connect and close every few seconds.
            level = logging.DEBUG if isinstance(error, ProbedError) else logging.INFO
            _log.log(
                level, "connection refused", extra={"peer": error.peer, "reason": error.reason}
            )
        except Exception:  # noqa: BLE001 - the server and its other connections go on
            _log.exception("a connection failed")
        finally:
            self._open_count -= 1
            self._fewer.set()
            self._fewer = trio.Event()

    async def _serve(self, stream: trio.SocketStream, options: AcceptOptions) -> None:
        state = self._state
        state.strangers += 1
        try:
            accepted = await accept(stream, options)
        finally:
            state.strangers -= 1
        wire = wire_of(accepted.stream, state.read_buffer)
        connection = ServerConnection(wire, accepted.peer, state)
        self._connections.add(connection)
        try:
            await connection.run()
        finally:
            self._connections.discard(connection)

    async def _look_after(self) -> None:
        """Find out which clients never began, and which have vanished."""
        limits = self._limits
        shortest_s = min(limits.preface_s, limits.keepalive_s, limits.keepalive_timeout_s)
        while True:
            await trio.sleep(shortest_s / _LOOKS_PER_TIME_LIMIT)
            now_s = trio.current_time()
            for connection in list(self._connections):
                connection.check(now_s)
