"""Every command with inputs, outputs and arguments that are given by mistake.

Whatever they are, a command ends soon, not with 0, and says why in one line.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from commitbus.broker import Broker
from commitbus.broker.cli import main, mqadmin, serve

LINE_MAX = 1200
SOON_S = 15.0
PROGRAM = "import sys; from commitbus.broker.cli.{} import main; sys.exit(main())"
LONG = "x" * 100_000


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(auto_create_topics=False) as running:
        running.create_topic("t", queues=1)
        yield running


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, broker: Broker) -> Path:
    """A directory of files that are not what they are taken for."""
    directory = tmp_path_factory.mktemp("files")
    (directory / "directory").mkdir()
    (directory / "garbage").write_bytes(secrets.token_bytes(5000))
    (directory / "empty").touch()
    (directory / "large.toml").write_text("# \n" * 1_000_000)
    (directory / "number.toml").write_text(f"metrics_port = {'9' * 10_001}\n")
    (directory / "hexadecimal.toml").write_text(f"delete_when = 0x{'f' * 10_001}\n")
    (directory / "nested.toml").write_text(f"a = {'[' * 100_000}\n")
    (directory / "key.toml").write_text(f"{'k' * 500_000} = 1\n")
    (directory / "latin1.toml").write_bytes(b'broker_name = "\xe9"\n')
    (directory / "nul.toml").write_text('store_directory = "a\\u0000b"\n')
    (directory / "broker.toml").write_text(f'broker_name = "{"x" * 2000}"\n')
    (directory / "cluster.toml").write_text(f'cluster_name = "{"x" * 40_000}"\n')
    (directory / "socket.toml").write_text(f'unix_socket = "{"x" * 400}"\n')
    (directory / "address.toml").write_text('advertise = "a..b:8081"\n')
    (directory / "zero.toml").write_text('tls_certificate = "/dev/zero"\n')
    (directory / "nested.json").write_text("[" * 200_000)
    (directory / "surrogate.json").write_text('{"body": "x", "tag": "\\ud800"}\n')
    (directory / "number.json").write_text('{"body": ' + "9" * 10_001 + "}\n")
    os.mkfifo(directory / "pipe")
    (directory / "store").symlink_to(broker.directory)
    return directory


@pytest.fixture
def run(
    files: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    broker: Broker,
) -> Callable[..., str]:
    """Run a command in this process; return the line with which it failed."""
    monkeypatch.chdir(files)
    monkeypatch.setenv("COMMITBUS_ENDPOINT", broker.endpoint)
    # The log of the test run is pytest's.
    monkeypatch.setattr(serve, "set_up_logging", lambda: None)

    def run(program: Callable[[Sequence[str]], int], *arguments: str) -> str:
        begun_s = time.monotonic()
        try:
            status = program(arguments)
        except SystemExit as error:
            status = int(str(error.code))
        assert time.monotonic() - begun_s < SOON_S
        said = capfd.readouterr().err
        assert status in (1, 2), said[:LINE_MAX]
        *before, line = said.splitlines()
        # Before it there may be argparse's usage, and how many messages were sent.
        assert [
            text for text in before if not text.startswith(("usage: ", " ", "produced 0"))
        ] == []
        assert len(line) < LINE_MAX
        assert line.startswith(("commitbus ", "mqadmin "))
        return line

    return run


BAD_FILES = (
    "missing",
    "directory",
    "garbage",
    "empty",
    "/dev/full",
    "/proc/self/mem",
    LONG,
    "a\0b",
    "",
)
"""`/dev/full` is read like `/dev/zero`: without an end."""


@pytest.mark.parametrize("name", BAD_FILES, ids=lambda name: repr(name[:16]))
@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "{}"),
        ("salvage", "{}", "out"),
        ("export", "{}", "out"),
        ("serve", "--config", "{}", "--listen", "nowhere"),
        ("serve", "--tls-certificate", "{}", "--store", "new", "--listen", "127.0.0.1:0"),
        ("produce", "t", "{}", "--format", "json"),
        ("consume", "t", "--ca", "{}"),
        ("produce", "t", "--ca", "{}"),
        ("mqadmin", "topicList", "--ca", "{}"),
    ],
    ids=" ".join,
)
def test_a_file_that_is_not_what_it_should_be(
    run: Callable[..., str], name: str, arguments: tuple[str, ...]
) -> None:
    """Missing, of another kind, without an end, unreadable, or with a name that no file has."""
    if arguments[0] == "export":
        pytest.importorskip("pyarrow")
    if (name, arguments[0]) == ("empty", "produce") and "--ca" not in arguments:
        pytest.skip("nothing to send is no mistake")
    if name == "" and ("--ca" in arguments or "--tls-certificate" in arguments):
        pytest.skip("as if it were not given")
    given = [argument.replace("{}", name) for argument in arguments]
    if given[0] == "mqadmin":
        run(mqadmin.main, *given[1:])
    else:
        run(main.main, *given)


@pytest.mark.parametrize("name", ["garbage", "/dev/full", "store", LONG])
@pytest.mark.parametrize("command", ["salvage", "export"])
def test_an_output_that_cannot_be_one(run: Callable[..., str], name: str, command: str) -> None:
    if command == "export":
        pytest.importorskip("pyarrow")
    run(main.main, command, "store", name)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("number.toml", "is not TOML: Exceeds the limit"),
        ("hexadecimal.toml", "delete_when: must be a text, not a number of thousands of digits"),
        ("nested.toml", "is nested too deeply"),
        ("large.toml", "3000000 bytes, at most 1048576 are"),
        ("pipe", "not a regular file"),
        ("key.toml", "...: no such setting"),
        ("latin1.toml", "is not TOML: 'utf-8' codec"),
        ("nul.toml", "store_directory: must be a path"),
        ("broker.toml", "broker_name: has 2000 characters, at most"),
        ("cluster.toml", "cluster_name: has 40000 bytes, at most"),
        ("socket.toml", "has 400 bytes, at most 107 are possible"),
        ("address.toml", "advertise: 'a..b' is not a host name"),
        ("zero.toml", "TLS certificate: /dev/zero: cannot be read: not a regular file"),
    ],
)
def test_settings_that_cannot_be(run: Callable[..., str], name: str, reason: str) -> None:
    """Each is a ConfigError, or a certificate's, before a client could meet it."""
    listen = ("--listen", "127.0.0.1:0", "--store", "new")
    assert reason in run(main.main, "serve", "--config", name, *listen)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nested.json", "line 1 is no message: it is nested too deeply"),
        ("surrogate.json", "surrogates not allowed"),
        ("number.json", "line 1 is no message: Exceeds the limit"),
    ],
)
def test_lines_that_no_message_is(run: Callable[..., str], name: str, reason: str) -> None:
    assert reason in run(main.main, "produce", "t", name, "--format", "json")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--broker", "a..b:8081"), "'a..b' is not a host name or address"),
        (("--broker", f"{LONG}:1"), "is not a host name or address"),
        (("--broker", "unix:"), "is not a socket's path"),
        (("--broker", f"unix:{LONG}"), "at most 107 are possible"),
        (("--from", "9" * 5000, "--queue", "0"), "is no offset"),
        (("--from", "9" * 19, "--queue", "0"), "is no offset"),
        (("--from", "5", "--queue", "9" * 5000), "is not a queue"),
        (("--from", "5", "--queue", "-1"), "is not a queue"),
        (("--from", "0001-01-01T00:00"), "nor a time"),
        (("--from", LONG), "nor a time"),
        (("--count", "9" * 5000), "is not a whole number"),
        (("--timeout", "nan"), "is no time"),
        (("--timeout", LONG), "is no time"),
        (("--tags", "\udcff"), "is not UTF-8"),
        (("--tags", LONG), "100000 characters"),
        (("--server-name", "a\0b"), "is not a host name or address"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, tuple) else "",
)
def test_arguments_that_make_no_sense(
    run: Callable[..., str], arguments: tuple[str, ...], reason: str
) -> None:
    assert reason in run(main.main, "consume", "t", *arguments)


