"""`commitbus produce` and `commitbus consume`, as they are typed."""

from __future__ import annotations

import base64
import json
import secrets
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Protocol

import pytest

from commitbus.broker import Broker
from commitbus.broker.cli.admin_client import AdminClient
from commitbus.broker.cli.main import main

COMMAND = [
    sys.executable,
    "-c",
    "import sys; from commitbus.broker.cli.main import main; sys.exit(main())",
]


class Commitbus(Protocol):
    """Runs a command in this process."""

    def __call__(self, *arguments: str, status: int = 0) -> tuple[str, str]:
        """Return what it printed on standard output and standard error."""


@pytest.fixture
def commitbus(broker: Broker, capfdbinary: pytest.CaptureFixture[bytes]) -> Commitbus:
    def run(*arguments: str, status: int = 0) -> tuple[str, str]:
        name, *rest = arguments
        assert main([name, "--broker", broker.endpoint, *rest]) == status
        sys.stdout.flush()
        captured = capfdbinary.readouterr()
        return captured.out.decode(errors="replace"), captured.err.decode()

    return run


@pytest.fixture
def topic(broker: Broker) -> str:
    name = f"topic-{secrets.token_hex(4)}"
    broker.create_topic(name, queues=1)
    return name


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "lines"
    path.write_bytes(b"one\ntwo\r\n\nthree \xff")
    return path


def test_lines_go_in_and_come_out(commitbus: Commitbus, topic: str, lines: Path) -> None:
    """Empty ones are left out, and a missing line end at the end is none."""
    _, said = commitbus("produce", topic, str(lines), "--tag", "t")
    assert said.startswith("produced 3 messages, 13 bytes, in ")
    out, said = commitbus("consume", topic, "--count", "2")
    assert out == "one\ntwo\n"
    assert said.startswith("consumed 2 messages, 8 bytes, in ")
    assert commitbus("consume", topic, "--from", "1", "--queue", "0", "--count", "1")[0] == "two\n"
    assert commitbus("consume", topic, "--from", "latest")[0] == ""
    assert commitbus("consume", topic, "--tags", "other")[0] == ""


def test_durable_lines_are_flushed_when_they_are_counted(
    commitbus: Commitbus, topic: str, lines: Path, broker: Broker
) -> None:
    """Although the broker answers before."""
    commitbus("produce", topic, str(lines), "--durable")
    with AdminClient(broker.endpoint) as client:
        assert client.broker().flush_behind_bytes == 0


def test_json_lines_carry_everything_about_a_message(
    commitbus: Commitbus, topic: str, broker: Broker, tmp_path: Path
) -> None:
    """So that a topic can be copied with a pipe."""
    messages: list[dict[str, Any]] = [
        {"body": "text é", "tag": "t", "keys": ["a", "b"], "properties": {"p": "v"}},
        {"body_base64": base64.b64encode(b"\xff\x00").decode()},
    ]
    path = tmp_path / "messages"
    path.write_text("".join(json.dumps(message) + "\n" for message in messages))
    commitbus("produce", topic, str(path), "--format", "json")
    out, _ = commitbus("consume", topic, "--format", "json")
    path.write_text(out)
    copy = f"{topic}-copy"
    broker.create_topic(copy, queues=1)
    commitbus("produce", copy, str(path), "--format", "json")
    for name in (topic, copy):
        out, _ = commitbus("consume", name, "--format", "json")
        first, second = map(json.loads, out.splitlines())
        assert first.items() >= messages[0].items()
        assert second.items() >= {**messages[1], "tag": "", "keys": [], "properties": {}}.items()
        assert (second["queue_id"], second["queue_offset"]) == (0, 1)


def test_counts_are_json_for_programs(commitbus: Commitbus, topic: str, lines: Path) -> None:
    out, said = commitbus("produce", topic, str(lines), "--json")
    assert json.loads(out)["messages"] == 3
    assert said == ""
    _, said = commitbus("consume", topic, "--json")
    assert json.loads(said)["bytes"] == 16


