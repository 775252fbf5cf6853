"""Clients that are hostile, broken or gone: the server stays small, and serves the others."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from commitbus.broker.rpc.call import StatusCode
from commitbus.broker.rpc.http2.engine import (
    DataReceived,
    ErrorCode,
    GoAwayReceived,
    StreamClosed,
)

ALL_I_CAN = 2**31 - 1
# Defined in conftest.py, which a test module cannot import.
Start = Callable[..., Any]

HEADERS, SETTINGS, PING, CONTINUATION = 1, 4, 6, 9


def frame(kind: int, payload: bytes, *, flags: int = 0, stream_id: int = 0) -> bytes:
    """A frame of HTTP/2, right or wrong."""
    return (
        struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream_id) + payload
    )


def flood(client: Any, piece: bytes, pieces_max: int) -> None:
    """Send the same again and again until the server has enough."""
    for _ in range(pieces_max):
        try:
            client.socket.sendall(piece)
        except ConnectionError:
            return
    pytest.fail("the server took it all")


def last_error(events: list[Any]) -> int:
    """The error code that the server ended the connection with."""
    return [event.error_code for event in events if isinstance(event, GoAwayReceived)][-1]


def test_a_slow_reader_costs_little_and_is_given_up(start_abused: Start) -> None:
    """Fifty endless responses and the widest windows: handlers wait, and are then cancelled."""
    server = start_abused(write_s=1.0)
    slow, other = server.connect(window_bytes=ALL_I_CAN), server.connect()
    for _ in range(50):
        slow.open("Pour")
    slow.flush()
    other.wait_for_handlers(50)
    other.wait_for_handlers(0)
    assert server.peak_growth_mb() < 30


def test_a_reader_that_grants_no_window_costs_little(start_abused: Start) -> None:
    """It reads, it answers pings, and it never lets a response stream go on."""
    server = start_abused()
    stingy, other = server.connect(window_bytes=1000), server.connect()
    for _ in range(200):
        stingy.open("Pour")
    stingy.flush()
    other.wait_for_handlers(200)
    time.sleep(0.3)
    assert other.handlers() == 200
    assert server.peak_growth_mb() < 30


def test_ten_thousand_polls_may_be_opened_and_reset(start_abused: Start) -> None:
    """What an official client does that stops: its connection goes on, every handler ends."""
    server = start_abused()
    client = server.connect()
    for _ in range(100):
        polls = [client.open("Park") for _ in range(100)]
        client.flush()
        for stream_id in polls:
            client.engine.reset(stream_id, ErrorCode.CANCEL)
        client.flush()
    client.wait_for_handlers(0)
    assert server.peak_growth_mb() < 20


def test_a_rapid_reset_flood_ends_the_connection(start_abused: Start) -> None:
    """Streams that are opened and reset without end (CVE-2023-44487)."""
    # The default is for machines that are never as slow as one that runs tests.
    server = start_abused(engine={"resets": (5000, 10)})
    client = server.connect()
    for _ in range(1000):
        polls = [client.open("Park") for _ in range(100)]
        opened = client.engine.take_output()
        for stream_id in polls:
            client.engine.reset(stream_id, ErrorCode.CANCEL)
        try:
            client.socket.sendall(opened + client.engine.take_output())
        except ConnectionError:
            break
    else:
        pytest.fail("100,000 resets were not too many")
    server.connect().wait_for_handlers(0)
    assert server.peak_growth_mb() < 30


def test_an_endless_header_block_ends_the_connection(start_abused: Start) -> None:
    """CONTINUATION frames without end (CVE-2024-27316)."""
    server = start_abused()
    client = server.connect()
    # A literal field, never indexed, with a name and a value of one byte each.
    client.socket.sendall(frame(HEADERS, b"\x10\x01a\x01b", stream_id=1))
    client.socket.sendall(frame(CONTINUATION, b"\x10\x01a\x01b" * 100, stream_id=1) * 100)
    assert last_error(client.read_to_the_end()) == ErrorCode.ENHANCE_YOUR_CALM
    assert server.connect().handlers() == 0
    assert server.peak_growth_mb() < 10


def test_an_endless_block_of_nothing_ends_the_connection(start_abused: Start) -> None:
    """CONTINUATION frames that carry no field at all."""
    server = start_abused()
    client = server.connect()
    client.socket.sendall(frame(HEADERS, b"", stream_id=1))
    flood(client, frame(CONTINUATION, b"", stream_id=1) * 1000, 10_000)
    assert server.connect().handlers() == 0
    assert server.peak_growth_mb() < 10


def test_a_header_bomb_ends_the_connection(start_abused: Start) -> None:
    """One large field in HPACK's table, then a byte for each further copy of it."""
    server = start_abused()
    client = server.connect()
    block = b"\x40\x01a\x7f\xa1\x1e" + b"b" * 4000 + b"\xbe" * 10_000
    client.socket.sendall(frame(HEADERS, block, flags=4, stream_id=1))
    assert last_error(client.read_to_the_end()) == ErrorCode.ENHANCE_YOUR_CALM
    assert server.connect().handlers() == 0
    assert server.peak_growth_mb() < 10


