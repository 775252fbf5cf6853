"""Attempts to take all connections, streams and handshakes, or the time that they cost."""

from __future__ import annotations

import socket
import ssl
from contextlib import ExitStack, suppress
from typing import Final

from tests.attacks import http2, requests
from tests.attacks.connection import Connection
from tests.attacks.requests import BULK, HEALTH_WATCH, MESSAGING
from tests.attacks.target import NORMAL_TOPIC, Attack, Target

_STREAMS: Final = 10_000
_CHUNK: Final = 500
_HOLD_S: Final = 25.0
_FLOOD_CONNECTIONS: Final = 1500
_FLOOD_ADDRESSES: Final = 8
_HALF_OPEN: Final = 150
_RESETS: Final = 500


def telemetry_streams(target: Target) -> None:
    """Open 10,000 telemetry streams on each of two connections, and keep them."""
    _streams(target, MESSAGING + "Telemetry", b"", [""] * 2)


def streams_of_many(target: Target) -> None:
    """Open thousands of other lasting calls, from several addresses."""
    receive = requests.receive(NORMAL_TOPIC, "parked", polling_s=20)
    path, request = target.random.choice(
        [
            (HEALTH_WATCH, b""),
            (MESSAGING + "ReceiveMessage", receive),
            (BULK + "Append", b""),
        ]
    )
    sources = [_address(target, number) for number in range(3)]
    _streams(target, path, request, sources, count=_STREAMS // 4)


def _streams(
    target: Target, path: str, request: bytes, sources: list[str], *, count: int = _STREAMS
) -> None:
    with ExitStack() as stack:
        held = [stack.enter_context(target.connect(source=source)) for source in sources]
        for connection in held:
            for _ in range(count // _CHUNK):
                for _ in range(_CHUNK):
                    stream_id = connection.open(path, client_id="streams")
                    if request:
                        connection.message(stream_id, request)
                connection.flush()
                target.note(connection.read_for(min(0.05, target.left_s())))
        _hold(target, held, _HOLD_S)


def resets(target: Target) -> None:
    """Open calls and reset them at once, as fast as the server allows."""
    receive = requests.receive(NORMAL_TOPIC, "cancelled", batch=http2.WINDOW_MAX, invisible_s=1)
    with target.connect() as connection:
        for _ in range(20):
            for _ in range(_RESETS):
                stream_id = connection.open(MESSAGING + "ReceiveMessage", client_id="resets")
                connection.output += http2.frame(
                    http2.DATA,
                    b"\0" + len(receive).to_bytes(4, "big") + receive,
                    flags=http2.END_STREAM,
                    stream_id=stream_id,
                )
                connection.reset(stream_id)
            connection.flush()
            target.outcomes["reset by the client"] += _RESETS
            connection.read_for(min(1.0, target.left_s()))
            if not target.left_s():
                break


def control_frames(target: Target) -> None:
    """Send pings, settings and window updates without end."""
    pieces = (
        http2.frame(http2.PING, bytes(8)),
        http2.settings([]),
        http2.window_update(0, 1),
    )
    with target.connect(refills=False) as connection:
        for _ in range(20):
            connection.output += target.random.choice(pieces) * 1000
            connection.flush()
            target.outcomes["sent"] += 1000
            connection.read_for(min(0.5, target.left_s()))
            if not target.left_s():
                break


def header_blocks(target: Target) -> None:
    """Send header blocks that are too large, or that do not end."""
    large = [(f"x-header-{number}", "v" * 100) for number in range(200)]
    with target.connect() as connection:
        connection.open(MESSAGING + "Heartbeat", headers=large)
        connection.flush()
        target.outcomes["sent"] += 1
        target.note(connection.read_for(1.0))
    with target.connect() as connection:
        connection.output += http2.frame(http2.HEADERS, b"", stream_id=1)
        for _ in range(1000):
            connection.output += http2.frame(http2.CONTINUATION, b"\0\x01a\x01b", stream_id=1)
        connection.flush()
        target.note(connection.read_for(1.0))


def connection_flood(target: Target) -> None:
    """Open connections without end, from several addresses; some begin HTTP/2, some do not."""
    with ExitStack() as stack:
        for number in range(_FLOOD_CONNECTIONS):
            source = _address(target, number % _FLOOD_ADDRESSES)
            try:
                if number % 3:
                    stack.enter_context(target.connect(source=source))
                else:
                    stack.enter_context(_socket(target.port, source))
                target.outcomes["connected"] += 1
            except OSError:
                target.outcomes["not connected"] += 1
            target.pause(0.01)
            if not target.left_s():
                return
        target.pause(5.0)


def half_open_tls(target: Target) -> None:
    """Begin many TLS handshakes and do not go on; complete some and leave."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with ExitStack() as stack:
        for number in range(_HALF_OPEN):
            half = stack.enter_context(_socket(target.port, target.source))
            half.sendall(b"\x16\x03\x01"[: 1 + number % 3])
            if number % 10 == 0:
                with suppress(OSError), target.connect(tls=context):
                    target.outcomes["TLS"] += 1
            target.pause(0.02)
        target.pause(12.0)


def _hold(target: Target, connections: list[Connection], seconds: float) -> None:
    for _ in range(int(seconds)):
        for connection in connections:
            target.note(connection.read_for(min(1.0 / len(connections), target.left_s())))
        if not target.left_s():
            break
    for connection in connections:
        target.outcomes["kept"] += len(connection.calls)


def _address(target: Target, number: int) -> str:
    """Return another one of the addresses of the same attack."""
    return f"127.0.{2 + number}.{target.source.rpartition('.')[2]}"


def _socket(port: int, source: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=5, source_address=(source, 0))


ATTACKS: Final = (
    Attack("telemetry-streams", "F2.4", telemetry_streams, 1.0),
    Attack("streams-of-many", "F2.4", streams_of_many, 1.0),
    Attack("resets", "", resets, 1.0),
    Attack("control-frames", "", control_frames, 1.0),
    Attack("header-blocks", "", header_blocks, 1.0),
    Attack("connection-flood", "", connection_flood, 1.0),
    Attack("half-open-tls", "", half_open_tls, 1.0),
)
