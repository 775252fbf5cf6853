"""The PROXY protocol's header, both versions."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from commitbus.broker.rpc.listen.proxy_header import (
    LINE_BYTES_MAX,
    SIGNATURE,
    ProxyHeaderError,
    peer_name,
    read_proxy_header,
)

REST = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
WAIT_S = 20.0

ports = st.integers(0, 65535)
ipv4 = st.ip_addresses(v=4)
ipv6 = st.ip_addresses(v=6)


def read(chunks: Sequence[bytes]) -> tuple[str | ProxyHeaderError | None, bytes]:
    """What the header says, or why it is none; and what is left of the bytes behind it.

    Each chunk is sent when the reader waits for more; then the sender closes.
    """

    async def main() -> tuple[str | ProxyHeaderError | None, bytes]:
        result: list[str | ProxyHeaderError | None] = []

        async def receive() -> None:
            try:
                result.append(await read_proxy_header(receiver))
            except ProxyHeaderError as error:
                result.append(error)

        sender, receiver = trio.socket.socketpair()
        with trio.fail_after(WAIT_S), receiver:
            with sender:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(receive)
                    for chunk in chunks:
                        await trio.testing.wait_all_tasks_blocked()
                        await sender.send(chunk)
                    sender.shutdown(socket.SHUT_WR)
            rest = b""
            while more := await receiver.recv(1 << 20):
                rest += more
            return result[0], rest

    return trio.run(main)


def version_2(family: int, addresses: bytes, *, command: int = 1, tlvs: bytes = b"") -> bytes:
    """A header of version 2."""
    return (
        SIGNATURE
        + struct.pack(">BBH", 0x20 | command, family, len(addresses) + len(tlvs))
        + addresses
        + tlvs
    )


TCP4 = b"\x0a\x00\x00\x07" + b"\xc0\x00\x02\x01" + struct.pack(">HH", 5000, 8081)
TCP6 = bytes(15) + b"\x01" + b"\xff" * 16 + struct.pack(">HH", 5000, 8081)
UNIX = b"/run/proxy".ljust(108, b"\0") + bytes(108)

ACCEPTED = [
    (b"PROXY TCP4 10.0.0.7 192.0.2.1 5000 8081\r\n", "10.0.0.7:5000"),
    (b"PROXY TCP4 255.255.255.255 255.255.255.255 65535 65535\r\n", "255.255.255.255:65535"),
    (b"PROXY TCP4 10.0.0.7 192.0.2.1 0 0\r\n", "10.0.0.7:0"),
    (b"PROXY TCP6 ::1 2001:DB8::1 5000 8081\r\n", "[::1]:5000"),
    (b"PROXY TCP6 ::ffff:10.0.0.7 ::1 5000 8081\r\n", "10.0.0.7:5000"),
    (b"PROXY UNKNOWN\r\n", None),
    (b"PROXY UNKNOWN anything \x00\xff at all\r\n", None),
    (b"PROXY UNKNOWN " + b"x" * 91 + b"\r\n", None),
    (version_2(0x11, TCP4), "10.0.0.7:5000"),
    (version_2(0x21, TCP6), "[::1]:5000"),
    (version_2(0x31, UNIX), "unix:"),
    (version_2(0x11, TCP4, tlvs=b"\x04\x00\x01x"), "10.0.0.7:5000"),
    (version_2(0x31, UNIX, tlvs=bytes(0xFFFF - 216)), "unix:"),
    # Where the header says nothing about a peer that we could have, it is the connection's own.
    (version_2(0x00, b""), None),
    (version_2(0x00, b"whatever"), None),
    (version_2(0x12, TCP4), None),
    (version_2(0x22, TCP6), None),
    (version_2(0x32, UNIX), None),
    (version_2(0x00, b"", command=0), None),
    (version_2(0xFF, b"ignored", command=0), None),
    (version_2(0x11, TCP4, command=0), None),
]


@pytest.mark.parametrize(("header", "peer"), ACCEPTED)
def test_a_header_names_the_peer_and_ends_where_http_2_begins(
    header: bytes, peer: str | None
) -> None:
    """At once as a sender has to, or byte by byte as a network may."""
    assert read([header + REST]) == (peer, REST)
    if len(header) < 1000:
        assert read([bytes([byte]) for byte in header + REST]) == (peer, REST)


@pytest.mark.parametrize(("header", "peer"), ACCEPTED)
def test_a_header_that_ends_early_is_refused(header: bytes, peer: str | None) -> None:
    """Whatever its length: the proxy went away."""
    del peer
    for end in range(min(len(header), 300)):
        assert isinstance(read([header[:end]])[0], ProxyHeaderError), end


@pytest.mark.parametrize(
    "line",
    [
        b"PRI * HTTP/2.0\r\n",
        b"PROXY TCP4 10.0.0.7 192.0.2.1 5000 8081\n",
        b"PROXY TCP4 10.0.0.7 192.0.2.1 5000 8081 \r\n",
        b"PROXY TCP4  10.0.0.7 192.0.2.1 5000 8081\r\n",
        b"PROXY TCP4 10.0.0.7 192.0.2.1 5000\r\n",
        b"PROXY TCP4\r\n",
        b"PROXY TCP4 10.0.0.07 192.0.2.1 5000 8081\r\n",
        b"PROXY TCP4 10.0.0 192.0.2.1 5000 8081\r\n",
        b"PROXY TCP4 10.0.0.7 192.0.2.256 5000 8081\r\n",
        b"PROXY TCP4 ::1 ::1 5000 8081\r\n",
        b"PROXY TCP6 10.0.0.7 192.0.2.1 5000 8081\r\n",
        b"PROXY TCP6 fe80::1%eth0 ::1 5000 8081\r\n",
        b"PROXY TCP6 ::1 fe80::1%eth0 5000 8081\r\n",
        b"PROXY TCP6 ::1::1 ::1 5000 8081\r\n",
        b"PROXY TCP4 10.0.0.7 192.0.2.1 05000 8081\r\n",
        b"PROXY TCP4 10.0.0.7 192.0.2.1 65536 8081\r\n",
        b"PROXY TCP4 10.0.0.7 192.0.2.1 5000 80810\r\n",
        b"PROXY TCP4 10.0.0.7 192.0.2.1 +500 8081\r\n",
        b"PROXY TCP4 10.0.0.7 192.0.2.1 5_00 8081\r\n",
        b"PROXY TCP4 10.0.0.7 192.0.2.1 5000 \r\n",
        "PROXY TCP4 10.0.0.7 192.0.2.1 \N{ARABIC-INDIC DIGIT FIVE} 8081\r\n".encode(),
        b"PROXY tcp4 10.0.0.7 192.0.2.1 5000 8081\r\n",
        b"PROXY UDP4 10.0.0.7 192.0.2.1 5000 8081\r\n",
        b"PROXY UNKNOWNS\r\n",
        b"PROXY UNKNOWN\n",
        b"PROXY\r\n",
        b"PROXYUNKNOWN\r\n",
        b"PROXY UNKNOWN " + b"x" * (LINE_BYTES_MAX - 15) + b"\r\n",
        b"P" * 1000,
    ],
)
def test_a_line_that_does_not_match_exactly_is_refused(line: bytes) -> None:
    """What one parser lets through and another one reads differently is a way in."""
    assert isinstance(read([line + REST])[0], ProxyHeaderError)


@pytest.mark.parametrize(
    "header",
    [
        b"\x16\x03\x01\x00\x00",
        b"GET / HTTP/1.1\r\n\r\n",
        SIGNATURE[:-1] + b"\r" + version_2(0x11, TCP4)[12:],
        SIGNATURE + b"\x11" + version_2(0x11, TCP4)[13:],
        SIGNATURE + b"\x31" + version_2(0x11, TCP4)[13:],
        version_2(0x11, TCP4, command=2),
        version_2(0x41, UNIX),
        version_2(0x13, TCP4),
        version_2(0x11, TCP4[:-1]),
        version_2(0x21, TCP6[:-1]),
        version_2(0x31, UNIX[:-1]),
        version_2(0x12, b""),
        version_2(0x10, b""),
    ],
)
def test_a_binary_header_that_does_not_match_exactly_is_refused(header: bytes) -> None:
    """Signature, version, command, family, protocol and length are each checked."""
    assert isinstance(read([header + REST])[0], ProxyHeaderError)


@settings(deadline=None)
@given(ipv4 | ipv6, ports, st.data())
def test_both_versions_name_the_same_peer(
    source: IPv4Address | IPv6Address, port: int, data: st.DataObject
) -> None:
    """In whatever pieces they arrive, with whatever extensions."""
    destination = data.draw(ipv4 if source.version == 4 else ipv6)
    tlvs = data.draw(st.binary(max_size=600))
    line = f"PROXY TCP{source.version} {source} {destination} {port} 8081\r\n".encode()
    addresses = source.packed + destination.packed + struct.pack(">HH", port, 8081)
    binary = version_2(0x11 if source.version == 4 else 0x21, addresses, tlvs=tlvs)
    for header in (line, binary):
        cut = data.draw(st.integers(0, len(header)))
        chunks = [part for part in (header[:cut], header[cut:] + REST) if part]
        assert read(chunks) == (peer_name(source, port), REST)


broken = st.one_of(
    st.binary(max_size=200),
    st.binary(max_size=300).map(SIGNATURE.__add__),
    st.tuples(
        st.sampled_from([0x20, 0x21]),
        st.sampled_from([0x00, 0x10, 0x11, 0x12, 0x21, 0x22, 0x31, 0x32]) | st.integers(0, 255),
        st.integers(0, 300),
        st.binary(max_size=300),
    ).map(lambda parts: SIGNATURE + struct.pack(">BBH", *parts[:3]) + parts[3]),
    st.text(alphabet="TCP46UNKOWX 0123456789.:abcdef%\r\n", max_size=120).map(
        lambda text: b"PROXY " + text.encode()
    ),
)


@settings(deadline=None)
@given(st.lists(broken.filter(bool), min_size=1, max_size=3))
def test_any_bytes_are_a_header_or_a_typed_error(chunks: list[bytes]) -> None:
    """Never another exception, never an endless wait, and nothing behind a header is taken."""
    result, rest = read(chunks)
    sent = b"".join(chunks)
    assert sent.endswith(rest)
    if isinstance(result, str | None):
        header = sent[: len(sent) - len(rest)]
        assert header.endswith(b"\r\n") if header.startswith(b"P") else len(header) >= 16


@settings(deadline=None)
@given(st.sampled_from([header for header, _ in ACCEPTED if len(header) < 300]), st.data())
def test_a_flipped_byte_is_noticed_or_changes_what_is_said(
    header: bytes, data: st.DataObject
) -> None:
    """It never makes the reader wait, or fail in another way than it says."""
    position = data.draw(st.integers(0, len(header) - 1))
    flipped = bytearray(header)
    flipped[position] ^= data.draw(st.integers(1, 255))
    result, rest = read([bytes(flipped) + REST])
    assert (bytes(flipped) + REST).endswith(rest)
    assert isinstance(result, str | None | ProxyHeaderError)
