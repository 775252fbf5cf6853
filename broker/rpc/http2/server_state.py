"""What all connections of a server share. One trio thread; nothing here is locked."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, final

import trio

from commitbus.broker.rpc.exchange import Crew
from commitbus.broker.rpc.http2.held_bytes import HeldBytes
from commitbus.broker.rpc.http2.limits import ServerLimits
from commitbus.broker.rpc.http2.metadata import SharedBytes
from commitbus.broker.rpc.http2.turns import Turns
from commitbus.broker.rpc.http2.wire import BULK_READ_BYTES
from commitbus.broker.rpc.method import Method
from commitbus.broker.rpc.shares import CallLimits, CallShares

_log = logging.getLogger(__name__)


class Flushable(Protocol):
    """Something with output that may wait for more of it."""

    def flush(self) -> None:
        """Write what there is."""

    def abort(self) -> None:
        """End without a word."""


@final
class Flusher:
    """Writes for many handlers at once.

    What the tasks of one scheduler tick have queued leaves when all of them ran: parked receivers
    that one message wakes are answered with one write for each connection, not for each receiver.
    """

    def __init__(self) -> None:
        self._waiting: dict[Flushable, None] = {}
        self._asleep = trio.lowlevel.ParkingLot()

    def flush_soon(self, connection: Flushable) -> None:
        """Have the connection flushed after the tasks that are about to run."""
        if not self._waiting:
            self._asleep.unpark()
        self._waiting[connection] = None

    async def run(self) -> None:
        """Flush until cancelled."""
        while True:
            while self._waiting:
                self._flush()
                if self._waiting:
                    # Of those with many streams, who go on in the next step.
                    await trio.lowlevel.checkpoint()
            await self._asleep.park()

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for connection in waiting:
            try:
                connection.flush()
            except Exception:  # noqa: BLE001 - the other connections go on
                _log.exception("a connection failed")
                connection.abort()


@final
class ServerState:
    """Methods, limits, and how much of each limit is used."""

    def __init__(
        self, methods: Sequence[Method], limits: ServerLimits, nursery: trio.Nursery
    ) -> None:
        """Handlers run in this nursery."""
        self.methods = {
            method.path.encode(): replace(
                method, max_request_bytes=min(method.max_request_bytes, limits.max_message_bytes)
            )
            for method in methods
        }
        self.limits = limits
        self.crew = Crew(nursery)
        self.flusher = Flusher()
        self.turns = Turns()
        self.shared_bytes = SharedBytes()
        self.read_buffer = bytearray(BULK_READ_BYTES)
        self.calls = 0
        """In flight: their handlers have not ended."""
        self.shares = CallShares(
            CallLimits(
                limits.calls_max,
                reserve=limits.operator_calls,
                lasting_of_connection=limits.lasting_calls,
            )
        )
        self.requests = HeldBytes(limits.held_request_bytes)
        self.unread = HeldBytes(limits.unsent_in_all_bytes, 2 * limits.max_message_bytes)

    @property
    def held_request_bytes(self) -> int:
        """Return what is held of requests that are incomplete or not taken."""
        return self.requests.total
