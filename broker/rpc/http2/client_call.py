"""One call of a client: what it sends, what it receives, and how it ends."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final, final

import trio

from commitbus.broker.rpc.call import RpcError, StatusCode
from commitbus.broker.rpc.http2.engine import Engine, ErrorCode, Headers
from commitbus.broker.rpc.http2.grpc_wire import PREFIX, MessageReader, percent_decode
from commitbus.broker.rpc.outcome import deadline_exceeded

SEND_AHEAD_BYTES: Final = 1024 * 1024
"""A call waits in `send` while more than this waits for the network."""
_MESSAGE_BYTES_MAX: Final = 1 << 30

_RESET_CODES: Final[Mapping[int, StatusCode]] = {
    ErrorCode.REFUSED_STREAM: StatusCode.UNAVAILABLE,
    ErrorCode.CANCEL: StatusCode.CANCELLED,
    ErrorCode.ENHANCE_YOUR_CALM: StatusCode.RESOURCE_EXHAUSTED,
}
"""What a stream that ends without a status means; others are INTERNAL. Source: the table in gRPC's
protocol description."""
_HTTP_CODES: Final = {
    b"400": StatusCode.INTERNAL,
    b"401": StatusCode.UNAUTHENTICATED,
    b"403": StatusCode.PERMISSION_DENIED,
    b"404": StatusCode.UNIMPLEMENTED,
    b"429": StatusCode.UNAVAILABLE,
    b"502": StatusCode.UNAVAILABLE,
    b"503": StatusCode.UNAVAILABLE,
    b"504": StatusCode.UNAVAILABLE,
}
"""What an answer of something that is no gRPC server means; others are UNKNOWN. Same source."""


@final
class ClientCall:
    """A call that was begun. Made by `ClientConnection.call`. One task receives at a time."""

    def __init__(
        self,
        engine: Engine,
        stream_id: int,
        flush_soon: Callable[[], None],
        deadline_s: float | None,
    ) -> None:
        """Begin behind the request's header fields."""
        self._engine, self._stream_id, self._flush_soon = engine, stream_id, flush_soon
        self._deadline_s = math.inf if deadline_s is None else deadline_s
        self._reader = MessageReader(_MESSAGE_BYTES_MAX)
        self._unconsumed_bytes = 0
        self._arrived = trio.Event()
        self._room = trio.Event()
        self._has_ended_sending = False
        self._is_over = False
        self._error: RpcError | None = None
        """With `_is_over`: how it ended; None is OK."""

    # Sending

    async def send(self, *pieces: bytes) -> None:
        """Queue a request, given in pieces; wait while too much waits for the network.

        Raises:
            RpcError: the call is over.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        self.send_now(*pieces)
        if not self._has_room():
            with trio.move_on_at(self._deadline_s):
                while not self._has_room() and not self._is_over:
                    self._room = trio.Event()
                    await self._room.wait()
            self._check_open()

    def send_now(self, *pieces: bytes) -> None:
        """Queue a request, given in pieces, without waiting: the caller bounds how many.

        Raises:
            RpcError: the call is over.
        """
        self._check_open()
        submit, stream_id = self._engine.submit_data, self._stream_id
        submit(stream_id, PREFIX.pack(0, sum(map(len, pieces))))
        for piece in pieces:
            submit(stream_id, piece)
        self._flush_soon()

    def end_sending(self) -> None:
        """Say that no more requests follow."""
        if not self._has_ended_sending and not self._is_over:
            self._has_ended_sending = True
            self._engine.submit_data(self._stream_id, b"", end_stream=True)
            self._flush_soon()

    def _has_room(self) -> bool:
        return self._engine.unsent_bytes(self._stream_id) < SEND_AHEAD_BYTES

    def _check_open(self) -> None:
        self._check_deadline()
        if self._is_over:
            raise self._error or RpcError(StatusCode.CANCELLED, "the call is over")

    def _check_deadline(self) -> None:
        if not self._is_over and trio.current_time() >= self._deadline_s:
            self._reset()
            self._end(deadline_exceeded())

    # Receiving

    async def receive(self) -> bytes | None:
        """Return the next response, None after the last one.

        Raises:
            RpcError: the call failed.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        while (message := self._take()) is None:
            self._check_deadline()
            if self._is_over:
                if self._error is not None:
                    raise self._error
                return None
            self._arrived = trio.Event()
            with trio.move_on_at(self._deadline_s):
                await self._arrived.wait()
        return message

    def _take(self) -> bytes | None:
        """Return the next message that is complete, and let the server send as much again."""
        try:
            message = self._reader.take()
        except RpcError as error:
            self._reset()
            self._end(error)
            return None
        # While a message is awaited that is larger than the window, all of it is given back.
        kept_bytes = 0 if message is None else self._reader.buffered_bytes
        if self._unconsumed_bytes > kept_bytes:
            self._engine.consume(self._stream_id, self._unconsumed_bytes - kept_bytes)
            self._unconsumed_bytes = kept_bytes
            self._flush_soon()
        return message

    # What the connection tells

    def make_room(self) -> None:
        """Wake who waits to send, if there is room again."""
        if self._has_room():
            self._room.set()

    def data_received(self, data: bytes, *, has_ended: bool) -> None:
        """Take a piece of the response's body."""
        self._reader.feed(data)
        self._unconsumed_bytes += len(data)
        if has_ended:
            self._end(RpcError(StatusCode.INTERNAL, "the response ends without a status"))
        self._arrived.set()

    def fields_received(self, headers: Headers, *, has_ended: bool) -> None:
        """Take header fields or trailers; the status is in the last ones."""
        fields = dict(headers)
        http_status = fields.get(b":status", b"200")
        if http_status != b"200":
            code = _HTTP_CODES.get(http_status, StatusCode.UNKNOWN)
            self._end(RpcError(code, f"the server answers with HTTP status {http_status.decode()}"))
        elif b"grpc-status" in fields:
            self._end(_status_of(fields))
        elif has_ended:
            self._end(RpcError(StatusCode.UNKNOWN, "the response ends without a status"))

    def closed(self, error_code: int) -> None:
        """Note that the stream is gone; without a status before, the call failed."""
        code = _RESET_CODES.get(error_code, StatusCode.INTERNAL)
        self._end(RpcError(code, f"the server reset the stream (HTTP/2 error {error_code})"))

    def fail(self, error: RpcError) -> None:
        """End a call that the server did not end."""
        self._end(error)

    def cancel(self) -> None:
        """Give the call up, at the server too, if it is not over."""
        if not self._is_over:
            self._reset()
            self._end(RpcError(StatusCode.CANCELLED, "the call was cancelled"))
        if self._unconsumed_bytes:
            self._engine.consume(self._stream_id, self._unconsumed_bytes)
            self._unconsumed_bytes = 0
            self._flush_soon()

    def _reset(self) -> None:
        self._engine.reset(self._stream_id, ErrorCode.CANCEL)
        self._flush_soon()

    def _end(self, error: RpcError | None) -> None:
        if not self._is_over:
            self._is_over, self._error = True, error
        self._arrived.set()
        self._room.set()


def _status_of(fields: dict[bytes, bytes]) -> RpcError | None:
    """Return the error that trailers tell of, None for OK."""
    try:
        code = StatusCode(int(fields[b"grpc-status"]))
    except ValueError:
        code = StatusCode.UNKNOWN
    if code is StatusCode.OK:
        return None
    return RpcError(code, percent_decode(fields.get(b"grpc-message", b"")))
