"""Attempts to fill what the broker remembers of its callers, and the operators' HTTP server."""

from __future__ import annotations

import socket
from contextlib import ExitStack, suppress
from typing import Final

from tests.attacks import requests
from tests.attacks.requests import BULK, MESSAGING
from tests.attacks.target import NORMAL_TOPIC, Attack, Target

_NAMES: Final = 10
_SLOW_SCRAPES: Final = 200
_ACCEPTS: Final = (
    "application/openmetrics-text; version=9.x",
    "application/openmetrics-text; version=x",
    "application/openmetrics-text; version=1.x.0; charset=utf-8",
    "text/plain; version=0.0.4; escaping=nonsense",
    "a" * 10_000,
    "*/*",
)


def new_names(target: Target) -> None:
    """Use new names of everything: groups, clients, producers, topics, filters."""
    with target.connect() as connection:
        for _ in range(_NAMES):
            group, client = target.name("group"), target.name("client")
            calls = (
                (MESSAGING + "Heartbeat", requests.heartbeat(group), "names"),
                (MESSAGING + "Heartbeat", requests.heartbeat(), client),
                (MESSAGING + "QueryRoute", requests.query_route(target.name("topic")), "names"),
                (MESSAGING + "QueryRoute", requests.query_route("%RETRY%" + group), "names"),
            )
            for path, request, client_id in calls:
                target.note([connection.call(path, request, client_id=client_id)])
            receive = requests.receive(
                NORMAL_TOPIC, target.name("group"), expression=target.name("tag")
            )
            command = requests.subscribing(target.name("group"), [target.name("topic")])
            start = requests.append_start(NORMAL_TOPIC, target.random.randbytes(16))
            for path, request in (
                (MESSAGING + "ReceiveMessage", receive),
                (MESSAGING + "Telemetry", command),
                (BULK + "Append", start),
            ):
                stream_id = connection.open(path, client_id=target.name("client"))
                connection.message(stream_id, request, end=path.endswith("ReceiveMessage"))
            target.note(connection.read_for(0.02))
            for stream_id in list(connection.calls):
                connection.reset(stream_id)
            connection.flush()


def slow_scrapes(target: Target) -> None:
    """Ask for metrics a byte at a time, or without reading them."""
    request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
    with ExitStack() as stack:
        slow = []
        for _ in range(_SLOW_SCRAPES):
            try:
                slow.append(stack.enter_context(_http(target)))
                target.outcomes["connected"] += 1
            except OSError:
                target.outcomes["not connected"] += 1
            target.pause(0.01)
        for position in range(20):
            for client in slow:
                with suppress(OSError):
                    client.sendall(request[position : position + 1])
            target.pause(1.0)
            if not target.left_s():
                break


def bad_scrapes(target: Target) -> None:
    """Ask for metrics in formats that nobody knows, in words that are none, and read it all."""
    for accept in _ACCEPTS:
        lines = f"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}"
        target.outcomes[_scrape(target, lines)] += 1
        target.pause(1.0)
    for lines in ("GET /" + "a" * 70_000, "NONSENSE", "POST /metrics HTTP/1.1"):
        target.outcomes[_scrape(target, lines)] += 1


def _scrape(target: Target, lines: str) -> str:
    """Return the status of the answer."""
    with _http(target) as client:
        client.sendall(f"{lines}\r\nConnection: close\r\n\r\n".encode())
        answer = client.recv(100)
        while client.recv(1 << 16):
            pass
    words = answer.split()
    is_http = answer.startswith(b"HTTP/") and len(words) > 1
    return f"http {words[1].decode()}" if is_http else "http without a status"


def _http(target: Target) -> socket.socket:
    return socket.create_connection(
        ("127.0.0.1", target.metrics_port), timeout=5, source_address=(target.source, 0)
    )


ATTACKS: Final = (
    Attack("new-names", "F2.8", new_names, 1.5),
    Attack("slow-scrapes", "F2.8", slow_scrapes, 1.0),
    Attack("bad-scrapes", "F2.7", bad_scrapes, 2.0),
)