def test_a_rate_is_kept(commitbus: Commitbus, topic: str, tmp_path: Path) -> None:
    path = tmp_path / "numbers"
    path.write_text("x\n" * 30)
    out, _ = commitbus("produce", topic, str(path), "--rate", "100", "--json")
    assert json.loads(out)["seconds"] >= 0.28


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "line 2 is no message: Expecting"),
        ("[]", "line 2 is no message: it is no JSON object"),
        ("{}", "line 2 is no message: it has neither body nor body_base64"),
        ('{"body": 1}', "line 2 is no message: body, body_base64, tag"),
        ('{"body_base64": "x"}', "line 2 is no message: "),
        ('{"body": "x", "keys": "k"}', "line 2 is no message: keys must be a list"),
        ('{"body": "x", "tag": "a|b"}', "line 2: tag 'a|b' is blank, or has"),
    ],
)
def test_a_line_that_is_no_message_is_named(
    commitbus: Commitbus, topic: str, tmp_path: Path, line: str, reason: str
) -> None:
    path = tmp_path / "bad"
    path.write_text(f'{{"body": "good"}}\n{line}\n')
    _, said = commitbus("produce", topic, str(path), "--format", "json", status=1)
    assert f"commitbus produce: {reason}" in said
    assert "Traceback" not in said


def test_what_cannot_be_done_is_one_line(commitbus: Commitbus, topic: str, lines: Path) -> None:
    for arguments, reason in (
        (("produce", "no topic", str(lines)), "'no topic' is no topic"),
        (("produce", "unknown", str(lines)), "no such topic: unknown"),
        (("produce", topic, "/no/such/file"), "/no/such/file: No such file or directory"),
        (("consume", "unknown"), "no such topic: unknown"),
        (("consume", topic, "--from", "5"), "an offset is that of a queue"),
        (("consume", topic, "--from", "5", "--queue", "0"), "is out of range"),
        (("consume", topic, "--queue", "0"), "--queue goes with an offset"),
        (("consume", topic, "--from", "yesterday"), "'yesterday' is neither"),
    ):
        _, said = commitbus(*arguments, status=1)
        last = said.splitlines()[-1]
        assert last.startswith(f"commitbus {arguments[0]}: ")
        assert reason in last or "outside" in last


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["consume", "t", "--count", "0"], "--count: '0' is not a whole number from 1"),
        (["consume", "t", "--count", "x"], "--count: 'x' is not a whole number from 1"),
        (["produce", "t", "--rate", "0"], "--rate: '0' is not a number above 0"),
        (["produce", "t", "--rate", "x"], "--rate: 'x' is not a number above 0"),
        (["produce", "t", "--rate", "nan"], "--rate: 'nan' is not a number above 0"),
        (["consume", "t", "--broker", "nowhere"], "--broker: 'nowhere' is not host:port"),
    ],
)
def test_usage_errors_are_argparse_s(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert reason in capsys.readouterr().err


def test_a_broker_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["consume", "t", "--broker", "127.0.0.1:1", "--timeout", "0.25"]) == 1
    assert "the broker at 127.0.0.1:1 is not available" in capsys.readouterr().err


def start(*arguments: str, **streams: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, **streams
    )


def test_pipes_and_interrupts_end_cleanly(broker: Broker, topic: str) -> None:
    """A reader that has seen enough, and Ctrl-C on either side."""
    at = ("--broker", broker.endpoint)
    with start("consume", topic, *at, "--follow") as consumer:
        with start("produce", topic, *at, stdin=subprocess.PIPE) as producer:
            assert producer.stdin is not None
            assert consumer.stdout is not None
            producer.stdin.write(b"first\n")
            producer.stdin.flush()
            assert consumer.stdout.readline() == b"first\n"
            producer.send_signal(signal.SIGINT)
            _, said = producer.communicate(timeout=30)
            assert said.decode().startswith("produced 1 messages")
            assert producer.returncode == 1
        consumer.send_signal(signal.SIGINT)
        out, said = consumer.communicate(timeout=30)
        assert (out, consumer.returncode) == (b"", 0)
        assert said.decode().startswith("consumed 1 messages")


def test_a_reader_that_goes_away_is_no_error(
    broker: Broker, commitbus: Commitbus, topic: str, tmp_path: Path
) -> None:
    path = tmp_path / "many"
    path.write_text(f"{'x' * 1000}\n" * 5000)
    commitbus("produce", topic, str(path))
    with start("consume", topic, "--broker", broker.endpoint) as consumer:
        assert consumer.stdout is not None
        assert consumer.stdout.readline()
        consumer.stdout.close()
        assert consumer.stderr is not None
        said = consumer.stderr.read().decode()
        assert consumer.wait(30) == 0
    assert "Traceback" not in said
    assert "Broken" not in said
