"""Attempts to make the broker hold, or make, much more than was sent to it."""

from __future__ import annotations

import zlib
from contextlib import ExitStack
from functools import lru_cache
from typing import Final

from tests.attacks import requests
from tests.attacks.connection import Connection
from tests.attacks.protobuf import text
from tests.attacks.requests import ADMIN, BULK, MESSAGING
from tests.attacks.target import LARGE_MESSAGES, LARGE_TOPIC, WIDE_TOPIC, Attack, Target

_BOMB_BYTES: Final = 64 << 20
_SMALL_BOMB_BYTES: Final = (4 << 20) - 64
"""What calls other than SendMessage may take."""
_BOMB_SHARES: Final = (1, 16, 256)
"""The whole of it, a part, a small part: limits lie in between."""
_LENGTHS: Final = (200, 4_000, 60_000, 1_000_000)
_PIECE: Final = 1 << 20
_HOLD_S: Final = 20.0
_UNREAD_CONNECTIONS: Final = 10
_UNREAD_CALLS: Final = 70
_SLOW_READERS: Final = 12
_UNFINISHED_CONNECTIONS: Final = 32
_UNFINISHED_STREAMS: Final = 16

_BOMBS: Final = (
    (MESSAGING + "SendMessage", _BOMB_BYTES, text(1, b"")),
    (MESSAGING + "AckMessage", _SMALL_BOMB_BYTES, text(3, b"")),
    (MESSAGING + "SendMessage", _BOMB_BYTES, text(1, text(3, text(2, b"") * 50))),
    (ADMIN + "PutTopic", _SMALL_BOMB_BYTES, text(7, b"")),
    (MESSAGING + "SyncLiteSubscription", _SMALL_BOMB_BYTES, text(4, b"")),
    (MESSAGING + "SendMessage", _BOMB_BYTES, text(4, b"x" * 1000)),
    (MESSAGING + "QueryRoute", _SMALL_BOMB_BYTES, text(2, text(2, b"") * 60)),
)
"""What fills a request when it is repeated: empty messages and the like."""


