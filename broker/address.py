"""`HOST:PORT` as people write it."""

from __future__ import annotations

from typing import Final

PORT_MAX: Final = 65535


def split_host_port(text: str) -> tuple[str, int]:
    """Return host and port of `host:port`; an IPv6 address stands in brackets, lost here.

    Raises:
        ValueError: `text` is something else; the message says what.
    """
    host, separator, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not separator or host in ("", "[]") or (":" in host and not bracketed):
        raise ValueError(f"{text!r} is not host:port (an IPv6 address needs brackets)")
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= PORT_MAX):
        raise ValueError(f"{port!r} is not a port (0 to {PORT_MAX})")
    return (host[1:-1] if bracketed else host), int(port)


def join_host_port(host: str, port: int) -> str:
    """Return `host:port`, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
