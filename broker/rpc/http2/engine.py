"""The HTTP/2 engine behind a narrow door, so that another one can stand in.

Sans-I/O: bytes received go in and come back as events; calls queue frames; bytes to send come out.
No other module may import the library. Its event classes are passed on as they are (making our own
of each would cost more than the library does): whoever replaces it gives classes of these names
with these attributes,

    RequestReceived, ResponseReceived    stream_id, headers, end_stream
    TrailersReceived                     stream_id, headers
    DataReceived                         stream_id, data, end_stream
    StreamClosed                         stream_id, error_code
    SettingsReceived, PingAcknowledged, GoAwayReceived, ConnectionClosed

A stream may vanish between its event and the answer. So a call for a stream that is gone, or on a
connection that is ending, does nothing: the `StreamClosed` or `ConnectionClosed` that says so came
already, or will.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import final

import ngh2
from ngh2 import (
    ConnectionClosed,
    DataReceived,
    ErrorCode,
    GoAwayReceived,
    PingAcknowledged,
    RequestReceived,
    ResponseReceived,
    Role,
    SettingsReceived,
    StreamClosed,
    TrailersReceived,
)

__all__ = [
    "ConnectionClosed",
    "DataReceived",
    "Engine",
    "EngineError",
    "EngineLimits",
    "ErrorCode",
    "Event",
    "GoAwayReceived",
    "Headers",
    "PingAcknowledged",
    "RequestReceived",
    "ResponseReceived",
    "Role",
    "SettingsReceived",
    "StreamClosed",
    "TrailersReceived",
]

Event = ngh2.Event
Headers = Sequence[tuple[bytes, bytes]]


@final
class EngineError(Exception):
    """The peer broke the protocol or a limit; the connection is over.

    `last_words` are to be sent before it is closed, after everything taken before.
    """

    def __init__(self, reason: str, last_words: bytes) -> None:
        self.reason, self.last_words = reason, last_words
        super().__init__(reason)


@final
@dataclass(frozen=True, slots=True)
class EngineLimits:
    """What one connection may ask of us. Each bounds memory or work, whatever the peer sends."""

    streams_max: int = 10_000
    """Open at the same time; a parked one costs the engine 1.4 KB."""
    stream_window_bytes: int = 1024 * 1024
    """What a peer may send on a stream before it is consumed."""
    connection_window_bytes: int = 16 * 1024 * 1024
    """The same for all streams of a connection together."""
    header_list_bytes: int = 16 * 1024
    """Decoded, with 32 bytes for each field; gRPC's own default. Official clients send 1 KB.
    Compressed, such a list takes 20 bytes of the network."""
    header_count: int = 128
    continuations: int = 8
    """Frames of one header block beyond its first."""
    resets: tuple[int, int] = (20_000, 2_000)
    """Streams a peer may reset: at once, and each second. Official clients cancel every long poll
    that is open when they stop, or when a network changes: thousands at once, then none."""
    unsent_acknowledgements: int = 100
    """Answers to PING and SETTINGS frames that wait to be sent. Clients have one or two."""


@final
class Engine:
    """One side of one connection."""

    __slots__ = ("_connection", "_last_peer_stream_id")

    def __init__(self, role: Role, limits: EngineLimits) -> None:
        """Begin: the preface is in the output already."""
        self._connection = ngh2.Connection(
            role,
            ngh2.Configuration(
                auto_window_update=False,
                max_inbound_header_list_size=limits.header_list_bytes,
                max_inbound_header_count=limits.header_count,
                max_continuations=limits.continuations,
                max_outbound_ack=limits.unsent_acknowledgements,
                stream_reset_rate_limit=limits.resets,
            ),
        )
        settings = {
            ngh2.Setting.MAX_CONCURRENT_STREAMS: limits.streams_max,
            ngh2.Setting.INITIAL_WINDOW_SIZE: limits.stream_window_bytes,
            ngh2.Setting.MAX_HEADER_LIST_SIZE: limits.header_list_bytes,
        }
        if role is Role.CLIENT:
            settings[ngh2.Setting.ENABLE_PUSH] = 0
        self._connection.initiate_connection(settings)
        self._connection.set_local_window_size(limits.connection_window_bytes)
        self._last_peer_stream_id = 0

    # Bytes and events

    def receive(self, data: bytes | memoryview) -> list[Event]:
        """Take bytes from the network; return what they mean: nothing once the connection is over.

        Raises:
            EngineError: they are a protocol error, or exceed a limit, beyond repair.
        """
        try:
            self._connection.receive_data(data)
        except ngh2.ConnectionStateError:
            return []
        except ngh2.DenialOfServiceError as error:
            raise EngineError(str(error), self._goaway(ErrorCode.ENHANCE_YOUR_CALM)) from None
        except ngh2.NGH2Error as error:
            raise EngineError(str(error), self._goaway(ErrorCode.PROTOCOL_ERROR)) from None
        events = self._connection.events()
        for event in reversed(events):
            if isinstance(event, RequestReceived):
                self._last_peer_stream_id = event.stream_id
                break
        return events

    def take_output(self) -> bytes:
        """Return what is to be sent now; it makes events of its own, see `take_events`.

        Raises:
            EngineError: the connection is over.
        """
        try:
            return self._connection.data_to_send()
        except ngh2.NGH2Error as error:
            raise EngineError(str(error), b"") from None

    def take_events(self) -> list[Event]:
        """Return what has happened since the last look, because of what was sent."""
        return self._connection.events()

    def _goaway(self, code: ErrorCode) -> bytes:
        # The library drops its session together with the error, and with it the means to say why.
        return struct.pack(">HBBBIII", 0, 8, 7, 0, 0, self._last_peer_stream_id, code)

    # Streams

    def submit_request(self, headers: Headers, *, end_stream: bool = False) -> int | None:
        """Begin a stream as a client; return its id, or None if the connection takes no more."""
        try:
            return self._connection.send_request(headers, end_stream=end_stream)
        except ngh2.NGH2Error:
            return None

    def submit_headers(self, stream_id: int, headers: Headers, *, end_stream: bool = False) -> None:
        """Begin a response; unless the headers end the stream, data and trailers follow."""
        try:
            self._connection.send_response(stream_id, headers, end_stream=end_stream)
        except ngh2.NGH2Error:
            return

    def submit_data(self, stream_id: int, data: bytes, *, end_stream: bool = False) -> None:
        """Queue bytes of a body; they leave as the peer's windows allow."""
        try:
            self._connection.send_data(stream_id, data, end_stream=end_stream)
        except ngh2.NGH2Error:
            return

    def submit_trailers(self, stream_id: int, headers: Headers) -> None:
        """End a stream with trailers, after all data queued for it."""
        try:
            self._connection.send_trailers(stream_id, headers)
        except ngh2.NGH2Error:
            return

    def submit_response(
        self, stream_id: int, headers: Headers, data: bytes, trailers: Headers
    ) -> None:
        """Queue a whole response: cheaper than the three calls it stands for."""
        connection = self._connection
        try:
            connection.send_response(stream_id, headers)
            connection.send_data(stream_id, data)
            connection.send_trailers(stream_id, trailers)
        except ngh2.NGH2Error:
            return

    def reset(self, stream_id: int, code: ErrorCode) -> None:
        """End a stream at once; what is queued for it is dropped."""
        try:
            self._connection.reset_stream(stream_id, code)
        except ngh2.NGH2Error:
            return

    def consume(self, stream_id: int, size: int) -> None:
        """Let the peer send as many bytes again: these of `DataReceived` are done with.

        Every byte must be consumed once, those of streams that are closed too.
        """
        try:
            self._connection.acknowledge_received_data(size, stream_id)
        except ngh2.NGH2Error:
            return

    def unsent_bytes(self, stream_id: int | None = None) -> int:
        """Return what of a stream's bodies, or of all, waits for the peer's windows."""
        return self._connection.queued_body_size(stream_id)

    # The connection

    def ping(self) -> None:
        """Ask the peer for a sign of life: a `PingAcknowledged`."""
        with suppress(ngh2.NGH2Error):
            self._connection.ping()

    def announce_end(self) -> None:
        """Ask the client for no new streams; those on their way are still taken."""
        with suppress(ngh2.NGH2Error):
            self._connection.send_shutdown_notice()

    def end(self, code: ErrorCode = ErrorCode.NO_ERROR) -> None:
        """Say that no stream beyond those seen will be served. Open ones may still finish."""
        with suppress(ngh2.NGH2Error):
            self._connection.send_goaway(code)
