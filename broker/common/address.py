"""Addresses as people write them: `HOST:PORT`, and `unix:PATH` where a client connects."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final, final

from commitbus.broker.common.shown import shown

PORT_MAX: Final = 65535
UNIX_PREFIX: Final = "unix:"
UNIX_PATH_BYTES_MAX: Final = 107
"""What `sockaddr_un` holds on Linux, without the zero at its end."""
_LABEL_MAX: Final = 63
_NAME_MAX: Final = 253
"""Characters in a host name, and in a label between two of its dots: RFC 1035, 2.3.4."""
_IPV6_NETWORK_PARTS: Final = 4
"""Of eight. A /64 is the smallest network that a site has: its owner can use any address in it."""


@final
@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a client finds a broker: a host and a port, or a Unix socket's path."""

    host: str = ""
    port: int = 0
    path: str = ""
    """Path of a Unix socket; empty for TCP."""

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """Return the endpoint of `host:port` or `unix:PATH`.

        Raises:
            ValueError: `text` is neither; the message says why.
        """
        if not text.startswith(UNIX_PREFIX):
            host, port = split_host_port(text)
            return cls(host, port)
        path = text.removeprefix(UNIX_PREFIX)
        # gRPC's spelling for an absolute path has an empty authority before it.
        path = path.removeprefix("//") if path.startswith("///") else path
        check_unix_path(path)
        return cls(path=path)

    def __str__(self) -> str:
        """Return what `parse` takes."""
        return f"{UNIX_PREFIX}{self.path}" if self.path else join_host_port(self.host, self.port)


def check_unix_path(path: str) -> None:
    """Check that a Unix socket can be at a path.

    Raises:
        ValueError: the path is empty, is too long, or has a NUL.
    """
    if not path or "\0" in path:
        raise ValueError(f"{shown(path)} is not a socket's path")
    if (size := len(os.fsencode(path))) > UNIX_PATH_BYTES_MAX:
        raise ValueError(
            f"{shown(path)} is not a socket's path: it has {size} bytes, at most "
            f"{UNIX_PATH_BYTES_MAX} are possible"
        )


def split_host_port(text: str) -> tuple[str, int]:
    """Return host and port of `host:port`; an IPv6 address stands in brackets, lost here.

    Raises:
        ValueError: `text` is something else; the message says what.
    """
    host, separator, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not separator or host in ("", "[]") or (":" in host and not bracketed):
        raise ValueError(f"{shown(text)} is not host:port (an IPv6 address needs brackets)")
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= PORT_MAX):
        raise ValueError(f"{shown(port)} is not a port (0 to {PORT_MAX})")
    host = host[1:-1] if bracketed else host
    if not is_host(host):
        raise ValueError(f"{shown(host)} is not a host name or address")
    return host, int(port)


def join_host_port(host: str, port: int) -> str:
    """Return `host:port`, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_host(text: str) -> bool:
    """Return whether a resolver takes a text. For some that it does not it has UnicodeErrors."""
    # A long text first: to encode one of 16 KB for a resolver takes 10 ms.
    if len(text) > _NAME_MAX or not text.isprintable() or " " in text:
        return False
    if not text.isascii():
        try:
            text = text.encode("idna").decode()
        except UnicodeError:
            return False
    labels = text.removesuffix(".").split(".")
    return len(text) <= _NAME_MAX and all(0 < len(label) <= _LABEL_MAX for label in labels)


def share_address(peer: str) -> str:
    """Return what a peer such as `127.0.0.1:5000` shares with others: host, or IPv6 /64 network."""
    host = peer.rpartition(":")[0]
    if not host.startswith("["):
        return host or peer
    # `ipaddress` writes the peer, so `::` stands for at least two groups of zeros.
    head, _, tail = host[1:].partition("%")[0].rstrip("]").partition("::")
    groups = head.split(":") if head else []
    if "::" in host:
        behind = tail.split(":") if tail else []
        groups += ["0"] * (8 - len(groups) - len(behind)) + behind
    return ":".join(groups[:_IPV6_NETWORK_PARTS]) + "::/64"