@pytest.mark.parametrize("topic", ["", "\udcff", LONG, "a\0b", "no topic"])
def test_topics_that_cannot_be(run: Callable[..., str], topic: str) -> None:
    run(main.main, "consume", topic)
    run(main.main, "produce", topic, "garbage")
    if topic != "\udcff":
        run(mqadmin.main, "topicStatus", "-t", topic)


@pytest.mark.parametrize("command", sorted(mqadmin.COMMANDS))
def test_names_and_numbers_that_no_broker_takes(run: Callable[..., str], command: str) -> None:
    """Given to every option of every command that takes one value."""
    # Options that select nothing, or are accepted and ignored, are no mistake.
    harmless = {("consumerProgress", "-t"), ("brokerStatus", "-b"), ("sealSegment", "-b")}
    for option in ("-t", "-g", "-i", "-o", "-s"):
        for value in (LONG, "a\0b"):
            if (command, option) not in harmless:
                run(mqadmin.main, command, option, value)


# Standard streams


def start(
    script: str, module: str, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command behind some redirections of a shell."""
    inherited = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    program = [sys.executable, "-c", PROGRAM.format(module), *arguments]
    return subprocess.run(
        ["bash", "-c", f'exec "$@" {script}', "bash", *program],
        env={**inherited, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


EACH = [
    ("main", "-h"),
    ("main", "--version"),
    ("main", "config"),
    ("main", "serve", "--store", "NEW", "--listen", "127.0.0.1:0"),
    ("main", "check", "STORE"),
    ("main", "consume", "t"),
    ("main", "consume", "t", "--format", "json"),
    ("mqadmin", "topicList"),
    ("mqadmin", "topicList", "-h"),
    ("mqadmin", "help"),
]


@pytest.mark.parametrize("command", EACH, ids=" ".join)
def test_a_full_or_a_closed_standard_output(
    command: tuple[str, ...], broker: Broker, tmp_path: Path
) -> None:
    """Output that cannot be written is no success, and the reason is one line."""
    places = {"STORE": str(broker.directory), "NEW": str(tmp_path / "new")}
    module, *arguments = (places.get(text, text) for text in command)
    if "consume" in command:
        with subprocess.Popen(
            [sys.executable, "-c", PROGRAM.format("main"), "produce", "t"],
            stdin=subprocess.PIPE,
            env={**os.environ, "COMMITBUS_ENDPOINT": broker.endpoint},
        ) as producer:
            producer.communicate(b"hello\n" * 10)
    environment = {"COMMITBUS_ENDPOINT": broker.endpoint}
    full = start(">/dev/full", module, *arguments, **environment)
    assert full.stderr.endswith("standard output: No space left on device\n")
    assert full.returncode == 1
    if "serve" in arguments:
        return  # It has a log on standard error, and may run without an output.
    assert full.stderr.count("\n") == 1
    if "-h" not in arguments:
        # argparse then prints its help to standard error.
        closed = start(">&-", module, *arguments, **environment)
        assert closed.stderr.endswith(": standard output is closed\n")
        assert closed.returncode == 1
    assert start(">/dev/full 2>/dev/full", module, *arguments, **environment).returncode != 0
    nothing = start(">&- 2>&- <&-", module, *arguments, **environment)
    assert (nothing.stdout, nothing.stderr) == ("", "")


def test_a_closed_standard_input(broker: Broker) -> None:
    ended = start("<&-", "main", "produce", "t", COMMITBUS_ENDPOINT=broker.endpoint)
    assert ended.stderr.endswith("commitbus produce: standard input is closed\n")
    assert ended.returncode == 1


def test_a_closed_stream_does_not_become_a_file_of_the_store(tmp_path: Path) -> None:
    """A library's output to standard error must not end in the first file that is opened."""
    program = (
        "import os, sys; from commitbus.broker.cli.output import prepare_streams\n"
        "prepare_streams(); number = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR)\n"
        "sys.exit(number > 2 and sys.stderr is not None)"
    )
    ended = subprocess.run(
        ["bash", "-c", 'exec "$@" <&- >&- 2>&-', "bash", sys.executable, "-c", program, "file"],
        cwd=tmp_path,
        check=False,
    )
    assert ended.returncode == 1


def test_an_argument_of_every_command_is_tried() -> None:
    """A new command belongs into the tables above."""
    assert set(main.COMMANDS) == {
        *("serve", "demo", "produce", "consume"),
        *("check", "salvage", "export", "config"),
    }
