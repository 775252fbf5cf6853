"""The requests of a call whose handler reads them itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Self, final

import trio
from google.protobuf.message import Message

from commitbus.broker.rpc.call import RpcError, StatusCode
from commitbus.broker.rpc.exchange import parse
from commitbus.broker.rpc.http2.grpc_wire import MessageReader
from commitbus.broker.rpc.http2.unpacking import is_for_worker, unpack, unpack_in_worker
from commitbus.broker.rpc.method import Method

_TAKEN_AT_ONCE: Final = 64
"""Before other tasks have their turn: a window may hold 200,000 small requests."""


@final
class RequestStream:
    """An iterator over requests. The client may send one window ahead of what is taken.

    Bytes are consumed, and so make room for others, when their request is taken; those of one that
    is larger than the window are consumed as they arrive, but only once it is waited for.
    """

    __slots__ = (
        *("_arrived", "_consume", "_error", "_has_ended", "_method", "_reader", "_taken"),
        "_unconsumed_bytes",
    )

    def __init__(
        self, method: Method, reader: MessageReader, consume: Callable[[int], None]
    ) -> None:
        """`consume` gives bytes of the window back to the client."""
        self._method, self._reader, self._consume = method, reader, consume
        self._arrived = trio.Event()
        self._error: RpcError | None = None
        self._has_ended = False
        self._unconsumed_bytes = 0
        self._taken = 0

    @property
    def held_bytes(self) -> int:
        """Return what has arrived and was not taken."""
        return self._reader.buffered_bytes

    def feed(self, data: bytes, *, has_ended: bool) -> None:
        """Take the next bytes of the body."""
        if self._error is not None:
            self._consume(len(data))
            return
        self._reader.feed(data)
        self._unconsumed_bytes += len(data)
        self._has_ended = has_ended
        self._arrived.set()

    def fail(self, error: RpcError) -> None:
        """Have the handler find this in place of its next request; drop what has arrived."""
        self._error = error
        self._reader.drop()
        self._arrived.set()

    def close(self) -> int:
        """Drop what was not taken; return how much of it is still to be consumed."""
        self.fail(RpcError(StatusCode.CANCELLED, "the call is over"))
        size, self._unconsumed_bytes = self._unconsumed_bytes, 0
        return size

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message | bytes:
        while True:
            if self._error is not None:
                raise self._error
            data = self._reader.take_as_sent()
            # What is left of the window is for what is left in the reader: all of it, unless the
            # next request is being waited for and may need more than a window.
            is_wanted = data is None and not self._has_ended
            self._consume_all_but(0 if is_wanted else self._reader.buffered_bytes)
            if data is not None:
                request = await self._parsed(data, self._reader.compressed_bytes)
                self._taken += 1
                if self._taken % _TAKEN_AT_ONCE == 0:
                    await trio.lowlevel.checkpoint()
                return request
            if self._has_ended:
                if not self._reader.is_between_messages:
                    raise RpcError(StatusCode.INTERNAL, "the requests end inside a message")
                raise StopAsyncIteration
            self._arrived = trio.Event()
            await self._arrived.wait()

    async def _parsed(self, data: bytes, compressed_bytes: int | None) -> Message | bytes:
        if is_for_worker(data, compressed_bytes):
            return await unpack_in_worker(self._method, data)
        if compressed_bytes is None:
            request = parse(self._method, data)
        else:
            request = unpack(self._method, data)
        if isinstance(request, RpcError):
            raise request
        return request

    def _consume_all_but(self, kept_bytes: int) -> None:
        size = self._unconsumed_bytes - kept_bytes
        if size > 0:
            self._unconsumed_bytes = kept_bytes
            self._consume(size)