@pytest.mark.parametrize(
    "piece",
    [frame(PING, bytes(8)) * 4000, frame(SETTINGS, b"") * 4000],
    ids=["ping", "settings"],
)
def test_a_flood_that_wants_acknowledgements_ends_the_connection(
    start_abused: Start, piece: bytes
) -> None:
    """From a client that does not read them."""
    server = start_abused()
    client = server.connect()
    flood(client, piece, 10_000)
    assert server.connect().handlers() == 0
    assert server.peak_growth_mb() < 20


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


@pytest.mark.parametrize(
    "beginning",
    [b"", b"PRI", PREFACE, PREFACE + frame(SETTINGS, bytes(60))[:30], b"\x16\x03\x01"],
    ids=["nothing", "part of the preface", "no settings", "part of the settings", "part of TLS"],
)
def test_a_half_open_connection_is_closed(start_abused: Start, beginning: bytes) -> None:
    """A client that connects and then says nothing, or not enough."""
    server = start_abused(preface_s=0.5)
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as stranger:
        stranger.sendall(beginning)
        # Closed before it has read everything, as on a busy machine, a connection is reset.
        with contextlib.suppress(ConnectionResetError):
            while stranger.recv(1000):
                pass
    assert server.connect().handlers() == 0


def test_a_client_that_vanished_is_noticed(start_abused: Start) -> None:
    """It answers no ping, because its machine is gone: its long polls are cancelled."""
    server = start_abused(keepalive_s=0.5, keepalive_timeout_s=0.5)
    vanished, other = server.connect(), server.connect()
    vanished.open("Park")
    vanished.flush()
    other.wait_for_handlers(1)
    other.wait_for_handlers(0)


def test_a_client_that_answers_pings_stays(start_abused: Start) -> None:
    """However long it has nothing else to say."""
    server = start_abused(keepalive_s=0.2, keepalive_timeout_s=5.0)
    client = server.connect()
    client.socket.settimeout(0.05)
    until = time.monotonic() + 1
    while time.monotonic() < until:
        try:
            client.read()
        except TimeoutError:
            continue
        client.flush()
    client.socket.settimeout(20)
    assert client.handlers() == 0


@pytest.mark.parametrize("name", ["Count", "Measure"])
def test_incomplete_requests_are_bounded_in_all(start_abused: Start, name: str) -> None:
    """Whoever goes on sending beyond the server's limit is refused; small calls still pass."""
    server = start_abused(held_request_bytes=4 << 20)
    clients = [server.connect() for _ in range(4)]
    for client in clients:
        for _ in range(16):
            stream_id = client.open(name, body=None)
            client.engine.submit_data(stream_id, b"\0\0\x10\0\0" + bytes(200_000))
            client.flush()
    statuses = []
    for client in clients:
        client.socket.settimeout(0.5)
        try:
            while not client.is_closed:
                statuses += [
                    dict(event.headers)[b"grpc-status"]
                    for event in client.read()
                    if hasattr(event, "headers")
                ]
                client.flush()
        except TimeoutError:
            client.socket.settimeout(20)
    assert statuses
    assert set(statuses) == {b"%d" % StatusCode.RESOURCE_EXHAUSTED}
    assert server.connect().handlers() == 0
    assert server.peak_growth_mb() < 40


