"""Addresses as people write them."""

from __future__ import annotations

import socket

import pytest

from commitbus.broker.rpc.address import (
    ListenError,
    peer_address,
    split_address,
    why_not_listening,
)


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("127.0.0.1:8081", ("127.0.0.1", 8081)),
        ("localhost:0", ("localhost", 0)),
        ("[::1]:65535", ("::1", 65535)),
    ],
)
def test_host_and_port_are_split(address: str, parts: tuple[str, int]) -> None:
    """An IPv6 host loses its brackets."""
    assert split_address(address) == parts


@pytest.mark.parametrize(
    "address", ["", ":", ":80", "host", "host:", "host:x", "host:-1", "host:65536", "::1:80", "h:²"]
)
def test_anything_else_is_refused(address: str) -> None:
    """The error repeats the address."""
    with pytest.raises(ListenError) as caught:
        split_address(address)
    assert caught.value.address == address


@pytest.mark.parametrize(
    ("uri", "peer"),
    [
        ("ipv4:127.0.0.1:5000", "127.0.0.1:5000"),
        ("ipv6:%5B::1%5D:5000", "[::1]:5000"),
        ("ipv6:[fe80::1%25eth0]:5000", "[fe80::1%eth0]:5000"),
        ("unix:/tmp/socket", "unix:/tmp/socket"),
        ("unknown", "unknown"),
    ],
)
def test_a_peer_is_written_without_grpcs_scheme(uri: str, peer: str) -> None:
    """`host:port`, percent-decoded."""
    assert peer_address(uri) == peer


def test_the_reason_for_a_taken_port_is_the_operating_systems() -> None:
    """And a port that is free by now is not blamed on it."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert why_not_listening(address) == "Address already in use"
    assert why_not_listening(address) == "gRPC could not bind it"


def test_the_reason_for_an_unknown_host_names_the_resolution() -> None:
    """`.invalid` never resolves (RFC 6761)."""
    assert why_not_listening("no-such-host.invalid:80") != "gRPC could not bind it"
