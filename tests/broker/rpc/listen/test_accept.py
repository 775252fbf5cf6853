"""From a connection to the stream that HTTP/2 runs on."""

from __future__ import annotations

import socket
import ssl
import struct
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from commitbus.broker.config.tls_mode import TlsMode
from commitbus.broker.rpc.listen.accept import (
    AcceptError,
    AcceptOptions,
    ProbedError,
    accept,
)
from commitbus.broker.rpc.listen.certificate import TlsContexts

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SHORT_S = 0.05
LINE = b"PROXY TCP4 10.0.0.7 192.0.2.1 5000 8081\r\n"


def options(**changes: Any) -> AcceptOptions:
    """What a broker without settings expects, but for these."""
    return AcceptOptions(TlsContexts(), **changes)


async def receive(stream: trio.abc.ReceiveStream, count: int) -> bytes:
    """So many bytes, or fewer when the stream ends."""
    received = b""
    while len(received) < count and (chunk := await stream.receive_some(count - len(received))):
        received += chunk
    return received


async def is_closed(client: trio.SocketStream) -> bool:
    """Whether the server has closed the connection, politely or not."""
    try:
        return await receive(client, 1000) is not None
    except trio.BrokenResourceError:
        return True


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_plaintext_is_passed_on_from_its_first_byte(
    open_front: Any, host: str, request: pytest.FixtureRequest
) -> None:
    """Nothing of it has been taken; the peer is the client."""
    if host == "::1":
        request.getfixturevalue("ipv6")
    shown = f"[{host}]" if ":" in host else host

    async def main() -> None:
        async with (
            open_front(listen=f"{shown}:0") as front,
            await front.connect(host) as client,
        ):
            await client.send_all(PREFACE)
            accepted = await front.accepted()
            assert not accepted.is_tls
            assert accepted.peer == f"{shown}:{client.socket.getsockname()[1]}"
            assert await receive(accepted.stream, len(PREFACE)) == PREFACE

    trio.run(main)


@pytest.mark.usefixtures("ipv6")
def test_a_client_of_ipv4_is_shown_as_one_on_the_wildcard_of_ipv6(open_front: Any) -> None:
    """Not as an address of IPv6 that has one of IPv4 inside."""

    async def main() -> None:
        async with open_front(listen="[::]:0") as front, await front.connect() as client:
            await client.send_all(PREFACE)
            port = client.socket.getsockname()[1]
            assert (await front.accepted()).peer == f"127.0.0.1:{port}"

    trio.run(main)


@pytest.mark.parametrize("mode", [TlsMode.PERMISSIVE, TlsMode.ENFORCING])
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_tls_is_spoken_with_who_begins_with_it(
    open_front: Any, tls_client: Any, version: ssl.TLSVersion, mode: TlsMode
) -> None:
    """ALPN chooses h2, and bytes arrive both ways."""
    context = tls_client.context()
    context.minimum_version = context.maximum_version = version

    async def main() -> None:
        async with open_front(options(tls_mode=mode)) as front:
            plain = await front.connect()
            async with trio.SSLStream(plain, context, https_compatible=True) as client:
                await client.send_all(PREFACE)
                accepted = await front.accepted()
                assert accepted.is_tls
                assert accepted.peer == f"127.0.0.1:{plain.socket.getsockname()[1]}"
                assert await receive(accepted.stream, len(PREFACE)) == PREFACE
                await accepted.stream.send_all(b"x" * 100_000)
                assert await receive(client, 100_000) == b"x" * 100_000
                assert client.selected_alpn_protocol() == "h2"

    trio.run(main)


def test_a_client_hello_may_arrive_byte_by_byte(open_front: Any, tls_client: Any) -> None:
    """Its first byte alone is enough to know what follows."""

    async def main() -> None:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = tls_client.context().wrap_bio(incoming, outgoing)
        async with open_front() as front, await front.connect() as stream:
            while True:
                try:
                    client.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    for byte in outgoing.read():
                        await stream.send_all(bytes([byte]))
                        await trio.testing.wait_all_tasks_blocked()
                    incoming.write(await stream.receive_some())
            await stream.send_all(outgoing.read())
            assert (await front.accepted()).is_tls

    trio.run(main)


@pytest.mark.parametrize("offered", [[], ["http/1.1"], ["h2c", "grpc-exp"]])
def test_a_tls_client_that_does_not_offer_h2_is_refused(
    open_front: Any, tls_client: Any, offered: list[str]
) -> None:
    """RFC 9113, 3.2: HTTP/2 over TLS is chosen by ALPN, or it is not HTTP/2."""

    async def main() -> None:
        async with open_front() as front:
            seen = await tls_client.visit(front.port, tls_client.context(offered))
            assert seen.alpn is None
            assert await front.refused() == "offers no h2 by ALPN"

    trio.run(main)


