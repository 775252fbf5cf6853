"""One connection of the suite's own client: blocking, for one thread, with gRPC calls on it."""

from __future__ import annotations

import socket
import ssl
import struct
import time
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, final

from tests.attacks import http2, protobuf

ANSWER_BYTES_KEPT: Final = 64 * 1024
"""Of an answer to an attack; the rest is only counted."""
_READ_BYTES: Final = 256 * 1024
_REFILL_BYTES: Final = 4 << 20


class ClosedError(ConnectionError):
    """The server ended the connection."""


@final
@dataclass(slots=True)
class Answer:
    """What has come for one call."""

    data: bytearray = field(default_factory=bytearray)
    size_bytes: int = 0
    status: int | None = None
    """The gRPC status, once it has come."""
    was_reset: bool = False
    is_over: bool = False

    def messages(self) -> list[bytes]:
        """Return the complete messages."""
        found, position = [], 0
        while len(self.data) - position >= 5:
            is_packed, size = struct.unpack_from(">?I", self.data, position)
            if position + 5 + size > len(self.data):
                break
            message = bytes(self.data[position + 5 : position + 5 + size])
            if is_packed:
                message = _unpacked(message)
            found.append(message)
            position += 5 + size
        return found

    def outcome(self) -> str:
        """Return how the call ended, in the words of the report: codes, never texts."""
        if self.was_reset:
            return "reset"
        if not self.is_over:
            return "no answer yet"
        if self.status != 0:
            return f"grpc {self.status}"
        code = self.code()
        return "ok" if code is None else f"code {code}"

    def code(self) -> int | None:
        """Return the code of RocketMQ's status, which is the first field of the first message.

        Of that message only the beginning may be there.
        """
        beginning = bytes(self.data[5:])
        if self.data[:1] == b"\1":
            beginning = _unpacked(beginning)
        try:
            code = protobuf.first(protobuf.message_in(beginning, 1), 1)
        except ValueError:
            return None
        return code if isinstance(code, int) else None


def _unpacked(data: bytes) -> bytes:
    return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(data, ANSWER_BYTES_KEPT)


