"""The server: takes connections, looks after them, and brings them to an end."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Final, final

import trio

from commitbus.broker.common.address import share_address
from commitbus.broker.rpc.http2.check_rounds import CheckRounds
from commitbus.broker.rpc.http2.connection_places import (
    ConnectionLimits,
    ConnectionPlace,
    ConnectionPlaces,
)
from commitbus.broker.rpc.http2.limits import ServerLimits
from commitbus.broker.rpc.http2.server_connection import ServerConnection
from commitbus.broker.rpc.http2.server_state import ServerState
from commitbus.broker.rpc.http2.wire import wire_of
from commitbus.broker.rpc.listen.accept import (
    AcceptError,
    AcceptOptions,
    ProbedError,
    accept,
    is_unix,
    peer_of,
)
from commitbus.broker.rpc.method import Method

_log = logging.getLogger(__name__)

_LAST_WORDS_S: Final = 0.5
"""How long the last statuses may take to reach clients once every handler has ended."""


@final
class Http2Server:
    """All connections of a server, their handlers, and the tasks that serve both."""

    def __init__(self, methods: Sequence[Method], limits: ServerLimits) -> None:
        self._methods, self._limits = methods, limits
        self._connections: set[ServerConnection] = set()
        self._places = ConnectionPlaces(
            ConnectionLimits(
                limits.connections_max, limits.strangers_max, limits.operator_connections
            )
        )
        self._checks = CheckRounds(min(limits.check_s, limits.preface_check_s))
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
            self._nursery.start_soon(self._state.turns.run)
            self._nursery.start_soon(self._checks.run)
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
        is_local = is_unix(stream)
        place = self._places.enter(share_address(peer_of(stream)), is_local=is_local)
        if place is None:
            await trio.aclose_forcefully(stream)
            return
        try:
            with place.scope:
                await self._serve(stream, options, place)
        except AcceptError as error:
            # Load balancers and health checks connect and close every few seconds.
            level = logging.DEBUG if isinstance(error, ProbedError) else logging.INFO
            _log.log(
                level, "connection refused", extra={"peer": error.peer, "reason": error.reason}
            )
        except Exception:  # noqa: BLE001 - the server and its other connections go on
            _log.exception("a connection failed")
        finally:
            place.leave()
            self._fewer.set()
            self._fewer = trio.Event()

    async def _serve(
        self, stream: trio.SocketStream, options: AcceptOptions, place: ConnectionPlace
    ) -> None:
        accepted = await accept(stream, options)
        wire = wire_of(accepted.stream, self._state.read_buffer)
        if not place.is_local and not place.move(share_address(accepted.peer)):
            await wire.close()
            return
        connection = ServerConnection(wire, accepted.peer, self._state, place)
        self._connections.add(connection)
        self._checks.add(connection, self._limits.preface_check_s)
        try:
            await connection.run()
        finally:
            self._connections.discard(connection)
