"""Carries calls from another event loop's thread to handlers on trio, and their answers back.

    loop thread (owns the network)                     trio thread (owns the handlers)

    a call arrives        ── Hop to trio ──►  Exchange.start     the handler runs
    the client goes away  ── Hop to trio ──►  Exchange.cancel    its scope is cancelled
    a request was read    ── Hop to trio ──►  Inlet.deliver      the handler's next request
    bytes were written    ── Hop to trio ──►  Outlet.credit      room for the next response
    write this            ◄── Hop to loop ──  Outlet.send
    read on               ◄── Hop to loop ──  Inlet.__anext__
    the call is over      ◄── Hop to loop ──  Exchange, with the outcome

A wake-up of the other thread costs more than a handler, so both directions carry whatever has
gathered since the last one. Every piece of state here is written by one thread only: a hop's queue
end, and all of Exchange, Inlet and Outlet by trio's. Nothing here knows gRPC or HTTP/2.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Self, TypeVarTuple, final

import trio
from google.protobuf.message import Message

from commitbus.broker.rpc.call import Pieces, Response, RpcError, StatusCode
from commitbus.broker.rpc.exchange import MESSAGE_COST_BYTES, SEND_WINDOW_BYTES, encoded

Arguments = TypeVarTuple("Arguments")


@final
class Hop:
    """One direction between two threads: what is put in here runs there, in order, in batches.

    Only one thread may put. What runs there must not raise: nobody could catch it.
    """

    __slots__ = ("_queue", "_scheduled", "_wake")

    def __init__(self, wake: Callable[[Callable[[], None]], object]) -> None:
        """`wake` makes the other thread call its argument soon; it may be called from here."""
        self._wake = wake
        self._queue: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._scheduled = False

    def put(self, function: Callable[[*Arguments], object], *arguments: *Arguments) -> None:
        """Have the other thread call `function(*arguments)`."""
        self._queue.append((function, arguments))
        if not self._scheduled:
            self._scheduled = True
            self._wake(self._drain)

    def _drain(self) -> None:
        # First the flag, then the length: what is put in between is run now, and once more woken
        # for in vain. The other order would lose it.
        self._scheduled = False
        for _ in range(len(self._queue)):
            function, arguments = self._queue.popleft()
            function(*arguments)


@final
class Outlet:
    """A handler's response stream. It waits while the client reads more slowly than it sends."""

    __slots__ = ("_closed", "_pending_bytes", "_room", "_to_loop", "_write")

    def __init__(self, to_loop: Hop, write: Callable[[bytes], None]) -> None:
        """`write` runs on the loop's thread; it only queues."""
        self._to_loop, self._write = to_loop, write
        self._pending_bytes = 0
        self._room: trio.Event | None = None
        self._closed = False

    async def send(self, *responses: Response | Pieces) -> None:
        """Give the next responses to the transport, and wait until there is room for another.

        Raises:
            RpcError: the call is over; whoever kept this function beyond it learns so.
        """
        # Even a handler that never waits must notice that it is cancelled.
        await trio.lowlevel.checkpoint_if_cancelled()
        self._check_open()
        for response in responses:
            data = encoded(response)
            self._pending_bytes += cost_bytes(data)
            self._to_loop.put(self._write, data)
        while self._pending_bytes >= SEND_WINDOW_BYTES:
            if self._room is None:
                self._room = trio.Event()
            await self._room.wait()
            self._check_open()

    def credit(self, written_bytes: int) -> None:
        """Note that messages of this cost were written to the network."""
        self._pending_bytes -= written_bytes
        if self._pending_bytes < SEND_WINDOW_BYTES:
            self._wake()

    def close(self) -> None:
        """Note that the call is over."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        if self._room is not None:
            self._room.set()
            self._room = None

    def _check_open(self) -> None:
        if self._closed:
            raise RpcError(StatusCode.CANCELLED, "the call is over")


def cost_bytes(data: bytes) -> int:
    """Return what a message counts in a stream's window."""
    return len(data) + MESSAGE_COST_BYTES


@final
class Inlet:
    """A handler's request stream. One request is read ahead of the handler, never more."""

    __slots__ = ("_arrived", "_item", "_read_on", "_to_loop")

    def __init__(self, to_loop: Hop, read_on: Callable[[], None]) -> None:
        """`read_on` runs on the loop's thread; it lets the transport read the next request."""
        self._to_loop, self._read_on = to_loop, read_on
        self._arrived = trio.Event()
        self._item: Message | bytes | RpcError | None = None

    def deliver(self, item: Message | bytes | RpcError | None) -> None:
        """Take the next request; an error, or None for the end of the stream, is the last."""
        assert not self._arrived.is_set(), "the transport read more than it was asked for"
        self._item = item
        self._arrived.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message | bytes:
        await self._arrived.wait()
        if self._item is None:
            raise StopAsyncIteration
        if isinstance(self._item, RpcError):
            raise self._item
        item, self._item, self._arrived = self._item, None, trio.Event()
        self._to_loop.put(self._read_on)
        return item
