"""Some clients take all they can get: others, and operators, are served all the same."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

import pytest

from commitbus.broker.rpc.call import StatusCode
from commitbus.broker.rpc.http2.engine import ResponseReceived

# Defined in conftest.py, which a test module cannot import.
Start = Callable[..., Any]

OK = 0
ALL_I_CAN = 2**31 - 1
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"


def refused_of(
    client: Any, name: str, count: int, at_once: int = 500, extra: tuple[Any, ...] = ()
) -> int:
    """Open so many calls, of "Half" only the headers; return how many of them are refused."""
    opened, refused = 0, 0
    is_half, name = name in ("Chat", "Half"), name.replace("Half", "Count")
    while opened < count:
        for _ in range(min(at_once, count - opened)):
            client.open(name, body=None if is_half else b"", extra=extra)
            opened += 1
        client.flush()
        marker = client.open("Nonsense")
        client.flush()
        while True:
            event = client.read_until(ResponseReceived)
            if event.stream_id == marker:
                break
            refused += dict(event.headers).get(b"grpc-status") == b"8"
    return refused


def pass_time(clients: list[Any], until: Callable[[], bool]) -> None:
    """Have clients read, and answer pings and settings, until something is so."""
    deadline = time.monotonic() + 20
    while not until():
        assert time.monotonic() < deadline
        ready, _, _ = select.select([c.socket for c in clients if not c.is_closed], [], [], 0.05)
        for client in clients:
            if client.socket in ready:
                client.read()
                with suppress(ConnectionError):
                    client.flush()


# Bytes


def test_unread_answers_are_bounded_over_all_connections(start_abused: Start) -> None:
    """Six that take nothing and answer pings: those that hold most are closed, nobody else."""
    server = start_abused()
    other = server.connect()
    stingy = [server.connect(window_bytes=0) for _ in range(6)]
    for client in stingy:
        for _ in range(60):
            client.open("Answer")
            with suppress(ConnectionError):
                client.flush()
        assert other.handlers() == 0
    time.sleep(1.1)  # Whoever takes nothing for a second is stuck.
    for _ in range(100):
        last = server.connect(window_bytes=0)
        last.open("Answer")
        last.flush()
    assert other.handlers() == 0
    pass_time(stingy, lambda: any(client.is_closed for client in stingy))
    assert server.peak_growth_mb() < 110


def test_who_holds_little_is_not_refused_because_others_hold_much(start_abused: Start) -> None:
    """Those read slowly, and are not stuck; a client with one answer under way goes on."""
    server = start_abused(unsent_in_all_bytes=16 << 20)
    stingy = [server.connect(window_bytes=0) for _ in range(5)]
    other = server.connect(window_bytes=200_000)
    for client in stingy:
        for _ in range(16):
            client.open("Answer")
        client.flush()
        client.read_until(ResponseReceived)
    # Of this one 800 KB wait: more than is free, and less than a 16th of all.
    first = opened(other, "Answer")
    other.read_until(ResponseReceived, first)
    second = opened(other, "Count")
    assert b"grpc-status" not in dict(other.read_until(ResponseReceived, second).headers)


def test_who_answers_pings_and_takes_nothing_is_closed(start_abused: Start) -> None:
    """After the time that a write may take; who has nothing to take stays."""
    server = start_abused(write_s=1.0, keepalive_s=0.2)
    stingy, idle = server.connect(window_bytes=0), server.connect()
    stingy.open("Answer")
    stingy.flush()
    began_s = time.monotonic()
    pass_time([stingy, idle], lambda: stingy.is_closed)
    assert time.monotonic() - began_s > 0.9
    assert idle.handlers() == 0


def test_a_byte_now_and_then_is_not_enough(start_abused: Start) -> None:
    """Or a client could keep what it does not read for ever."""
    server = start_abused(write_s=1.0)
    stingy = server.connect(window_bytes=0)
    stream_id = stingy.open("Answer")
    stingy.flush()
    deadline = time.monotonic() + 20
    while not stingy.is_closed:
        assert time.monotonic() < deadline
        with suppress(ConnectionError):
            # WINDOW_UPDATE of one byte.
            stingy.socket.sendall(b"\0\0\4\x08\0" + stream_id.to_bytes(4) + (1).to_bytes(4))
        pass_time([stingy], lambda: True)
        stingy.socket.settimeout(0.1)
        with suppress(TimeoutError):
            stingy.read()


def test_headers_of_incomplete_requests_are_counted(start_abused: Start) -> None:
    """HPACK makes 4 KB of 20 bytes, and a request that never ends keeps them."""
    server = start_abused(held_request_bytes=8 << 20)
    client, other = server.connect(), server.connect()
    large = tuple((b"x-large-%d" % index, b"x" * 900) for index in range(4))
    assert refused_of(client, "Half", 9_000, extra=large) > 6_000
    assert other.handlers() == 0
    assert server.peak_growth_mb() < 40


def parked_late(client: Any, count: int, extra: tuple[Any, ...]) -> None:
    """Park calls whose requests come in packets behind those of their headers."""
    streams = [client.open("Park", body=None, extra=extra) for _ in range(count)]
    client.flush()
    client.handlers()
    for stream_id in streams:
        client.engine.submit_data(stream_id, b"\0\0\0\0\0", end_stream=True)
    client.flush()
    client.handlers()


def test_headers_that_were_shortened_count_no_more(start_abused: Start) -> None:
    """Of a parked call 2 KB are kept: with more counted, its connection would be refused."""
    server = start_abused(held_request_bytes=1 << 20)
    client = server.connect()
    large = tuple((b"x-large-%d" % index, b"x" * 1500) for index in range(8))
    for _ in range(10):
        parked_late(client, 20, large)
    assert client.handlers() == 200
    assert refused_of(client, "Half", 10) == 0


def test_whose_calls_are_all_at_work_is_not_left_uncounted(start_abused: Start) -> None:
    """There is nothing to refuse then, so the connection goes; else it could hold anything."""
    server = start_abused(held_request_bytes=256 << 10)
    client, other = server.connect(), server.connect()
    large = tuple((b"x-large-%d" % index, b"x" * 1000) for index in range(2))
    with suppress(ConnectionError, pytest.fail.Exception):
        for _ in range(20):
            parked_late(client, 20, large)
        time.sleep(1.1)  # Whoever has not gone on for a second is asked first.
        refused = refused_of(client, "Half", 2_000, extra=large)
        assert refused > 1_000, f"{refused} of 2,000 incomplete requests were refused"
    assert other.handlers() < 400


def test_a_request_that_does_not_come_is_given_up(start_abused: Start) -> None:
    """However alive its connection is."""
    server = start_abused(request_s=0.5)
    client = server.connect()
    incomplete = client.open("Count", body=None)
    client.engine.submit_data(incomplete, b"\0\0")
    lasting = client.open("Ignore", body=None)
    client.flush()
    assert client.status_of(incomplete) == StatusCode.DEADLINE_EXCEEDED
    assert client.handlers() == 1
    assert lasting


# Calls


def test_streams_that_last_lock_nobody_out(start_abused: Start) -> None:
    """Two connections of 10,000 each, with the limits that a broker has."""
    server = start_abused(calls_max=30_000)
    for _ in range(2):
        hog = server.connect()
        assert refused_of(hog, "Chat", 9_900) == 8_900
    same, other = server.connect(), server.connect(address="127.0.0.2")
    assert same.handlers() == other.handlers() == 2_000
    assert refused_of(same, "Chat", 100) == refused_of(other, "Park", 1_000) == 0


def test_a_connection_may_park_ten_thousand_calls(start_abused: Start) -> None:
    """And an address twenty thousand: a share costs those nothing that are alone."""
    server = start_abused(calls_max=30_000)
    for _ in range(2):
        assert refused_of(server.connect(), "Park", 5_000) == 0
    client = server.connect()
    client.wait_for_handlers(10_000)


def test_an_address_has_a_share_of_the_calls(start_abused: Start) -> None:
    """Two of three, however many its connections; the next address gets most of the rest."""
    server = start_abused(calls_max=300)
    hogs = [server.connect(address="127.0.0.2") for _ in range(10)]
    assert sum(refused_of(hog, "Park", 100) for hog in hogs) == 1000 - 240
    other = server.connect(address="127.0.0.3")
    assert refused_of(other, "Park", 15) == 0
    assert other.handlers() == 240 + 15
    # Nothing of it stays when they have gone.
    for hog in hogs:
        hog.socket.close()
    other.wait_for_handlers(15)
    assert refused_of(server.connect(address="127.0.0.2"), "Park", 90) == 0


def test_operators_are_served_when_all_calls_are_taken(start_abused: Start) -> None:
    """From a reserve, of which a connection has a share, too."""
    server = start_abused(calls_max=60, operator_calls=30)
    hogs = [server.connect(address=f"127.0.0.{index}") for index in range(2, 9)]
    for hog in hogs:
        refused_of(hog, "Park", 60)
    operator = server.connect(address="127.0.0.99")
    assert operator.status_of(opened(operator, "Count")) == StatusCode.RESOURCE_EXHAUSTED
    for _ in range(50):
        assert operator.handlers("Operate") == 60
    # Those of the reserve that are not read, by one who wants it for itself.
    greedy = server.connect(address="127.0.0.98", window_bytes=0)
    for _ in range(40):
        opened(greedy, "Operate")
    assert operator.handlers("Operate") == 60


def opened(client: Any, name: str) -> int:
    """Make a call."""
    stream_id = client.open(name)
    client.flush()
    return int(stream_id)


def test_a_call_keeps_its_place_until_its_handler_has_ended(start_abused: Start) -> None:
    """Unread answers as well: a place is free when nothing is left of the call."""
    server = start_abused(calls_max=200)
    client = server.connect(window_bytes=0)
    assert refused_of(client, "Count", 101, at_once=10) == 1
    other = server.connect()
    assert other.handlers() == 0
    client.socket.close()
    for _ in range(100):
        again = server.connect(window_bytes=0)
        if not refused_of(again, "Count", 90, at_once=10):
            return
        again.socket.close()
        time.sleep(0.05)
    pytest.fail("places were lost")


# Connections


def test_operators_connect_when_all_connections_are_taken(start_abused: Start) -> None:
    """Whoever comes then may make operators' calls only, and makes room when it is idle."""
    server = start_abused(connections_max=6, operator_connections=2)
    first = [server.connect(address=f"127.0.0.{index % 3 + 2}") for index in range(5)]
    late = first[0]
    for _ in range(10):
        late = server.connect(address="127.0.0.9")
        assert late.status_of(opened(late, "Park")) == StatusCode.RESOURCE_EXHAUSTED
        assert late.handlers("Operate") == 0
    assert [client.handlers() for client in first] == [0] * 5
    # One that was let in becomes like any other when there is room.
    first[0].socket.close()
    deadline = time.monotonic() + 20
    while late.status_of(opened(late, "Count")) != OK:
        assert time.monotonic() < deadline


