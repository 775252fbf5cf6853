"""A client that grants its server a small window, and never more."""

from __future__ import annotations

import socket

from commitbus.broker.rpc.http2.engine import Engine, EngineLimits, ErrorCode, Role

WINDOW_BYTES = 16 * 1024


class UnreadClient:
    """One connection to a port of this machine, with one call whose response is not read."""

    def __init__(self, port: int, path: str) -> None:
        """Begin the call, with an empty request."""
        self._engine = Engine(Role.CLIENT, EngineLimits(stream_window_bytes=WINDOW_BYTES))
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        stream_id = self._engine.submit_request(
            [
                (b":method", b"POST"),
                (b":scheme", b"http"),
                (b":path", path.encode()),
                (b":authority", b"localhost"),
                (b"content-type", b"application/grpc"),
                (b"te", b"trailers"),
            ]
        )
        assert stream_id is not None
        self._stream_id = stream_id
        self._engine.submit_data(stream_id, bytes(5), end_stream=True)
        self._flush()

    def _flush(self) -> None:
        self._socket.sendall(self._engine.take_output())

    def cancel(self) -> None:
        """Reset the stream."""
        self._engine.reset(self._stream_id, ErrorCode.CANCEL)
        self._flush()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()