def test_one_of_several_offers_is_enough(open_front: Any, tls_client: Any) -> None:
    """Ours is chosen, not the client's first."""

    async def main() -> None:
        async with open_front() as front:
            context = tls_client.context(["http/1.1", "h2"])
            assert (await tls_client.visit(front.port, context)).alpn == "h2"

    trio.run(main)


def test_a_version_of_tls_that_http_2_forbids_is_refused(open_front: Any, tls_client: Any) -> None:
    """RFC 9113, 9.2: 1.2 or later."""
    context = tls_client.context()
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.minimum_version = ssl.TLSVersion.TLSv1_1
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1

    async def main() -> None:
        async with open_front() as front:
            with pytest.raises(OSError, match=r"reset|EOF|ssl|SSL"):
                await tls_client.visit(front.port, context)
            assert await front.refused() == "TLS handshake: UNSUPPORTED_PROTOCOL"

    trio.run(main)


def test_a_client_that_does_not_trust_the_certificate_is_no_traceback(
    open_front: Any, tls_client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """It says so by an alert; with TLS 1.3 only after the server has finished its part."""

    async def main() -> None:
        async with open_front() as front:
            for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
                context = tls_client.context()
                context.verify_mode = ssl.CERT_REQUIRED
                context.minimum_version = context.maximum_version = version
                with pytest.raises(ssl.SSLCertVerificationError):
                    await tls_client.visit(front.port, context)
                assert (await front.refused()).startswith("TLS handshake: ")

    trio.run(main)
    assert caplog.records == []


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16",
        b"\x16\x03\x01\x00\x05garbage",
        b"\x16" + PREFACE,
        b"\x16\x03\x01\x40\x00" + b"\x01\x00\x3f\xfc\x03\x03" + bytes(0x3FFA),
        b"\x16\x03\x01\x00\x04\x01\xff\xff\xff" * 3,
    ],
)
def test_what_only_begins_like_tls_is_refused(open_front: Any, sent: bytes) -> None:
    """Whole or broken off: a reason, and a closed connection."""

    async def main() -> None:
        async with open_front() as front, await front.connect() as client:
            await client.send_all(sent)
            await client.send_eof()
            assert (await front.refused()).startswith("TLS handshake: ")
            assert await is_closed(client)

    trio.run(main)


@pytest.mark.parametrize(
    ("mode", "sent", "reason"),
    [
        (TlsMode.DISABLED, b"\x16\x03\x01", "TLS is disabled"),
        (TlsMode.ENFORCING, PREFACE, "TLS is required"),
    ],
)
def test_what_the_mode_forbids_is_refused(
    open_front: Any, mode: TlsMode, sent: bytes, reason: str
) -> None:
    """By the first byte, without a handshake."""

    async def main() -> None:
        async with open_front(options(tls_mode=mode)) as front, await front.connect() as client:
            await client.send_all(sent)
            assert await front.refused() == reason
            assert await is_closed(client)

    trio.run(main)


