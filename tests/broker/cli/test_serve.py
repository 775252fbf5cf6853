"""`commitbus serve` without a process of its own."""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path

import pytest
import trio

from commitbus.broker.cli import serve
from commitbus.broker.cli.main import main


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--listen", "nowhere"), "commitbus serve: listen: 'nowhere' is not host:port"),
        (("--listen", "192.0.2.1:0"), "commitbus serve: cannot listen on 192.0.2.1:0"),
        (("--store", "broker.toml"), "is not a store: it is a file"),
        (("--config", "missing.toml"), "missing.toml: --config: cannot be read"),
        (("--metrics-port", "70000"), "metrics_port: must be a port"),
        (
            ("--transport", "grpcio", "--tls-certificate", "server.pem"),
            "tls_certificate: needs transport = trio",
        ),
        (("--tls-key", "server.key"), "tls_key: lacks tls_certificate"),
    ],
)
def test_a_start_that_fails_says_why(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    reason: str,
) -> None:
    """One line for the operator and a status, no traceback."""
    monkeypatch.chdir(tmp_path)
    # The log of the test run is pytest's.
    monkeypatch.setattr(serve, "set_up_logging", lambda: None)
    Path("broker.toml").write_text("log_file_bytes = 8388608\nindex_slots = 10\n")
    defaults = ("--store", "store", "--config", "broker.toml", "--listen", "127.0.0.1:0")
    assert main(["serve", *defaults, *arguments]) == 1
    captured = capsys.readouterr()
    assert reason in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_the_first_signal_drains_and_the_second_one_leaves_at_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Who asks twice does not want to wait for the slowest client."""
    exits: list[int] = []

    async def run() -> None:
        stop, left = trio.Event(), trio.Event()

        def leave(status: int) -> None:
            exits.append(status)
            left.set()

        monkeypatch.setattr(os, "_exit", leave)
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                await nursery.start(serve._stop_on_signal, stop)
                signal.raise_signal(signal.SIGTERM)
                await stop.wait()
                assert exits == []
                signal.raise_signal(signal.SIGINT)
                await left.wait()
                nursery.cancel_scope.cancel()

    with caplog.at_level(logging.INFO):
        trio.run(run)
    assert exits == [128 + signal.SIGINT]
    assert [record.message for record in caplog.records][:2] == ["stopping", "stopping at once"]