def test_requests_that_no_handler_takes_fill_a_window_and_no_more(start_abused: Start) -> None:
    """The client is stopped by flow control; its connection serves its other calls."""
    server = start_abused()
    client = server.connect()
    for _ in range(10):
        stream_id = client.open("Ignore", body=None)
        for _ in range(100):
            client.engine.submit_data(stream_id, b"\0\0\0\xff\0" + bytes(0xFF00))
    client.flush()
    client.wait_for_handlers(10)
    assert server.peak_growth_mb() < 30


def test_connections_over_the_limit_are_closed(start_abused: Start) -> None:
    """At once, and only those."""
    server = start_abused(connections_max=3)
    first = server.connect()
    server.connect()
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as refused:
        assert refused.recv(1) == b""
    assert first.handlers() == 0


def test_strangers_over_the_limit_are_closed(start_abused: Start) -> None:
    """Whoever speaks HTTP/2 is none."""
    server = start_abused(strangers_max=2, preface_s=60.0)
    known = server.connect()
    with ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=20))
            for _ in range(3)
        ]
        (refused,), _, _ = select.select(silent, [], [], 20)
        assert refused.recv(1) == b""
        assert known.handlers() == 0


def test_streams_over_the_limit_are_refused(start_abused: Start) -> None:
    """RESOURCE_EXHAUSTED, and the calls in flight go on: one connection's share is a half."""
    server = start_abused(calls_max=200)
    client = server.connect()
    for _ in range(99):
        client.open("Park")
    client.flush()
    client.wait_for_handlers(99)
    client.open("Park")
    refused = client.open("Park")
    client.flush()
    assert client.status_of(refused) == StatusCode.RESOURCE_EXHAUSTED


def test_however_a_call_ends_its_place_is_free_again(start_abused: Start) -> None:
    """And what was held of its request is given back: nothing leaks, not even slowly."""
    server = start_abused(calls_max=10, held_request_bytes=400_000)
    for _ in range(30):
        client = server.connect()
        half = b"\0\0\x01\0\0" + bytes(50_000)
        for name, body in (("Park", b""), ("Count", None), ("Ignore", None), ("Measure", None)):
            stream_id = client.open(name, body=body)
            if body is None:
                client.engine.submit_data(stream_id, half)
            client.flush()
            if name != "Measure":  # that one ends with its connection
                client.engine.reset(stream_id, ErrorCode.CANCEL)
        client.flush()
        # Refused by its prefix, answered, and of an unknown method.
        too_large = client.open("Measure", body=None)
        client.engine.submit_data(too_large, b"\0\xff\xff\xff\xff")
        unknown = client.open("Nonsense")
        client.flush()
        assert client.status_of(too_large) == StatusCode.RESOURCE_EXHAUSTED
        assert unknown
        client.wait_for_handlers(0)
        client.socket.close()
    last = server.connect()
    for _ in range(7):
        last.open("Park")
    last.flush()
    last.wait_for_handlers(7)


def test_bytes_for_a_stream_that_was_answered_do_not_use_up_the_connection(
    start_abused: Start,
) -> None:
    """A refused upload that goes on must not take the window from the calls beside it."""
    server = start_abused(max_message_bytes=1000)
    client = server.connect()
    for _ in range(40):
        stream_id = client.open("Count", body=None)
        client.engine.submit_data(stream_id, b"\0\x7f\0\0\0" + bytes(900_000))
        client.flush()
        client.read_until(StreamClosed, stream_id)
    stream_id = client.open("Count")
    client.flush()
    client.read_until(DataReceived, stream_id)
