"""The reading half of a connection: what arrives is handled in short turns."""

from __future__ import annotations

from typing import Final, Protocol

import trio

from commitbus.broker.rpc.http2.engine import Engine, EngineError, Event, RequestReceived
from commitbus.broker.rpc.http2.turns import TURN_S, Load
from commitbus.broker.rpc.http2.wire import (
    BULK_READ_BYTES,
    NETWORK_ERRORS,
    READ_BYTES,
    Wire,
    slices,
)

_SLICE_BYTES: Final = 16 * 1024
"""Bytes that the engine is given at once. Requests that are all headers make a hundred times as
many bytes of events, which each connection holds while others have their turn."""
_READ_UNWRITTEN_BYTES: Final = 128 * 1024
"""Bytes that are read while the network takes none of the written ones."""
_EVENTS_AT_ONCE: Final = 32
"""Handled between two looks at the time, if they take no longer than half a turn."""
_BULK_EVENT_BYTES: Final = 4096
"""Events this large on average make the next read a large one."""


class Readable(Protocol):
    """A connection, as far as its read loop needs it."""

    engine: Engine

    @property
    def is_over(self) -> bool:
        """Return whether nothing is to be read any more."""

    @property
    def is_writing(self) -> bool:
        """Return whether the network has not yet taken what was written."""

    async def until_written(self) -> None:
        """Wait until the network has taken what was written."""

    def heard(self) -> None:
        """Note the time of a read, before its events."""

    def handle_read(self, events: list[Event]) -> None:
        """Handle some events of a read."""

    def flush(self) -> None:
        """Write what the engine has to send."""

    def end_with(self, error: EngineError) -> None:
        """End the connection because its client breaks the protocol."""


async def read_all(connection: Readable, wire: Wire, load: Load) -> None:
    """Read and handle until the connection is over, or broken."""
    read_bytes, unanswered_bytes = READ_BYTES, 0
    while not connection.is_over:
        if not connection.is_writing:
            unanswered_bytes = 0
        elif unanswered_bytes > _READ_UNWRITTEN_BYTES:
            # Acknowledgements and resets would pile up for a client that does not read.
            await connection.until_written()
        try:
            data = await wire.read(read_bytes, load)
        except NETWORK_ERRORS:
            data = b""
        if not data:
            load.connection_ended()
            return
        unanswered_bytes += len(data)
        count = await _handle(connection, data, load)
        read_bytes = BULK_READ_BYTES if len(data) > count * _BULK_EVENT_BYTES else READ_BYTES


async def _handle(connection: Readable, data: bytes | memoryview, load: Load) -> int:
    """Handle what one read brought; return the number of its events."""
    connection.heard()
    begin_s, count, at_once = load.begin(), 0, _EVENTS_AT_ONCE
    for piece in (data,) if len(data) <= _SLICE_BYTES else slices(data, _SLICE_BYTES):
        try:
            events = connection.engine.receive(piece)
        except EngineError as error:
            connection.end_with(error)
            break
        count += len(events)
        while len(events) > at_once:
            before_s = load.spent_s(begin_s)
            _handle_some(connection, events, at_once)
            took_s = load.spent_s(begin_s) - before_s
            # A single request may take as long as thirty usually do.
            at_once = 1 if took_s > TURN_S / 2 else min(2 * at_once, _EVENTS_AT_ONCE)
            begin_s = await _pause(connection, load, begin_s)
        # Nearly always one turn: what one read brought is answered with one write.
        connection.handle_read(events)
        # Headers of calls that may now be parked for minutes.
        del events
        if len(data) > _SLICE_BYTES:
            begin_s = await _pause(connection, load, begin_s)
    connection.flush()
    load.end(begin_s)
    return count


def _handle_some(connection: Readable, events: list[Event], count: int) -> None:
    """Handle the first events, and remove them from the list."""
    last = events[count - 1]
    if isinstance(last, RequestReceived) and not last.end_stream:
        # Headers and a request that follows at once are handled together, which is faster.
        count += 1
    connection.handle_read(events[:count])
    del events[:count]


async def _pause(connection: Readable, load: Load, begin_s: float) -> float:
    """Give the others a turn once this one is over; return when the next one began."""
    if load.spent_s(begin_s) <= TURN_S:
        return begin_s
    connection.flush()
    load.end(begin_s)
    await trio.lowlevel.checkpoint()
    await load.wait()
    return load.begin()
