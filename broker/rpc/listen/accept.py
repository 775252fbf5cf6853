"""From an accepted connection to the stream that HTTP/2 runs on.

    [PROXY protocol header]  first byte 0x16?  yes: TLS handshake, ALPN h2
                                               no:  plaintext

Bytes are looked at where they lie (MSG_PEEK), so none has to be handed on by hand.
"""

from __future__ import annotations

import socket as stdlib_socket
import ssl
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final, final

import trio

from commitbus.broker.common.address import UNIX_PREFIX
from commitbus.broker.config.tls_mode import TlsMode
from commitbus.broker.rpc.listen.certificate import TlsContexts
from commitbus.broker.rpc.listen.proxy_header import (
    ProxyHeaderError,
    peer_name,
    read_proxy_header,
)

ALPN_H2: Final = "h2"
TIME_LIMIT_S: Final = 10.0
UNIX_PEER: Final = UNIX_PREFIX
_UNKNOWN_PEER: Final = "unknown"

_TLS_HANDSHAKE: Final = b"\x16"
"""The type of the record that a TLS connection begins with. HTTP/2 begins with `P`."""

ByteStream = trio.SocketStream | trio.SSLStream[trio.SocketStream]


class AcceptError(Exception):
    """A connection is refused. Its client's fault, or nobody's: worth a line, never a traceback."""

    def __init__(self, peer: str, reason: str) -> None:
        self.peer, self.reason = peer, reason
        super().__init__(f"connection of {peer} refused: {reason}")


@final
class ProbedError(AcceptError):
    """The connection was closed before its first byte: a health probe of the port."""

    def __init__(self, peer: str) -> None:
        super().__init__(peer, "closed before its first byte")


@final
@dataclass(frozen=True, slots=True)
class AcceptOptions:
    """What is expected of every connection."""

    tls: TlsContexts
    tls_mode: TlsMode = TlsMode.PERMISSIVE
    proxy_protocol: bool = False
    """Whether connections begin with a header of the PROXY protocol, those of a Unix socket
    excepted. They then must: to guess would let every client choose its own address."""
    time_limit_s: float = TIME_LIMIT_S
    """For everything up to the first byte of HTTP/2."""


@final
@dataclass(frozen=True, slots=True)
class Accepted:
    """A connection whose next byte is the first of HTTP/2."""

    stream: ByteStream
    peer: str
    """`127.0.0.1:5000`, `[::1]:5000` or `unix:`; from the PROXY protocol's header if it has one."""
    is_tls: bool


async def accept(stream: trio.SocketStream, options: AcceptOptions) -> Accepted:
    """Take a connection up to the first byte of HTTP/2.

    PROXY protocol: HAProxy's doc/proxy-protocol.txt. TLS: RFC 9113, 3.2 and 9.2; RFC 7301.
    When this raises, or is cancelled, the connection is closed.

    Raises:
        AcceptError: it does not come that far: broken, too slow, or not as `options` want it;
            `ProbedError` where it ends before it began.
    """
    peer = UNIX_PEER
    accepted: Accepted | None = None
    try:
        with trio.fail_after(options.time_limit_s):
            if not is_unix(stream):
                peer = peer_of(stream)
                if peer == _UNKNOWN_PEER:
                    # It was reset while it waited to be accepted.
                    raise ProbedError(peer)
                if options.proxy_protocol:
                    await _first_byte(stream, peer)
                    peer = await read_proxy_header(stream.socket) or peer
            accepted = await _sniff(stream, peer, options)
            return accepted
    except trio.TooSlowError:
        reason = f"sent nothing complete within {options.time_limit_s:g} s"
        raise AcceptError(peer, reason) from None
    except (ProxyHeaderError, OSError) as error:
        raise AcceptError(peer, str(error)) from None
    finally:
        if accepted is None:
            await trio.aclose_forcefully(stream)


async def _sniff(stream: trio.SocketStream, peer: str, options: AcceptOptions) -> Accepted:
    """Let the first byte decide between TLS and plaintext."""
    first = await _first_byte(stream, peer)
    if first == _TLS_HANDSHAKE:
        if options.tls_mode is TlsMode.DISABLED:
            raise AcceptError(peer, "TLS is disabled")
        return Accepted(await _start_tls(stream, peer, options.tls), peer, is_tls=True)
    if options.tls_mode is TlsMode.ENFORCING and not is_unix(stream):
        raise AcceptError(peer, "TLS is required")
    return Accepted(stream, peer, is_tls=False)


def peer_of(stream: trio.SocketStream) -> str:
    """Return whom a connection comes from, as `Accepted.peer`; `unknown` if it is reset already."""
    if is_unix(stream):
        return UNIX_PEER
    try:
        host, port, *_ = stream.socket.getpeername()
    except OSError:
        return _UNKNOWN_PEER
    return peer_name(ip_address(host), port)


async def _first_byte(stream: trio.SocketStream, peer: str) -> bytes:
    """Return the next byte, which stays to be read.

    Raises:
        ProbedError: the connection is closed or reset instead.
    """
    try:
        first = await stream.socket.recv(1, stdlib_socket.MSG_PEEK)
    except ConnectionError:
        first = b""
    if not first:
        raise ProbedError(peer)
    return first


async def _start_tls(
    stream: trio.SocketStream, peer: str, tls: TlsContexts
) -> trio.SSLStream[trio.SocketStream]:
    # https_compatible: clients of gRPC close without TLS's goodbye. HTTP/2 has an end of its own.
    secured = trio.SSLStream(stream, await tls.current(), server_side=True, https_compatible=True)
    try:
        await secured.do_handshake()
    except trio.BrokenResourceError as error:
        cause = error.__cause__
        reason = cause.reason if isinstance(cause, ssl.SSLError) and cause.reason else "broken off"
        raise AcceptError(peer, f"TLS handshake: {reason}") from None
    # RFC 9113, 3.2: over TLS, HTTP/2 is what ALPN chose, never what both sides assume. RocketMQ's
    # proxy refuses clients without ALPN too, so every official client has it.
    if secured.selected_alpn_protocol() != ALPN_H2:
        raise AcceptError(peer, "offers no h2 by ALPN")
    return secured


def is_unix(stream: trio.SocketStream) -> bool:
    """Return whether a connection came over the Unix socket."""
    return stream.socket.family == stdlib_socket.AF_UNIX
