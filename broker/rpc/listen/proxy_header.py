"""The PROXY protocol's header: on whose behalf a proxy has connected.

Version 1 is one line of text, version 2 is binary:

    PROXY TCP4 <source> <destination> <source port> <destination port> CR LF

    0            12      13     14     16
    | signature  | 2 cmd | fam  | len  | source | destination | ports | TLVs |
                                       |<----------- len bytes ----------->|

Format: HAProxy's doc/proxy-protocol.txt, sections 2.1 and 2.2. What does not match it exactly is
refused: a header that is guessed would let a client choose the address that it is known by.
"""

from __future__ import annotations

import re
import socket as stdlib_socket
import struct
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Final

import trio

from commitbus.broker.common.address import PORT_MAX, join_host_port

LINE_BYTES_MAX: Final = 107
"""The longest line of version 1, its CR LF included."""

SIGNATURE: Final = b"\r\n\r\n\0\r\nQUIT\n"
_PREFIX: Final = struct.Struct(">12sBBH")
_CHUNK_BYTES: Final = 4096

_VERSION: Final = 2
_LOCAL, _PROXY = 0, 1
# Family in the high four bits, 0 for unspecified; protocol in the low ones: 1 stream, 2 datagram.
_FAMILY_MAX, _PROTOCOL_MAX = 3, 2
_TCP4, _TCP6, _UNIX_STREAM = 0x11, 0x21, 0x31
_ADDRESS_BYTES: Final = {1: 12, 2: 36, 3: 216}
"""Both addresses and ports, by family."""

_PORT: Final = re.compile(r"0|[1-9][0-9]{0,4}", re.ASCII)


class ProxyHeaderError(ValueError):
    """What the connection began with is no header of the PROXY protocol."""


async def read_proxy_header(socket: trio.socket.SocketType) -> str | None:
    """Take the header off the connection, and not one byte more.

    Memory is bounded whatever length the header claims; time is the caller's to bound.

    Returns:
        The peer as `peer_name` writes it, `unix:` for a Unix socket; None when the header says
        that the connection is the proxy's own, or of a kind that has no address here.

    Raises:
        ProxyHeaderError: it is no header, or ends early.
        OSError: the connection broke.
    """
    first = await _peek(socket, 1)
    if first == b"P":
        return parse_line(await _receive_line(socket))
    if first == SIGNATURE[:1]:
        family, length = parse_prefix(await _receive_exactly(socket, _PREFIX.size))
        kept = await _receive_exactly(socket, min(length, max(_ADDRESS_BYTES.values())))
        peer = None if family is None else parse_addresses(family, kept)
        await _skip(socket, length - len(kept))
        return peer
    raise ProxyHeaderError("neither version of the PROXY protocol begins like this")


def parse_line(line: bytes) -> str | None:
    """Return the peer of a header of version 1, given with its CR LF; None for `UNKNOWN`.

    Raises:
        ProxyHeaderError: it does not match the format exactly.
    """
    if not line.endswith(b"\r\n") or not line.startswith(b"PROXY "):
        raise ProxyHeaderError("not a line of PROXY protocol version 1")
    kind, *parts = line[:-2].split(b" ")[1:]
    if kind == b"UNKNOWN":
        return None
    if kind not in (b"TCP4", b"TCP6") or len(parts) != 4:
        raise ProxyHeaderError("version 1 knows TCP4 and TCP6 with four fields, and UNKNOWN")
    try:
        source, destination, source_port, destination_port = (p.decode("ascii") for p in parts)
        address_type = IPv4Address if kind == b"TCP4" else IPv6Address
        address = address_type(source)
        address_type(destination)
    except (UnicodeDecodeError, AddressValueError) as error:
        raise ProxyHeaderError(f"bad address in PROXY protocol version 1: {error}") from None
    if "%" in source + destination:
        raise ProxyHeaderError("an address of PROXY protocol version 1 has no scope")
    _parse_port(destination_port)
    return peer_name(address, _parse_port(source_port))


def parse_prefix(prefix: bytes) -> tuple[int | None, int]:
    """Return family and length of a header of version 2, given its first 16 bytes.

    Returns:
        The byte of family and protocol, None when the addresses are to be ignored; and how many
        bytes follow.

    Raises:
        ProxyHeaderError: signature, version, command, family or protocol is unknown, or the
            addresses do not fit into the length.
    """
    signature, version_command, family, length = _PREFIX.unpack(prefix)
    if signature != SIGNATURE:
        raise ProxyHeaderError("not the signature of PROXY protocol version 2")
    version, command = version_command >> 4, version_command & 0xF
    if version != _VERSION or command not in (_LOCAL, _PROXY):
        raise ProxyHeaderError(f"unknown version and command {version_command:#04x}")
    if command == _LOCAL:
        return None, length
    if family >> 4 > _FAMILY_MAX or family & 0xF > _PROTOCOL_MAX:
        raise ProxyHeaderError(f"unknown family and protocol {family:#04x}")
    if length < _ADDRESS_BYTES.get(family >> 4, 0):
        raise ProxyHeaderError(f"{length} bytes are too few for the addresses")
    return family, length


def parse_addresses(family: int, addresses: bytes) -> str | None:
    """Return the peer of a header of version 2; None for what is neither TCP nor a Unix stream."""
    if family == _TCP4:
        source, port = struct.unpack_from(">4s4xH", addresses)
        return peer_name(IPv4Address(source), port)
    if family == _TCP6:
        source, port = struct.unpack_from(">16s16xH", addresses)
        return peer_name(IPv6Address(source), port)
    return "unix:" if family == _UNIX_STREAM else None


def peer_name(address: IPv4Address | IPv6Address, port: int) -> str:
    """Return `127.0.0.1:5000` or `[::1]:5000`; an IPv4 address mapped into IPv6 is one of IPv4."""
    if isinstance(address, IPv6Address):
        address = address.ipv4_mapped or address
    return join_host_port(str(address), port)


def _parse_port(text: str) -> int:
    if not _PORT.fullmatch(text) or int(text) > PORT_MAX:
        raise ProxyHeaderError("bad port in PROXY protocol version 1")
    return int(text)


async def _receive_line(socket: trio.socket.SocketType) -> bytes:
    line = b""
    while len(line) < LINE_BYTES_MAX:
        # What is peeked is taken at once, at most up to the line's end: else the next peek would
        # find the same bytes again without waiting.
        seen = await _peek(socket, LINE_BYTES_MAX - len(line))
        end = seen.find(b"\n") + 1
        line += await _receive_exactly(socket, end or len(seen))
        if end:
            return line
    raise ProxyHeaderError(f"no line of version 1 is longer than {LINE_BYTES_MAX} bytes")


async def _peek(socket: trio.socket.SocketType, count_max: int) -> bytes:
    seen = await socket.recv(count_max, stdlib_socket.MSG_PEEK)
    if not seen:
        raise ProxyHeaderError("closed before the end of the PROXY protocol's header")
    return seen


async def _receive_exactly(socket: trio.socket.SocketType, count: int) -> bytes:
    received = bytearray()
    while len(received) < count:
        chunk = await socket.recv(count - len(received))
        if not chunk:
            raise ProxyHeaderError("closed before the end of the PROXY protocol's header")
        received += chunk
    return bytes(received)


async def _skip(socket: trio.socket.SocketType, count: int) -> None:
    while count:
        count -= len(await _receive_exactly(socket, min(count, _CHUNK_BYTES)))