@final
class Connection:
    """HTTP/2 without TLS unless a context is given.

    Everything that talks to the server raises OSError: TimeoutError where it takes nothing or says
    nothing, `ClosedError` where it has ended the connection.
    """

    def __init__(
        self,
        address: tuple[str, int],
        *,
        source: str = "",
        window_bytes: int = http2.WINDOW_MAX,
        refills: bool = True,
        timeout_s: float = 10.0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Connect.

        Args:
            address: host and port.
            source: the address to connect from; any, if empty.
            window_bytes: what the server may send on each stream.
            refills: grant the connection as much, and again what was read. Without it the
                connection's window is the 64 KiB that it begins with.
            timeout_s: for each wait.
            tls: a client's context, for TLS.
        """
        self._socket = socket.create_connection(
            address, timeout=timeout_s, source_address=(source, 0) if source else None
        )
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self._socket = tls.wrap_socket(self._socket, server_hostname="localhost")
        self.calls: dict[int, Answer] = {}
        """Those that are not over."""
        self._authority = f"{address[0]}:{address[1]}"
        self._refills, self._timeout_s = refills, timeout_s
        self._received, self._unrefilled = bytearray(), 0
        self._next_id = 1
        self._window, self._windows = http2.WINDOW_DEFAULT, dict[int, int]()
        self._window_initial = http2.WINDOW_DEFAULT
        values = [
            (http2.HEADER_TABLE_SIZE, 0),
            (http2.ENABLE_PUSH, 0),
            (http2.INITIAL_WINDOW_SIZE, window_bytes),
        ]
        self.output = bytearray(http2.PREFACE + http2.settings(values))
        """Frames that leave with the next flush."""
        if refills:
            self.output += http2.window_update(0, http2.WINDOW_MAX - http2.WINDOW_DEFAULT)
        self.flush()

    def close(self) -> None:
        """Disconnect without a word."""
        self._socket.close()

    def __enter__(self) -> Connection:
        """Return the connection itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Disconnect."""
        self.close()

    # Sending

    def open(
        self, path: str, *, client_id: str = "", headers: Iterable[tuple[str, str]] = ()
    ) -> int:
        """Begin a call, with the next flush; return its stream."""
        stream_id, self._next_id = self._next_id, self._next_id + 2
        fields = [
            *((":method", "POST"), (":scheme", "http"), (":path", path)),
            *((":authority", self._authority), ("te", "trailers")),
            ("content-type", "application/grpc"),
        ]
        if client_id:
            fields.append(("x-mq-client-id", client_id))
        block = http2.header_block([*fields, *headers])
        self.output += http2.frame(
            http2.HEADERS, block, flags=http2.END_HEADERS, stream_id=stream_id
        )
        self.calls[stream_id] = Answer()
        self._windows[stream_id] = self._window_initial
        return stream_id

    def message(
        self, stream_id: int, message: bytes, *, end: bool = True, packed: bool = False
    ) -> None:
        """Send one gRPC message; `packed` says that it is gzip'd already."""
        self.data(stream_id, struct.pack(">?I", packed, len(message)) + message, end=end)

    def data(self, stream_id: int, data: bytes, *, end: bool) -> None:
        """Send bytes as the server's windows allow; stop where the stream is over before."""
        view = memoryview(data)
        while True:
            size = min(len(view), http2.FRAME_BYTES, self._room(stream_id))
            is_last = size == len(view)
            if stream_id not in self.calls:
                return
            if size or is_last:
                flags = http2.END_STREAM if is_last and end else 0
                self.output += http2.frame(
                    http2.DATA, view[:size].tobytes(), flags=flags, stream_id=stream_id
                )
                self._window -= size
                self._windows[stream_id] -= size
                view = view[size:]
            if is_last:
                break
            if len(self.output) > _READ_BYTES:
                self.flush()
            if not size:
                self.flush()
                self.read()
        self.flush()

    def reset(self, stream_id: int) -> None:
        """Give a call up, with the next flush."""
        self.output += http2.reset(stream_id)
        self._forget(stream_id)

    def flush(self) -> None:
        """Write what is queued."""
        output, self.output = self.output, bytearray()
        if output:
            self._socket.sendall(output)

    # Reading

    def read(self, timeout_s: float | None = None) -> list[Answer]:
        """Wait for something, answer pings, and return the calls that are over by it."""
        self._socket.settimeout(self._timeout_s if timeout_s is None else max(timeout_s, 1e-3))
        try:
            received = self._socket.recv(_READ_BYTES)
        finally:
            self._socket.settimeout(self._timeout_s)
        if not received:
            raise ClosedError("closed by the server")
        self._received += received
        over = [self._take(each) for each in http2.take_frames(self._received)]
        if self._refills and self._unrefilled > _REFILL_BYTES:
            self.output += http2.window_update(0, self._unrefilled)
            self._unrefilled = 0
        self.flush()
        return [answer for answer in over if answer is not None]

    def read_for(self, seconds: float) -> list[Answer]:
        """Read so long, answering pings; return the calls that were over by it."""
        over, until_s = [], time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0:
            try:
                over += self.read(left_s)
            except TimeoutError:
                break
        return over

    def call(
        self,
        path: str,
        message: bytes,
        *,
        client_id: str = "",
        headers: Iterable[tuple[str, str]] = (),
        packed: bool = False,
        timeout_s: float | None = None,
    ) -> Answer:
        """Make a call with one request, and return the whole answer."""
        if packed:
            headers = [*headers, ("grpc-encoding", "gzip")]
        stream_id = self.open(path, client_id=client_id, headers=headers)
        answer = self.calls[stream_id]
        self.message(stream_id, message, packed=packed)
        until_s = time.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)
        while not answer.is_over:
            if time.monotonic() > until_s:
                raise TimeoutError(path)
            self.read(until_s - time.monotonic())
        return answer

    def _room(self, stream_id: int) -> int:
        return max(0, min(self._window, self._windows.get(stream_id, 0)))

    def _take(self, received: http2.Frame) -> Answer | None:
        """Do what a frame asks for; return the call that is over by it."""
        kind, _, stream_id, payload = received
        answer = self.calls.get(stream_id)
        if kind == http2.DATA:
            self._unrefilled += len(payload)
            if answer is not None:
                answer.size_bytes += len(payload)
                answer.data += payload[: ANSWER_BYTES_KEPT - len(answer.data)]
        elif kind == http2.HEADERS and answer is not None:
            status = http2.grpc_status(http2.headers_of(received))
            answer.status = answer.status if status is None else status
        elif kind == http2.RST_STREAM and answer is not None:
            # A server that has answered stops the rest of the request like that.
            answer.was_reset = not answer.is_over and answer.status is None
        elif not stream_id or kind == http2.WINDOW_UPDATE:
            self._take_control(received)
        if answer is None or not received.ends_stream():
            return None
        answer.is_over = True
        self._forget(stream_id)
        return answer

    def _take_control(self, received: http2.Frame) -> None:
        kind, flags, stream_id, payload = received
        if kind == http2.WINDOW_UPDATE:
            size = struct.unpack(">I", payload)[0]
            if not stream_id:
                self._window += size
            elif stream_id in self._windows:
                self._windows[stream_id] += size
        elif kind == http2.PING and not flags & http2.ACK:
            self.output += http2.frame(http2.PING, payload, flags=http2.ACK)
        elif kind == http2.SETTINGS and not flags & http2.ACK:
            for name, value in struct.iter_unpack(">HI", payload):
                if name == http2.INITIAL_WINDOW_SIZE:
                    for each in self._windows:
                        self._windows[each] += value - self._window_initial
                    self._window_initial = value
            self.output += http2.frame(http2.SETTINGS, flags=http2.ACK)

    def _forget(self, stream_id: int) -> None:
        self.calls.pop(stream_id, None)
        self._windows.pop(stream_id, None)
