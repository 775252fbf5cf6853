"""What the code on top relies on, whatever engine is behind the door."""

from __future__ import annotations

import pytest

from commitbus.broker.rpc.http2.engine import (
    ConnectionClosed,
    DataReceived,
    Engine,
    EngineError,
    EngineLimits,
    ErrorCode,
    Event,
    GoAwayReceived,
    PingAcknowledged,
    RequestReceived,
    ResponseReceived,
    Role,
    SettingsReceived,
    StreamClosed,
    TrailersReceived,
)

REQUEST = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/a/b"),
    (b":authority", b"here"),
)
RESPONSE = ((b":status", b"200"),)
TRAILERS = ((b"grpc-status", b"0"),)


class Pair:
    """A client and a server; what each was told."""

    def __init__(self, limits: EngineLimits | None = None) -> None:
        self.client = Engine(Role.CLIENT, EngineLimits())
        self.server = Engine(Role.SERVER, limits or EngineLimits())
        self.client_events: list[Event] = []
        self.server_events: list[Event] = []

    def settle(self) -> None:
        """Carry bytes both ways until there are none."""
        while True:
            to_server, to_client = self.client.take_output(), self.server.take_output()
            self.client_events += self.client.take_events()
            self.server_events += self.server.take_events()
            if not to_server and not to_client:
                return
            self.server_events += self.server.receive(to_server)
            self.client_events += self.client.receive(to_client)

    def request(self, body: bytes = b"") -> int:
        """A request of the client, with its end."""
        stream_id = self.client.submit_request(REQUEST)
        assert stream_id is not None
        self.client.submit_data(stream_id, body, end_stream=True)
        return stream_id


def of_stream(events: list[Event], stream_id: int) -> list[Event]:
    return [event for event in events if getattr(event, "stream_id", 0) == stream_id]


def kinds(events: list[Event]) -> list[type[Event]]:
    return [type(event) for event in events]


def test_a_call_goes_there_and_back() -> None:
    """Headers and data, then headers, data and trailers; both sides know the end."""
    pair = Pair()
    stream_id = pair.request(b"hello")
    pair.settle()
    request, data = of_stream(pair.server_events, stream_id)
    assert isinstance(request, RequestReceived)
    assert isinstance(data, DataReceived)
    assert dict(request.headers)[b":path"] == b"/a/b"
    assert (data.data, data.end_stream, data.stream_id) == (b"hello", True, stream_id)
    pair.server.submit_response(stream_id, RESPONSE, b"world", TRAILERS)
    pair.settle()
    response, answer, trailers, closed = of_stream(pair.client_events, stream_id)
    assert isinstance(response, ResponseReceived)
    assert isinstance(answer, DataReceived)
    assert isinstance(trailers, TrailersReceived)
    assert isinstance(closed, StreamClosed)
    assert answer.data == b"world"
    assert trailers.headers == TRAILERS
    assert StreamClosed in kinds(pair.server_events)
    assert SettingsReceived in kinds(pair.server_events)


def test_calls_for_a_stream_that_is_gone_do_nothing() -> None:
    """A stream can vanish between its event and the answer."""
    pair = Pair()
    stream_id = pair.request()
    pair.settle()
    pair.client.reset(stream_id, ErrorCode.CANCEL)
    pair.settle()
    server = pair.server
    for gone in (stream_id, 999):
        server.submit_response(gone, RESPONSE, b"", TRAILERS)
        server.submit_headers(gone, RESPONSE)
        server.submit_data(gone, b"x")
        server.submit_trailers(gone, TRAILERS)
        server.consume(gone, 0)
        server.reset(gone, ErrorCode.CANCEL)
    assert server.take_output() == b""
    again = pair.request(b"still here")
    pair.settle()
    assert kinds(of_stream(pair.server_events, again)) == [RequestReceived, DataReceived]


def test_what_is_not_consumed_stops_the_sender() -> None:
    """On its own stream; consumed, it goes on."""
    pair = Pair(EngineLimits(stream_window_bytes=1000))
    pair.settle()
    stream_id = pair.request(bytes(5000))
    pair.settle()
    assert pair.client.unsent_bytes(stream_id) == 4000
    other = pair.request(bytes(500))
    pair.settle()
    assert pair.client.unsent_bytes(other) == 0
    while left := pair.client.unsent_bytes(stream_id):
        pair.server.consume(stream_id, 1000)
        pair.settle()
        assert pair.client.unsent_bytes() == left - 1000


def test_bytes_of_streams_that_are_closed_must_be_consumed_too() -> None:
    """Then they do not take the window from the others."""
    limits = EngineLimits(stream_window_bytes=1000, connection_window_bytes=65_535)
    pair = Pair(limits)
    pair.settle()
    for _ in range(200):
        stream_id = pair.request(bytes(1000))
        pair.settle()
        pair.client.reset(stream_id, ErrorCode.CANCEL)
        pair.settle()
        pair.server.consume(stream_id, 1000)
        pair.settle()
    assert pair.client.unsent_bytes() == 0


def test_a_peer_that_breaks_a_limit_is_told_which_kind() -> None:
    """In a last frame, since the library can send none any more."""
    for limits, headers in (
        (EngineLimits(header_count=5), [*REQUEST, (b"a", b"b"), (b"a", b"b")]),
        (EngineLimits(header_list_bytes=300), [*REQUEST, (b"a", b"b" * 200)]),
    ):
        pair = Pair(limits)
        pair.request()
        pair.settle()
        pair.client.submit_request(headers)
        with pytest.raises(EngineError) as error:
            pair.settle()
        goaway = pair.client.receive(error.value.last_words)[0]
        assert isinstance(goaway, GoAwayReceived)
        assert goaway.error_code == ErrorCode.ENHANCE_YOUR_CALM
        assert goaway.last_stream_id == 1
        with pytest.raises(EngineError):
            pair.server.take_output()


def test_what_is_no_http2_is_an_error() -> None:
    """Such as a browser's first line."""
    with pytest.raises(EngineError):
        Engine(Role.SERVER, EngineLimits()).receive(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")


def test_resets_beyond_the_limit_end_the_connection() -> None:
    """The burst is granted, more is not."""
    pair = Pair(EngineLimits(resets=(50, 1)))
    resets = 0
    while ConnectionClosed not in kinds(pair.server_events):
        stream_id = pair.request()
        pair.settle()
        pair.client.reset(stream_id, ErrorCode.CANCEL)
        pair.settle()
        resets += 1
        assert resets < 100
    assert resets > 50


def test_a_server_that_ends_lets_open_streams_finish() -> None:
    """The client hears of it twice: to start no more, and which ones still count."""
    pair = Pair()
    stream_id = pair.request()
    pair.settle()
    pair.server.announce_end()
    pair.settle()
    assert pair.client.submit_request(REQUEST) is None
    pair.server.end()
    pair.settle()
    announced, final = [e for e in pair.client_events if isinstance(e, GoAwayReceived)]
    assert (announced.last_stream_id, final.last_stream_id) == (2**31 - 1, stream_id)
    assert ConnectionClosed not in kinds(pair.server_events)
    pair.server.submit_response(stream_id, RESPONSE, b"late", TRAILERS)
    pair.settle()
    assert TrailersReceived in kinds(pair.client_events)
    assert ConnectionClosed in kinds(pair.server_events)


def test_a_ping_comes_back() -> None:
    """From either side."""
    pair = Pair()
    pair.settle()
    pair.server.ping()
    pair.client.ping()
    pair.settle()
    assert PingAcknowledged in kinds(pair.server_events)
    assert PingAcknowledged in kinds(pair.client_events)
