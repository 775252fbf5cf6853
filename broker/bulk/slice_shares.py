"""Bytes of slices on their way to clients of Fetch: each connection has a share, and waits for it.

A stream holds the slice that it sends until the client has let most of it through, and a connection
may have ten thousand streams. The totals are those of receives, but counted by themselves: a client
of Fetch may take as long as it likes, a receiver a minute.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import final

from trio.lowlevel import ParkingLot

from commitbus.broker.consuming.delivering import Delivering, Recipient


@final
class SliceShares:
    """The shares of all connections. Lives on the trio thread."""

    def __init__(self) -> None:
        self._delivering = Delivering()
        self._waiting: dict[str, ParkingLot] = {}
        """By connection: streams that wait until another one of it has sent its slice."""
        self._waiting_for_any = ParkingLot()
        """Streams of connections that hold nothing, while the total and its reserve are used up."""

    @property
    def held_bytes(self) -> int:
        """Return how many bytes are on their way."""
        return self._delivering.total_bytes

    @asynccontextmanager
    async def hold(self, connection: str, size_bytes: int) -> AsyncIterator[None]:
        """Wait until a connection may be sent a slice; count it while the block runs.

        Args:
            connection: the peer's address with its port.
            size_bytes: the largest that the slice may be.
        """
        delivering, to = self._delivering, Recipient(connection, connection, connection)
        while not self._may_take(to, size_bytes):
            await self._lot(to).park()
        delivering.take(to, size_bytes)
        try:
            # What was given back may have been enough for more than one.
            self._wake(to, size_bytes)
            yield
        finally:
            delivering.give_back(to, size_bytes)
            self._wake(to, size_bytes)

    def _may_take(self, to: Recipient, size_bytes: int) -> bool:
        delivering = self._delivering
        return delivering.free_bytes(to) >= size_bytes or delivering.may_take_one(to)

    def _lot(self, to: Recipient) -> ParkingLot:
        if not self._delivering.holds_any(to):
            return self._waiting_for_any
        return self._waiting.setdefault(to.connection, ParkingLot())

    def _wake(self, to: Recipient, size_bytes: int) -> None:
        """Have one stream of the connection, of another and of those without one try."""
        self._waiting_for_any.unpark()
        self._wake_next_connection()
        lot = self._waiting.get(to.connection)
        if lot is None:
            return
        if self._may_take(to, size_bytes):
            lot.unpark()
        elif not self._delivering.holds_any(to):
            # No other stream of the connection will wake them.
            lot.repark_all(self._waiting_for_any)
        if not lot:
            del self._waiting[to.connection]

    def _wake_next_connection(self) -> None:
        """Have one stream look again of the connection whose turn it is.

        What its connection holds may never be sent, and by now its share may be larger.
        """
        connection = next(iter(self._waiting), None)
        if connection is not None:
            lot = self._waiting.pop(connection)
            lot.unpark()
            if lot:
                self._waiting[connection] = lot