@lru_cache
def bomb_of(number: int, share: int = 1) -> bytes:
    """Return a gzip'd request that is a thousand times larger once it is unpacked."""
    _, size, piece = _BOMBS[number]
    packer = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    block = piece * (_PIECE // len(piece))
    blocks, rest = divmod(size // share, len(block))
    packed = [packer.compress(block) for _ in range(blocks)]
    packed.append(packer.compress(piece * (rest // len(piece))))
    return b"".join((*packed, packer.flush()))


def bomb(target: Target) -> None:
    """Send requests that unpack to millions of entries."""
    number = sum(target.outcomes.values()) % len(_BOMBS)
    packed = bomb_of(number, target.random.choice(_BOMB_SHARES))
    with target.connect() as connection:
        answer = connection.call(_BOMBS[number][0], packed, client_id="bomb", packed=True)
        target.note([answer])


def copied_fields(target: Target) -> None:
    """Send fields that an answer repeats for each queue; read little of it."""
    long = "n" * target.random.choice(_LENGTHS)
    many = requests.endpoints("h" * 200, count=len(long) // 200)
    for path, request in (
        ("QueryRoute", requests.query_route(WIDE_TOPIC, namespace=long)),
        ("QueryAssignment", requests.query_assignment(WIDE_TOPIC, "copied", namespace=long)),
        ("QueryRoute", requests.query_route(WIDE_TOPIC, where=many)),
        ("QueryRoute", requests.query_route(WIDE_TOPIC, where=requests.endpoints(long))),
    ):
        with target.connect(window_bytes=65535, refills=False) as connection:
            stream_id = connection.open(MESSAGING + path, client_id="copied")
            answer = connection.calls[stream_id]
            connection.message(stream_id, request)
            connection.read_for(min(2.0, target.left_s()))
            target.note([answer])


def unread_answers(target: Target) -> None:
    """Ask for large messages with windows of nothing, answer every ping, and wait."""
    with ExitStack() as stack:
        unread = [
            stack.enter_context(target.connect(window_bytes=0)) for _ in range(_UNREAD_CONNECTIONS)
        ]
        for number in range(_UNREAD_CALLS):
            for connection in unread:
                request = requests.get_message(LARGE_TOPIC, number % 4, number % 8)
                connection.message(connection.open(ADMIN + "GetMessage"), request)
            _read_all(target, unread, 0.01)
        _hold(target, unread)


def slow_readers(target: Target) -> None:
    """Receive, pull and fetch large messages, and read 64 KiB of them."""
    with ExitStack() as stack:
        slow = [
            stack.enter_context(target.connect(window_bytes=65535, refills=False))
            for _ in range(_SLOW_READERS)
        ]
        for number, connection in enumerate(slow):
            group = f"slow-{number % 4}"
            request = requests.receive(LARGE_TOPIC, group, invisible_s=1)
            _begin(connection, MESSAGING + "ReceiveMessage", request)
            request = requests.pull(LARGE_TOPIC, group, number % 4, 0)
            _begin(connection, MESSAGING + "PullMessage", request)
            _begin(connection, BULK + "Fetch", requests.fetch_topic(LARGE_TOPIC))
        _hold(target, slow)


def unfinished_requests(target: Target) -> None:
    """Send nearly all of many requests."""
    piece = b"\0" + ((1 << 20) - 10).to_bytes(4, "big") + bytes((1 << 20) - 4096)
    with ExitStack() as stack:
        halves = [stack.enter_context(target.connect()) for _ in range(_UNFINISHED_CONNECTIONS)]
        for connection in halves:
            for _ in range(_UNFINISHED_STREAMS):
                stream_id = connection.open(MESSAGING + "SendMessage", client_id="half")
                connection.data(stream_id, piece, end=False)
            _read_all(target, [connection], 0.01)
        _hold(target, halves)


def trickled_requests(target: Target) -> None:
    """Send requests a few bytes at a time."""
    with target.connect() as connection:
        streams = [connection.open(MESSAGING + "SendMessage", client_id="drip") for _ in range(200)]
        for stream_id in streams:
            connection.data(stream_id, b"\0\0\x10\0\0", end=False)
        for _ in range(20):
            for stream_id in streams:
                connection.data(stream_id, b"\x0a", end=False)
            _read_all(target, [connection], 0.5)
            if not target.left_s():
                break
        target.note(connection.calls.values())


def large_messages(target: Target) -> None:
    """Send large messages, so that there are always some to be read slowly."""
    with target.connect() as connection:
        body = bytes(1 << 20)
        for number in range(LARGE_MESSAGES // 16):
            request = requests.send(LARGE_TOPIC, body, f"large-{number}")
            target.note([connection.call(MESSAGING + "SendMessage", request, client_id="large")])


def _begin(connection: Connection, path: str, request: bytes) -> None:
    connection.message(connection.open(path, client_id="slow"), request)


def _hold(target: Target, connections: list[Connection]) -> None:
    """Stay for a while, answering pings; then count what was never answered as well."""
    for _ in range(int(_HOLD_S)):
        _read_all(target, connections, 1.0 / len(connections))
        if not target.left_s():
            break
    for connection in connections:
        target.note(connection.calls.values())


def _read_all(target: Target, connections: list[Connection], seconds: float) -> None:
    for connection in connections:
        target.note(connection.read_for(min(seconds, target.left_s())))


ATTACKS: Final = (
    Attack("bombs", "F2.1", bomb, 1.0),
    Attack("copied-fields", "F2.2", copied_fields, 1.0),
    Attack("unread-answers", "F2.3", unread_answers, 2.0),
    Attack("slow-readers", "F2.5", slow_readers, 1.0),
    Attack("unfinished-requests", "F2.3", unfinished_requests, 5.0),
    Attack("trickled-requests", "", trickled_requests, 1.0),
    Attack("large-messages", "", large_messages, 10.0),
)
