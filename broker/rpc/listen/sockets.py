"""Listening sockets: TCP for the network, a Unix socket for this machine."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import socket as stdlib_socket
import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Final, final

import trio

from commitbus.broker.rpc.address import ListenError, split_address

_log = logging.getLogger(__name__)

_Address = tuple[str | int | bytes, ...]
_Identity = tuple[int, int, int] | None

# The kernel takes as many as net.core.somaxconn allows. With 10,000 clients that all come back at
# once, a short queue means retries after a second, and again after two.
_BACKLOG: Final = 65_535
_UNIX_MODE: Final = 0o660
_PORT_TRIES: Final = 10

# This machine has no such address or no such family, though the name resolves to one: `localhost`
# where IPv6 is switched off.
_NOT_HERE: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


@final
@dataclass(frozen=True, slots=True)
class Listeners:
    """What takes connections, for `trio.serve_listeners`. Accepted ones have TCP_NODELAY."""

    port: int
    """Of all TCP sockets."""
    sockets: list[trio.SocketListener]


@contextmanager
def open_listeners(listen: str, unix_socket: Path | None = None) -> Iterator[Listeners]:
    """Listen until the context ends, which also removes the Unix socket's file.

    Args:
        listen: `HOST:PORT`. Every address of the host is listened on; `[::]` means IPv4 as well;
            port 0 takes a free one, the same for all.
        unix_socket: a file to make as well, for user and group only. One that was left by a dead
            process is replaced.

    Raises:
        ListenError: an address is malformed, taken, or not this machine's; the file is of another
            kind, has a listener, or cannot be made.
    """
    with ExitStack() as stack:
        opened = _open_tcp(listen)
        for each in opened:
            stack.callback(each.close)
        if unix_socket is not None:
            opened.append(_open_unix(unix_socket))
            stack.callback(opened[-1].close)
            stack.callback(_remove, unix_socket, _identity(unix_socket))
        listeners = [trio.SocketListener(trio.socket.from_stdlib_socket(each)) for each in opened]
        yield Listeners(opened[0].getsockname()[1], listeners)


def _open_tcp(listen: str) -> list[stdlib_socket.socket]:
    host, port = split_address(listen)
    try:
        found = stdlib_socket.getaddrinfo(host, port, type=stdlib_socket.SOCK_STREAM)
    except stdlib_socket.gaierror as error:
        raise ListenError(listen, error.strerror or str(error)) from None
    except UnicodeError as error:
        raise ListenError(listen, f"{host!r} is no host name: {error}") from None
    endpoints = list(dict.fromkeys((family, address) for family, *_, address in found))
    for tries_left in reversed(range(_PORT_TRIES)):
        try:
            return _bind_all(endpoints, port)
        except OSError as error:
            # A port that is free on one address may be taken on the next.
            if port or error.errno != errno.EADDRINUSE or not tries_left:
                raise ListenError(listen, _reason(error)) from None
    raise AssertionError("the last try returns or raises")


def _bind_all(
    endpoints: Sequence[tuple[stdlib_socket.AddressFamily, _Address]], port: int
) -> list[stdlib_socket.socket]:
    """Listen on each address that is this machine's, with the first one's port if it is 0."""
    opened: list[stdlib_socket.socket] = []
    not_here: OSError | None = None
    try:
        for family, address in endpoints:
            try:
                opened.append(_bind(family, (address[0], port, *address[2:])))
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise
                not_here = error
            else:
                port = opened[-1].getsockname()[1]
        if not opened and not_here:
            raise not_here
    except OSError:
        for each in opened:
            each.close()
        raise
    return opened


def _bind(family: stdlib_socket.AddressFamily, address: _Address) -> stdlib_socket.socket:
    # `[::]` is every address, as with gRPC, not every one of IPv6.
    dualstack = (
        family == stdlib_socket.AF_INET6
        and ip_address(str(address[0])).is_unspecified
        and stdlib_socket.has_dualstack_ipv6()
    )
    # SO_REUSEADDR, for a restart, but not SO_REUSEPORT: a second broker must not get every second
    # connection.
    return stdlib_socket.create_server(
        address, family=family, backlog=_BACKLOG, dualstack_ipv6=dualstack
    )


def _open_unix(path: Path) -> stdlib_socket.socket:
    with ExitStack() as on_failure:
        try:
            with _locked(path.parent):
                _remove_stale(path)
                opened = stdlib_socket.socket(stdlib_socket.AF_UNIX, stdlib_socket.SOCK_STREAM)
                on_failure.callback(opened.close)
                opened.bind(str(path))
                # Nobody can connect before listen(), so nobody can before the mode is set.
                path.chmod(_UNIX_MODE)
                opened.listen(_BACKLOG)
        except OSError as error:
            raise ListenError(f"unix:{path}", _reason(error)) from None
        on_failure.pop_all()
    return opened


def _remove_stale(path: Path) -> None:
    """Remove a socket's file that nobody listens on."""
    try:
        kind = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(kind):
        raise OSError(errno.EEXIST, "the file exists and is no socket")
    with stdlib_socket.socket(stdlib_socket.AF_UNIX, stdlib_socket.SOCK_STREAM) as probe:
        # A listener whose queue is full would keep a blocking one waiting.
        probe.settimeout(0)
        if probe.connect_ex(str(path)) != errno.ECONNREFUSED:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
    path.unlink()


def _remove(path: Path, identity: _Identity) -> None:
    """Remove our file, unless it has been removed, or replaced, already."""
    try:
        with _locked(path.parent):
            if _identity(path) == identity:
                path.unlink()
    except OSError as error:
        _log.warning("socket not removed", extra={"path": str(path), "reason": _reason(error)})


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Keep other brokers from looking at, replacing or removing a socket's file at the same time.

    Without it, of two that start on the file of a dead one, the second removes the first one's.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _identity(path: Path) -> _Identity:
    # The time as well: a freed inode's number is soon used again.
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns


def _reason(error: OSError) -> str:
    # The standard library adds the address to the text, and has texts without a number.
    if error.errno == errno.EEXIST or error.errno is None:
        return error.strerror or str(error)
    return os.strerror(error.errno)
