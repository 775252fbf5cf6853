"""Addresses as people write them, and why one cannot be listened on."""

from __future__ import annotations

import socket
from typing import final
from urllib.parse import unquote

from commitbus.broker.common.address import split_host_port


@final
class ListenError(Exception):
    """The server cannot listen on the address it was given."""

    def __init__(self, address: str, reason: str) -> None:
        self.address, self.reason = address, reason
        super().__init__(f"cannot listen on {address}: {reason}")


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of an address to listen on, as `split_host_port`.

    Raises:
        ListenError: it is none.
    """
    try:
        return split_host_port(address)
    except ValueError as error:
        raise ListenError(address, str(error)) from None


def why_not_listening(address: str) -> str:
    """Return the operating system's reason for refusing an address that gRPC failed to bind.

    gRPC itself names none. The answer is found by trying again, so it may have changed since.
    """
    host, port = split_address(address)
    try:
        for family, kind, protocol, _, endpoint in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM
        ):
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(endpoint)
                probe.listen()
    except OSError as error:
        return error.strerror or str(error)
    return "gRPC could not bind it"


def peer_address(uri: str) -> str:
    """Return `127.0.0.1:5000` or `[::1]:5000` of gRPC's `ipv4:...` or `ipv6:%5B...`."""
    scheme, colon, rest = uri.partition(":")
    return unquote(rest) if colon and scheme in ("ipv4", "ipv6") else uri