def test_an_address_has_a_share_of_the_connections(start_abused: Start) -> None:
    """Four of five."""
    server = start_abused(connections_max=21, operator_connections=0)
    for _ in range(16):
        server.connect(address="127.0.0.2")
    to = ("127.0.0.1", server.port)
    refused = socket.create_connection(to, timeout=20, source_address=("127.0.0.2", 0))
    with refused, suppress(ConnectionError):
        refused.sendall(PREFACE)
        assert refused.recv(1) == b""
    assert server.connect(address="127.0.0.3").handlers() == 0


def test_silent_connections_keep_nobody_out(start_abused: Start) -> None:
    """Neither other addresses nor their own: the one that is silent for longest makes room."""
    server = start_abused(strangers_max=10, preface_s=60.0)
    with ExitStack() as stack:
        for _ in range(50):
            stack.enter_context(
                socket.create_connection(
                    ("127.0.0.1", server.port), timeout=20, source_address=("127.0.0.2", 0)
                )
            )
        assert server.connect(address="127.0.0.2").handlers() == 0
        assert server.connect(address="127.0.0.3").handlers() == 0


# Work


def test_many_streams_that_wait_cost_nothing_for_each_packet(start_abused: Start) -> None:
    """A client with 5,000 responses that wait must not have them walked for a ping."""
    server = start_abused()
    client, other = server.connect(window_bytes=0), server.connect()
    # The first ones fill what a connection may have in its queue, so that the others wait.
    for name in ["Pour"] * 300 + ["Drip"] * 4_700:
        client.open(name)
    client.flush()
    other.wait_for_handlers(5_000)
    before_s = server.cpu_s()
    for _ in range(400):
        client.engine.ping()
        client.flush()
        client.read()
    assert server.cpu_s() - before_s < 0.3


def test_of_who_does_not_read_no_more_is_read(start_abused: Start) -> None:
    """What it sends wants to be answered, and there is nowhere to put it."""
    server = start_abused()
    other, client = server.connect(), server.connect(window_bytes=ALL_I_CAN)
    for _ in range(16):
        client.open("Answer")
    client.flush()
    time.sleep(0.5)
    client.socket.settimeout(1.0)
    unknown = (b"\0\x40\0\x77\0\0\0\0\0" + bytes(1 << 14)) * 4000
    with pytest.raises(TimeoutError):
        client.socket.sendall(unknown)
    assert other.handlers() == 0
