"""The HTTP server of `/metrics`: bounded connections, no threads of their own, a time for each.

One request a connection, as Prometheus' own servers do. A scrape runs in a worker thread, one at a
time. Whoever reads slowly keeps nobody waiting but those beyond `SCRAPES_MAX`, and not for long.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from typing import Final, NamedTuple, final

import trio

from commitbus.broker.rpc.listen.sockets import open_listeners

CONNECTIONS_MAX: Final = 64
"""At the same time; more are closed as soon as they are accepted."""
SCRAPES_MAX: Final = 4
"""Whose answers are made or read at the same time: one may take some MB. Others wait in line."""
HEAD_BYTES_MAX: Final = 8 * 1024
REQUEST_S: Final = 5.0
"""For all of a request's head to arrive."""
TURN_S: Final = 30.0
"""For a turn, and for the scrape."""
READ_S: Final = 10.0
"""For the client to read all of the answer."""
_READ_BYTES: Final = 4096

_log = logging.getLogger(__name__)


@final
class HttpRequest(NamedTuple):
    """The head of a request; there is no body that would be read."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    """By lower-case name."""


@final
class HttpResponse(NamedTuple):
    """An answer, but for what all answers have."""

    status: str
    """`200 OK`."""
    headers: list[tuple[str, str]]
    body: bytes


Answer = Callable[[HttpRequest], HttpResponse]
"""Returns the answer to a request. It runs in a worker thread."""


@asynccontextmanager
async def serve_http(answer: Answer, listen: str) -> AsyncIterator[int]:
    """Answer requests while the block runs, and give the port.

    Args:
        answer: what makes the answers, one at a time.
        listen: `HOST:PORT`; port 0 takes a free one.

    Raises:
        ListenError: the address cannot be listened on.
    """
    with open_listeners(listen, None) as listeners:
        server = _HttpServer(answer)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, server.serve, listeners.sockets)
            yield listeners.port
            nursery.cancel_scope.cancel()


@final
class _HttpServer:
    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._connections = 0
        self._scrapes = trio.Semaphore(SCRAPES_MAX)
        self._worker = trio.CapacityLimiter(1)

    async def serve(self, stream: trio.SocketStream) -> None:
        """Serve a connection."""
        async with stream:
            if self._connections >= CONNECTIONS_MAX:
                return
            self._connections += 1
            try:
                with suppress(trio.BrokenResourceError):
                    await self._serve_one(stream)
            finally:
                self._connections -= 1

    async def _serve_one(self, stream: trio.SocketStream) -> None:
        head = None
        with trio.move_on_after(REQUEST_S):
            head = await _read_head(stream)
        if head is None:
            return
        request = _parse(head)
        if request is None:
            await _send(stream, _refusal(HTTPStatus.BAD_REQUEST))
            return
        with trio.move_on_after(TURN_S) as turn:
            async with self._scrapes:
                response = await trio.to_thread.run_sync(
                    self._answered, request, limiter=self._worker
                )
                turn.deadline = math.inf
                await _send(stream, response)

    def _answered(self, request: HttpRequest) -> HttpResponse:
        try:
            return self._answer(request)
        except Exception:  # noqa: BLE001 - whatever it is, the next scrape may work
            _log.exception("a scrape failed")
            return _refusal(HTTPStatus.INTERNAL_SERVER_ERROR)


async def _send(stream: trio.SocketStream, response: HttpResponse) -> None:
    with trio.move_on_after(READ_S):
        await stream.send_all(_encoded(response))


async def _read_head(stream: trio.SocketStream) -> bytes | None:
    """Return a request's head, as much as there is of one that is too long; None without one."""
    head = b""
    while b"\r\n\r\n" not in head:
        data = await stream.receive_some(_READ_BYTES)
        if not data:
            return None
        head += data
        if len(head) > HEAD_BYTES_MAX:
            break
    return head


def _parse(head: bytes) -> HttpRequest | None:
    """Return what a head says; None if it is none."""
    text, end, _ = head.decode("latin-1").partition("\r\n\r\n")
    first, *lines = text.split("\r\n")
    words = first.split(" ")
    if not end or len(words) != 3 or not words[2].startswith("HTTP/1."):
        return None
    method, target, _ = words
    path, _, query = target.partition("?")
    fields = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in fields}
    return HttpRequest(method, path, query, headers)


def _refusal(status: HTTPStatus) -> HttpResponse:
    text = f"{status.value} {status.phrase}"
    return HttpResponse(text, [("Content-Type", "text/plain")], f"{text}\n".encode())


def _encoded(response: HttpResponse) -> bytes:
    headers = [
        *response.headers,
        ("Content-Length", str(len(response.body))),
        ("Connection", "close"),
    ]
    lines = [f"HTTP/1.1 {response.status}", *(f"{name}: {value}" for name, value in headers)]
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + response.body
