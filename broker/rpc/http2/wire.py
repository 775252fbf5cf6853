"""The bytes of one connection: how they are read and written, plaintext or TLS.

Trio's streams make several task switches for each call. A plaintext connection is read and written
at its file descriptor instead, and waits only where the kernel would make it wait.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final, Protocol, TypeAlias, final

import trio

READ_BYTES = 64 * 1024
"""What one read takes: 50 requests of 1.3 KB, or 1,000 of those that are all headers, which take
2.5 KB each once they are unpacked."""
BULK_READ_BYTES = 256 * 1024
"""What one read takes of large messages."""
WRITE_BYTES = 64 * 1024
"""What TLS writes at once after a full socket: the unit that a slow reader's deadline is for."""
LINGER_S: Final = 1.0
"""How long a peer may take to read the last words: to close a socket while bytes of the peer are
unread would take them back."""
NETWORK_ERRORS: Final = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)
"""Raised when a connection broke."""
_LINGER_BYTES: Final = 1024 * 1024
"""What a peer may have sent meanwhile. Whoever sends more does not read."""

Stream: TypeAlias = "trio.SocketStream | trio.SSLStream[trio.SocketStream]"


class Turn(Protocol):
    """Permission to read now."""

    async def wait(self) -> None:
        """Wait for the permission."""


class Wire(Protocol):
    """A connected byte stream. One task reads; whoever likes writes, but one at a time."""

    async def read(self, size: int = READ_BYTES, turn: Turn | None = None) -> bytes | memoryview:
        """Return what has arrived, waiting for something; empty at the end of the stream.

        At most `size` bytes of it, `BULK_READ_BYTES` in any case; they are valid until the next
        checkpoint. With a turn they are handed out when it has come.

        Raises:
            OSError, trio.BrokenResourceError: the connection broke.
        """

    def write_now(self, data: bytes | memoryview) -> int:
        """Write what can be written without waiting; return how much that was.

        Raises:
            OSError: the connection broke.
        """

    async def write_some(self, data: memoryview) -> int:
        """Write something, once the peer takes it; return how much that was.

        Raises:
            OSError, trio.BrokenResourceError: the connection broke.
        """

    async def write(self, data: bytes | memoryview) -> None:
        """Write everything.

        Raises:
            OSError, trio.BrokenResourceError: the connection broke.
        """

    async def end_writing(self) -> None:
        """Tell the peer that nothing follows."""

    async def close(self) -> None:
        """Close the connection."""


@final
class PlainWire:
    """A TCP or Unix socket without anything on top."""

    def __init__(self, stream: trio.SocketStream, buffer: bytearray) -> None:
        """All connections of a thread may share the buffer: nothing awaits between two reads."""
        self._stream = stream
        self._fd = stream.socket.fileno()
        self._view = memoryview(buffer)
        self._has_waited = True

    async def read(self, size: int = READ_BYTES, turn: Turn | None = None) -> bytes | memoryview:
        """See `Wire`."""
        if not self._has_waited:
            # A client that always has more must not keep the others waiting.
            await trio.lowlevel.checkpoint()
        self._has_waited = False
        while True:
            if turn is not None:
                # Before the buffer is filled, which others use as well.
                await turn.wait()
            try:
                length = os.readv(self._fd, [self._view[:size]])
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._fd)
                self._has_waited = True
            else:
                return self._view[:length]

    def write_now(self, data: bytes | memoryview) -> int:
        """See `Wire`."""
        try:
            return os.write(self._fd, data)
        except BlockingIOError:
            return 0

    async def write_some(self, data: memoryview) -> int:
        """See `Wire`."""
        written = 0
        while not written:
            await trio.lowlevel.wait_writable(self._fd)
            written = self.write_now(data)
        return written

    async def write(self, data: bytes | memoryview) -> None:
        """See `Wire`."""
        await self._stream.send_all(data)

    async def end_writing(self) -> None:
        """See `Wire`."""
        await self._stream.send_eof()

    async def close(self) -> None:
        """See `Wire`."""
        await trio.aclose_forcefully(self._stream)


@final
class TlsWire:
    """A TLS stream; trio's own does the work."""

    def __init__(self, stream: trio.SSLStream[trio.SocketStream]) -> None:
        self._stream = stream

    async def read(self, size: int = READ_BYTES, turn: Turn | None = None) -> bytes | memoryview:
        """See `Wire`."""
        data = bytes(await self._stream.receive_some(size))
        if turn is not None:
            await turn.wait()
        return data

    def write_now(self, data: bytes | memoryview) -> int:
        """See `Wire`."""
        return 0

    async def write_some(self, data: memoryview) -> int:
        """See `Wire`."""
        piece = data[:WRITE_BYTES]
        await self._stream.send_all(piece)
        return len(piece)

    async def write(self, data: bytes | memoryview) -> None:
        """See `Wire`."""
        await self._stream.send_all(data)

    async def end_writing(self) -> None:
        """See `Wire`."""
        await self._stream.transport_stream.send_eof()

    async def close(self) -> None:
        """See `Wire`."""
        await trio.aclose_forcefully(self._stream)


def wire_of(stream: Stream, buffer: bytearray) -> Wire:
    """Return the fastest way to read and write a stream."""
    return PlainWire(stream, buffer) if isinstance(stream, trio.SocketStream) else TlsWire(stream)


async def say_goodbye(wire: Wire, last_words: bytes) -> None:
    """Write the last words, and let the peer read them. It may take `LINGER_S`.

    Raises:
        OSError, trio.BrokenResourceError: the connection broke.
    """
    if last_words:
        await wire.write(last_words)
    await wire.end_writing()
    unread_bytes = _LINGER_BYTES
    while unread_bytes > 0 and (data := await wire.read(READ_BYTES)):
        unread_bytes -= len(data)


def slices(data: bytes | memoryview, size: int) -> Iterator[memoryview]:
    """Yield what was read in pieces of this size, valid across checkpoints."""
    whole = memoryview(bytes(data))
    for start in range(0, len(whole), size):
        yield whole[start : start + size]
