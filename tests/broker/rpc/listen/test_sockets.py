"""Addresses that are listened on."""

from __future__ import annotations

import errno
import os
import socket
import stat
from pathlib import Path

import pytest
import trio

from commitbus.broker.rpc.address import ListenError
from commitbus.broker.rpc.listen import sockets
from commitbus.broker.rpc.listen.sockets import open_listeners


def test_every_address_of_a_host_gets_the_same_free_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """`localhost` is two addresses on most machines, and clients try either."""
    hosts = ["127.0.0.1", "127.0.0.2", "127.0.0.1"]
    found = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, 0)) for host in hosts]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    with open_listeners("both.example:0") as listeners:
        assert len(listeners.sockets) == 2
        for host in hosts:
            with socket.socket() as client:
                client.connect((host, listeners.port))


def test_a_free_port_must_be_free_on_every_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is taken on the second address is given up, another one is tried."""
    found = [
        (socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, 0))
        for host in ("127.0.0.1", "127.0.0.2")
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    taken: list[socket.socket] = []
    bind = sockets._bind

    def bind_after_somebody_else(family: socket.AddressFamily, address: tuple[str, int]) -> object:
        if address[0] == "127.0.0.2" and not taken:
            taken.append(socket.create_server(address))
        return bind(family, address)

    monkeypatch.setattr(sockets, "_bind", bind_after_somebody_else)
    with open_listeners("both.example:0") as listeners:
        assert listeners.port != taken[0].getsockname()[1]
    taken[0].close()


def test_an_address_that_this_machine_lacks_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """`localhost` names ::1 also where IPv6 is off."""
    found = [
        (socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, 0))
        for host in ("192.0.2.1", "127.0.0.1")
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    with open_listeners("both.example:0") as listeners:
        assert len(listeners.sockets) == 1


def test_a_second_broker_on_the_port_is_refused() -> None:
    """It must not get every second connection."""
    with open_listeners("127.0.0.1:0") as listeners:
        for host in ("127.0.0.1", "0.0.0.0"):  # noqa: S104 - refused is what it is to be
            with pytest.raises(ListenError) as caught, open_listeners(f"{host}:{listeners.port}"):
                pass
            assert caught.value.reason == "Address already in use"
    with open_listeners(f"127.0.0.1:{listeners.port}") as again:
        assert again.port == listeners.port


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("nowhere", "'nowhere' is not host:port (an IPv6 address needs brackets)"),
        ("192.0.2.1:0", "Cannot assign requested address"),
        ("a..b:0", "'a..b' is not a host name or address"),
    ],
)
def test_an_address_that_is_not_this_machine_s_is_refused(address: str, reason: str) -> None:
    """With the operating system's reason."""
    with pytest.raises(ListenError) as caught, open_listeners(address):
        pass
    assert caught.value.address == address
    assert caught.value.reason.startswith(reason)


def test_a_host_that_is_unknown_is_refused() -> None:
    """`.invalid` never resolves (RFC 6761)."""
    with pytest.raises(ListenError), open_listeners("no-such-host.invalid:0"):
        pass


@pytest.mark.usefixtures("ipv6")
def test_the_wildcard_of_ipv6_means_ipv4_as_well() -> None:
    """As with gRPC, and with every server of Java."""
    with open_listeners("[::]:0") as listeners:
        for host in ("127.0.0.1", "::1"):
            socket.create_connection((host, listeners.port)).close()
    with open_listeners("[::1]:0") as listeners:
        socket.create_connection(("::1", listeners.port)).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", listeners.port))


def test_small_packets_are_not_kept_waiting() -> None:
    """Nagle's algorithm would hold an answer back until the last one is acknowledged."""

    async def connect() -> None:
        with open_listeners("127.0.0.1:0") as listeners:
            client = await trio.open_tcp_stream("127.0.0.1", listeners.port)
            async with client, await listeners.sockets[0].accept() as accepted:
                assert accepted.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    trio.run(connect)


def test_a_unix_socket_is_there_while_it_is_listened_on(tmp_path: Path) -> None:
    """For user and group, and gone afterwards."""
    path = tmp_path / "broker.sock"
    with open_listeners("127.0.0.1:0", path) as listeners:
        assert len(listeners.sockets) == 2
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
    assert list(tmp_path.iterdir()) == []


def test_the_socket_of_a_dead_process_is_replaced(tmp_path: Path) -> None:
    """Nobody listens on it: `kill -9` leaves such a file."""
    path = tmp_path / "broker.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with (
        open_listeners("127.0.0.1:0", path),
        socket.socket(socket.AF_UNIX) as client,
    ):
        client.connect(str(path))


def test_the_socket_of_a_living_process_is_refused(tmp_path: Path) -> None:
    """And goes on listening; neither is the port taken."""
    path = tmp_path / "broker.sock"
    with open_listeners("127.0.0.1:0", path) as living:
        with pytest.raises(ListenError) as caught, open_listeners("127.0.0.1:0", path):
            pass
        assert (caught.value.address, caught.value.reason) == (
            f"unix:{path}",
            "Address already in use",
        )
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
        assert living.port


def test_a_socket_whose_queue_is_full_is_a_living_process_s(tmp_path: Path) -> None:
    """It cannot be connected to without waiting, and is not to be replaced."""
    path = tmp_path / "broker.sock"
    with socket.socket(socket.AF_UNIX) as busy:
        busy.bind(str(path))
        busy.listen(0)
        waiting = [socket.socket(socket.AF_UNIX) for _ in range(3)]
        for client in waiting:
            client.settimeout(0)
        codes = [client.connect_ex(str(path)) for client in waiting]
        assert errno.EAGAIN in codes
        with pytest.raises(ListenError, match="in use"), open_listeners("127.0.0.1:0", path):
            pass
        for client in waiting:
            client.close()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("file", "the file exists and is no socket"),
        ("missing/broker.sock", "No such file or directory"),
        ("x" * 200, "AF_UNIX path too long"),
    ],
)
def test_a_path_that_can_be_no_socket_is_refused(tmp_path: Path, name: str, reason: str) -> None:
    """What is there stays, and the port is free again."""
    (tmp_path / "file").write_text("precious")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with pytest.raises(ListenError) as caught, open_listeners(f"127.0.0.1:{port}", tmp_path / name):
        pass
    assert caught.value.reason == reason
    assert [path.read_text() for path in tmp_path.iterdir()] == ["precious"]
    with open_listeners(f"127.0.0.1:{port}"):
        pass


def test_what_has_taken_the_path_since_is_left_alone(tmp_path: Path) -> None:
    """An operator may remove the file, and another broker make its own."""
    path = tmp_path / "broker.sock"
    with open_listeners("127.0.0.1:0", path):
        path.unlink()
        path.write_text("somebody else's")
    assert path.read_text() == "somebody else's"
    path.unlink()
    with open_listeners("127.0.0.1:0", path):
        path.unlink()
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_vanished_does_not_keep_a_broker_from_stopping(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A line says so."""
    path = tmp_path / "run" / "broker.sock"
    path.parent.mkdir()
    with open_listeners("127.0.0.1:0", path):
        path.unlink()
        path.parent.rmdir()
    assert [record.message for record in caplog.records] == ["socket not removed"]
    assert os.listdir(tmp_path) == []
