"""Ctrl-C and SIGTERM, at any moment of a command."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from commitbus.broker import Broker
from commitbus.broker.cli import serve
from commitbus.broker.cli.main import main
from commitbus.broker.store.message_store import MessageStore

PROGRAM = "import sys; from commitbus.broker.cli.{} import main; sys.exit(main())"
WITHIN_S = 20


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        running.create_topic("t", queues=1)
        yield running


def start(*arguments: str, **streams: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format("main"), *arguments],
        stderr=subprocess.PIPE,
        **streams,
    )


def test_one_interrupt_ends_a_consumer_whose_reader_does_not_read(broker: Broker) -> None:
    """The write that waits for the pipe is given up with the rest."""
    at = ("--broker", broker.endpoint)
    with start("produce", "t", *at, stdin=subprocess.PIPE) as producer:
        producer.communicate(b"x" * 1000 + b"\n" + (b"y" * 1000 + b"\n") * 2000, timeout=WITHIN_S)
    with start("consume", "t", *at, stdout=subprocess.PIPE) as consumer:
        assert consumer.stdout is not None
        # The pipe holds 64 KiB of the two megabytes.
        assert consumer.stdout.read(1) == b"x"
        time.sleep(0.3)
        consumer.send_signal(signal.SIGINT)
        assert consumer.wait(WITHIN_S) == 1
        assert consumer.stderr is not None
        assert consumer.stderr.read().startswith(b"consumed ")


@pytest.mark.parametrize("name", ["pipe", "-"])
def test_an_interrupt_ends_what_has_not_begun(name: str, tmp_path: Path) -> None:
    """A named pipe without a writer, and a broker that does not answer."""
    os.mkfifo(tmp_path / "pipe")
    streams = {"stdin": subprocess.DEVNULL, "cwd": tmp_path, "stdout": subprocess.DEVNULL}
    with socket.create_server(("127.0.0.1", 0)) as silent:
        at = ("--broker", f"127.0.0.1:{silent.getsockname()[1]}", "--timeout", "60")
        with start("produce", "t", name, *at, **streams) as producer:
            time.sleep(1.5)
            producer.send_signal(signal.SIGINT)
            assert producer.wait(WITHIN_S) == 1
            assert producer.stderr is not None
            assert b"Traceback" not in producer.stderr.read()


@pytest.mark.parametrize(
    "module",
    [
        "commitbus.broker.cli.output",
        "argparse",
        "json",
        "commitbus.broker.cli.consume",
        "trio",
        "commitbus.broker.cli.tls",
        "commitbus.broker.client.consumer",
        "google.protobuf.message",
    ],
)
@pytest.mark.parametrize(
    ("program", "arguments"), [("main", ["consume", "t"]), ("mqadmin", ["topicList"])]
)
def test_an_interrupt_while_modules_are_imported_is_quiet(
    module: str, program: str, arguments: list[str]
) -> None:
    """Which takes half of the time of a short command."""
    # Importing nothing that the command itself would import.
    script = (
        "import os, signal, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}: os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder)\n"
        "Finder.find_spec = classmethod(Finder.find_spec)\n"
    ) + PROGRAM.format(program)
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={**os.environ, "COMMITBUS_ENDPOINT": "127.0.0.1:1"},
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert done.returncode == 1


def test_a_signal_ends_a_start_that_takes_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A recovery of minutes is not waited for: the next start does it again."""
    asked = []

    def recover_for_ever(*_: object, on_progress: Any, **__: object) -> MessageStore:
        until_s = time.monotonic() + WITHIN_S
        while time.monotonic() < until_s:
            asked.append(on_progress("recovering the log", 1, 2))
            time.sleep(0.01)
        raise AssertionError("the recovery was not ended")

    def terminate() -> None:
        while len(asked) < 3:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(MessageStore, "open", recover_for_ever)
    monkeypatch.setattr(serve, "set_up_logging", lambda: None)
    signalling = threading.Thread(target=terminate)
    signalling.start()
    assert main(["serve", "--store", str(tmp_path / "store"), "--listen", "127.0.0.1:0"]) == 0
    signalling.join()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "stopped before the start was complete\n"