def test_plaintext_needs_no_certificate(open_front: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is generated for who does not want TLS."""
    monkeypatch.setattr(TlsContexts, "current", None)

    async def main() -> None:
        async with open_front() as front, await front.connect() as client:
            await client.send_all(b"P")
            assert not (await front.accepted()).is_tls

    trio.run(main)


@pytest.mark.parametrize(
    ("proxy_protocol", "sent"),
    [(False, b""), (False, b"\x16\x03"), (True, b""), (True, b"PROXY T"), (True, b"\r\n")],
)
def test_a_slow_client_is_not_waited_for(
    open_front: Any, *, proxy_protocol: bool, sent: bytes
) -> None:
    """One limit for all that comes before HTTP/2: a connection that says nothing costs memory."""

    async def main() -> None:
        limited = options(proxy_protocol=proxy_protocol, time_limit_s=SHORT_S)
        async with open_front(limited) as front, await front.connect() as client:
            if sent:
                await client.send_all(sent)
            assert await front.refused() == f"sent nothing complete within {SHORT_S} s"
            assert await is_closed(client)

    trio.run(main)


@pytest.mark.parametrize("proxy_protocol", [False, True])
def test_a_client_that_only_looks_whether_the_port_is_open_is_refused(
    open_front: Any, *, proxy_protocol: bool
) -> None:
    """As load balancers do all day, with a polite end or a reset."""

    async def main() -> None:
        async with open_front(options(proxy_protocol=proxy_protocol)) as front:
            async with await front.connect():
                pass
            assert isinstance(await front.outcomes.receive(), ProbedError)
            for _ in range(20):
                async with await front.connect() as client:
                    linger = struct.pack("ii", 1, 0)
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                # However far the server had come when the reset arrived.
                assert isinstance(await front.outcomes.receive(), ProbedError)

    trio.run(main)


def test_a_client_that_is_gone_before_it_is_looked_at_is_refused() -> None:
    """The system then knows no peer any more."""

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            client = socket.create_connection(server.getsockname())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            accepted, _ = server.accept()
            client.close()
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(accepted))
        with pytest.raises(AcceptError):
            await accept(stream, options())
        assert stream.socket.fileno() == -1

    trio.run(main)


@pytest.mark.parametrize("secured", [False, True])
def test_the_peer_behind_a_proxy_is_the_client(
    open_front: Any, tls_client: Any, *, secured: bool
) -> None:
    """Header and first bytes of the client may come in one piece."""

    async def main() -> None:
        async with open_front(options(proxy_protocol=True)) as front:
            plain = await front.connect()
            if secured:
                await plain.send_all(LINE)
                client = trio.SSLStream(plain, tls_client.context(), https_compatible=True)
                await client.send_all(PREFACE)
            else:
                await plain.send_all(LINE + PREFACE)
            accepted = await front.accepted()
            assert (accepted.peer, accepted.is_tls) == ("10.0.0.7:5000", secured)
            assert await receive(accepted.stream, len(PREFACE)) == PREFACE
            await plain.aclose()

    trio.run(main)


def test_a_proxy_s_own_connection_has_the_proxy_for_its_peer(open_front: Any) -> None:
    """Its health checks are calls like any others."""

    async def main() -> None:
        async with (
            open_front(options(proxy_protocol=True)) as front,
            await front.connect() as client,
        ):
            await client.send_all(b"PROXY UNKNOWN\r\n" + PREFACE)
            port = client.socket.getsockname()[1]
            assert (await front.accepted()).peer == f"127.0.0.1:{port}"

    trio.run(main)


@pytest.mark.parametrize("sent", [PREFACE, b"\x16\x03\x01", b"PROXY TCP9 \r\n"])
def test_who_comes_past_the_proxy_is_refused(open_front: Any, sent: bytes) -> None:
    """Else every client could choose whether to name itself."""

    async def main() -> None:
        async with (
            open_front(options(proxy_protocol=True)) as front,
            await front.connect() as client,
        ):
            await client.send_all(sent)
            await front.refused()
            assert await is_closed(client)

    trio.run(main)


def test_a_header_that_nobody_asked_for_is_not_believed(open_front: Any) -> None:
    """It is left to HTTP/2, which knows no such preface."""

    async def main() -> None:
        async with open_front() as front, await front.connect() as client:
            await client.send_all(LINE)
            accepted = await front.accepted()
            assert accepted.peer.startswith("127.0.0.1:")
            assert await receive(accepted.stream, len(LINE)) == LINE

    trio.run(main)


@pytest.mark.parametrize("mode", TlsMode)
def test_a_unix_socket_takes_plaintext_without_a_header(
    open_front: Any, tmp_path: Path, mode: TlsMode
) -> None:
    """No network and no proxy lies between; the peer has no address."""
    path = tmp_path / "broker.sock"

    async def main() -> None:
        strict = options(tls_mode=mode, proxy_protocol=True)
        async with (
            open_front(strict, unix_socket=path) as front,
            await trio.open_unix_socket(path) as client,
        ):
            await client.send_all(PREFACE)
            accepted = await front.accepted()
            assert (accepted.peer, accepted.is_tls) == ("unix:", False)
            assert await receive(accepted.stream, len(PREFACE)) == PREFACE

    trio.run(main)


def test_a_unix_socket_takes_tls_as_well(open_front: Any, tls_client: Any, tmp_path: Path) -> None:
    """For clients that always use it."""
    path = tmp_path / "broker.sock"

    async def main() -> None:
        async with open_front(unix_socket=path) as front:
            plain = await trio.open_unix_socket(path)
            async with trio.SSLStream(plain, tls_client.context(), https_compatible=True) as client:
                await client.do_handshake()
                accepted = await front.accepted()
                assert (accepted.peer, accepted.is_tls) == ("unix:", True)

    trio.run(main)


def test_a_cancelled_accept_closes_the_connection() -> None:
    """A broker that stops leaves no client waiting."""

    async def main() -> None:
        sender, receiver = trio.socket.socketpair()
        stream = trio.SocketStream(receiver)
        with sender, trio.move_on_after(SHORT_S) as scope:
            await accept(stream, options())
        assert scope.cancelled_caught
        assert stream.socket.fileno() == -1

    trio.run(main)


def test_many_silent_connections_do_not_keep_one_from_being_served(open_front: Any) -> None:
    """Each waits for its own first byte."""

    async def main() -> None:
        async with open_front() as front:
            silent = [await front.connect() for _ in range(200)]
            async with await front.connect() as client:
                await client.send_all(PREFACE)
                assert not (await front.accepted()).is_tls
            for each in silent:
                await trio.aclose_forcefully(each)

    trio.run(main)
