"""Nobody who connects to `/metrics` costs more than a bounded share, nor keeps others for long."""

from __future__ import annotations

import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio

from commitbus.broker.observe import metrics_http
from commitbus.broker.observe.metrics_http import Answer, HttpRequest, HttpResponse, serve_http

GET = b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n"
BIG = 64 * 1024 * 1024


def hello(request: HttpRequest) -> HttpResponse:
    """Answer with what was asked."""
    text = f"{request.method} {request.path} {request.query} {dict(request.headers)}"
    return HttpResponse("200 OK", [("Content-Type", "text/plain")], text.encode())


@asynccontextmanager
async def serving(answer: Answer = hello) -> AsyncIterator[int]:
    """A server on a free port."""
    async with serve_http(answer, "127.0.0.1:0") as port:
        yield port


async def ask(port: int, request: bytes = GET) -> bytes:
    """Send a request and return all that comes back."""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(request)
        return b"".join([data async for data in stream])


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    """Run it, at most 30 s."""

    async def main() -> None:
        with trio.fail_after(30):
            await scenario()

    trio.run(main)


def test_a_request_is_answered() -> None:
    """Also one that comes in pieces; its headers' names are in lower case."""

    async def scenario() -> None:
        async with serving() as port:
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                for piece in (b"GET /a?b=c HT", b"TP/1.1\r\nACCEPT:  x \r", b"\n\r\n"):
                    await stream.send_all(piece)
                    await trio.sleep(0.01)
                answer = b"".join([data async for data in stream])
            head, _, body = answer.partition(b"\r\n\r\n")
            assert body == b"GET /a b=c {'accept': 'x'}"
            assert head.split(b"\r\n") == [
                b"HTTP/1.1 200 OK",
                b"Content-Type: text/plain",
                b"Content-Length: %d" % len(body),
                b"Connection: close",
            ]

    run(scenario)


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\r\n\r\n",
        b"GET /\r\n\r\n",
        b"\x16\x03\x01" + b"\r\n\r\n",
        b"GET / HTTP/2.0\r\n\r\n",
        b"GET /" + b"x" * 9000,
        b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 2000,
    ],
)
def test_what_is_no_request_is_refused(request_bytes: bytes) -> None:
    """So is one whose head is longer than any that Prometheus sends."""

    async def scenario() -> None:
        async with serving() as port:
            assert (await ask(port, request_bytes)).startswith(b"HTTP/1.1 400 Bad Request\r\n")
            assert (await ask(port)).startswith(b"HTTP/1.1 200")

    run(scenario)


def test_a_scrape_that_fails_is_logged_and_the_next_one_works(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The client learns nothing of it."""
    failures = [ValueError("no")]

    def fail_once(request: HttpRequest) -> HttpResponse:
        if failures:
            raise failures.pop()
        return hello(request)

    async def scenario() -> None:
        async with serving(fail_once) as port:
            assert (await ask(port)).startswith(b"HTTP/1.1 500 Internal Server Error\r\n")
            assert (await ask(port)).startswith(b"HTTP/1.1 200")

    run(scenario)
    assert [record.message for record in caplog.records] == ["a scrape failed"]


def test_clients_that_say_nothing_take_no_threads_and_are_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There are only so many connections: a further one is closed at once."""
    monkeypatch.setattr(metrics_http, "REQUEST_S", 1.0)

    async def scenario() -> None:
        threads = threading.active_count()
        async with serving() as port:
            idle = [
                await trio.open_tcp_stream("127.0.0.1", port)
                for _ in range(metrics_http.CONNECTIONS_MAX)
            ]
            for stream in idle:
                await stream.send_all(b"GET /")
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert threading.active_count() <= threads + 1
            with pytest.raises((trio.BrokenResourceError, AssertionError)):
                assert await ask(port)
            for stream in idle:
                assert await stream.receive_some() == b""
                await stream.aclose()
            assert (await ask(port)).startswith(b"HTTP/1.1 200")

    run(scenario)


def test_clients_that_do_not_read_hold_few_answers_and_are_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each answer may have some MB; the others wait for their turn."""
    monkeypatch.setattr(metrics_http, "READ_S", 1.0)
    made = 0

    def big(request: HttpRequest) -> HttpResponse:
        nonlocal made
        made += 1
        if request.path == "/small":
            return hello(request)
        return HttpResponse("200 OK", [], bytes(BIG))

    async def scenario() -> None:
        async with serving(big) as port:
            slow = [
                await trio.open_tcp_stream("127.0.0.1", port)
                for _ in range(metrics_http.SCRAPES_MAX + 2)
            ]
            for stream in slow:
                await stream.send_all(GET)
            await trio.sleep(0.5)
            assert made <= metrics_http.SCRAPES_MAX
            assert (await ask(port, b"GET /small HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200")
            for stream in slow:
                await stream.aclose()

    run(scenario)


def test_one_scrape_runs_at_a_time() -> None:
    """Each reads all of the broker's state."""
    running = most = 0
    lock = threading.Lock()

    def count(request: HttpRequest) -> HttpResponse:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        threading.Event().wait(0.02)
        with lock:
            running -= 1
        return hello(request)

    async def scenario() -> None:
        async with serving(count) as port, trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(ask, port)

    run(scenario)
    assert most == 1


def test_a_client_that_hangs_up_harms_nobody() -> None:
    """Before its request, inside it, and before its answer."""

    async def scenario() -> None:
        async with serving() as port:
            for request in (b"", b"GET /", GET):
                with socket.create_connection(("127.0.0.1", port)) as client:
                    client.sendall(request)
            assert (await ask(port)).startswith(b"HTTP/1.1 200")

    run(scenario)
