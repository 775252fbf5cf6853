"""Every command that speaks to a broker, over TLS and over a Unix socket."""

from __future__ import annotations

import argparse
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from commitbus.broker.cli import main, mqadmin
from commitbus.broker.cli.common_options import add_tls_options
from commitbus.broker.cli.output import CommandError
from commitbus.broker.cli.tls import PLAINTEXT, Tls, tls_of
from commitbus.broker.common.address import split_host_port
from tests.broker.tls_broker import Signed, broker_with, signed_certificate

AT_ONCE_S = 2.5
"""Less than the time for which a broker that is not there is waited for."""
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Signed:
    return signed_certificate(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def secure(signed: Signed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The endpoint of a broker that takes TLS only, with a certificate that was signed."""
    with broker_with(tls_mode="enforcing", tls_certificate=signed.server) as broker:
        broker.create_topic("t", queues=1)
        yield broker.endpoint


@pytest.fixture(scope="module")
def self_signed() -> Iterator[str]:
    """The endpoint of a broker that takes TLS only, with a certificate of its own making."""
    with broker_with(tls_mode="enforcing") as broker:
        broker.create_topic("t", queues=1)
        yield broker.endpoint


@pytest.fixture(scope="module")
def plaintext() -> Iterator[str]:
    with broker_with(tls_mode="disabled") as broker:
        broker.create_topic("t", queues=1)
        yield broker.endpoint


@pytest.fixture(autouse=True)
def nothing_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ENDPOINT", "TLS", "CA", "TLS_INSECURE", "SERVER_NAME"):
        monkeypatch.delenv(f"COMMITBUS_{name}", raising=False)


def run(command: str, endpoint: str, *options: str) -> int:
    """Run one of the commands."""
    if command == "mqadmin":
        return mqadmin.main(["topicList", "-n", endpoint, *options])
    rest = ["/dev/null"] if command == "produce" else []
    return main.main([command, "t", *rest, "--broker", endpoint, *options])


every_command = pytest.mark.parametrize("command", ["mqadmin", "produce", "consume"])


@every_command
def test_a_signed_certificate_is_verified(command: str, secure: str, signed: Signed) -> None:
    """With the authority's file, by address and by name."""
    assert run(command, secure, "--ca", str(signed.authority)) == 0
    name = ("--server-name", "mq.test")
    assert run(command, secure, "--tls", "--ca", str(signed.authority), *name) == 0


@every_command
def test_a_self_signed_certificate_is_taken_where_it_is_asked_for(
    command: str, self_signed: str, tmp_path: Path
) -> None:
    """Unseen, or as it was seen before."""
    assert run(command, self_signed, "--tls-insecure") == 0
    pinned = tmp_path / "pinned.pem"
    pinned.write_text(ssl.get_server_certificate(split_host_port(self_signed)))
    assert run(command, self_signed, "--ca", str(pinned)) == 0


@every_command
def test_the_environment_says_the_same(
    command: str, secure: str, self_signed: str, signed: Signed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a shell is set up once."""
    monkeypatch.setenv("COMMITBUS_CA", str(signed.authority))
    assert run(command, secure) == 0
    monkeypatch.setenv("COMMITBUS_SERVER_NAME", "other.test")
    assert run(command, secure) == 1
    assert run(command, secure, "--server-name", "mq.test") == 0
    monkeypatch.setenv("COMMITBUS_TLS_INSECURE", "1")
    assert run(command, self_signed) == 0


@every_command
def test_a_unix_socket_is_reached(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In plaintext, whatever the port demands and the environment says."""
    monkeypatch.setenv("COMMITBUS_TLS", "1")
    monkeypatch.chdir(tmp_path)
    with broker_with(tls_mode="enforcing", unix_socket=Path("broker.sock")) as broker:
        broker.create_topic("t", queues=1)
        assert run(command, "unix:broker.sock") == 0
        assert run(command, f"unix:{tmp_path}/broker.sock") == 0
        assert run(command, f"unix://{tmp_path}/broker.sock") == 0


@every_command
@pytest.mark.parametrize(
    ("broker", "option", "says"),
    [
        ("secure", "", "it expects TLS: add --tls\n"),
        (
            "secure",
            "--tls",
            "failed: unable to get local issuer certificate (--ca FILE says",
        ),
        ("self_signed", "--tls", "certificate verify failed: self"),
        ("plaintext", "--tls", "it expects plaintext, not TLS: leave out --tls"),
    ],
)
def test_what_is_wrong_is_said_at_once(
    command: str,
    broker: str,
    option: str,
    says: str,
    *,
    request: pytest.FixtureRequest,
    capfd: Capture,
) -> None:
    """One line that names the option that helps, on the first attempt."""
    endpoint = request.getfixturevalue(broker)
    begun_s = time.monotonic()
    assert run(command, endpoint, *option.split()) == 1
    assert time.monotonic() - begun_s < AT_ONCE_S
    said = capfd.readouterr().err
    assert f"the broker at {endpoint} is not available: " in said
    assert says in said
    assert "Traceback" not in said
    assert len([line for line in said.splitlines() if "not available" in line]) == 1


@pytest.mark.parametrize("command", ["produce", "consume"])
def test_a_broker_that_goes_away_is_waited_for_as_long_as_was_asked(
    command: str, capfd: Capture
) -> None:
    """No process listens: the command fails after the given time."""
    begun_s = time.monotonic()
    assert run(command, "127.0.0.1:1", "--timeout", "0.3") == 1
    assert 0.3 <= time.monotonic() - begun_s < AT_ONCE_S
    assert capfd.readouterr().err == (
        f"commitbus {command}: the broker at 127.0.0.1:1 is not available: Connection refused\n"
    )


# Meaning of options and variables


def options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_tls_options(parser)
    return parser.parse_args(arguments)


def test_plaintext_unless_tls_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """And where `--no-tls` takes back what the environment says."""
    assert tls_of(options()) == PLAINTEXT
    monkeypatch.setenv("COMMITBUS_TLS", "true")
    assert tls_of(options()).context is not None
    assert tls_of(options("--no-tls")) == PLAINTEXT
    monkeypatch.setenv("COMMITBUS_TLS", "off")
    assert tls_of(options()) == PLAINTEXT


def is_verifying(tls: Tls) -> bool:
    assert tls.context is not None
    return tls.context.verify_mode is ssl.CERT_REQUIRED and tls.context.check_hostname


def test_nothing_is_verified_only_where_that_was_said(
    signed: Signed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An authority on the command line is stronger than what the environment lets pass."""
    assert is_verifying(tls_of(options("--tls")))
    assert not is_verifying(tls_of(options("--tls-insecure")))
    monkeypatch.setenv("COMMITBUS_TLS_INSECURE", "yes")
    assert not is_verifying(tls_of(options("--tls")))
    assert is_verifying(tls_of(options("--ca", str(signed.authority))))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: path / "missing", "cannot be read: No such file"),
        (lambda path: path, "cannot be read: Is a directory"),
        (lambda _: Path("/dev/zero"), "cannot be read: not a regular file"),
        (lambda _: Path(__file__), "no certificate in PEM"),
    ],
)
def test_a_file_without_authorities_is_refused(
    make: Callable[[Path], Path], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(CommandError, match=reason):
        tls_of(options("--ca", str(make(tmp_path))))


def test_a_variable_that_makes_no_sense_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither yes nor no is a mistake, not a no."""
    monkeypatch.setenv("COMMITBUS_TLS", "tls")
    with pytest.raises(CommandError, match=r"\$COMMITBUS_TLS is 'tls', not 1 or 0"):
        tls_of(options())
