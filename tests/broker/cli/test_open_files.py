"""The limit of open files."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from commitbus.broker import Broker
from commitbus.broker.cli.open_files import raise_open_files_limit


def test_a_broker_may_open_as_many_files_as_the_system_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And starts all the same where the system does not keep its word."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        raise_open_files_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)

    def refuse(*_: object) -> None:
        raise ValueError("current limit exceeds maximum limit")

    monkeypatch.setattr("resource.setrlimit", refuse)
    raise_open_files_limit()


@pytest.mark.parametrize("command", ["check", "salvage", "export"])
def test_every_command_that_opens_a_store_raises_the_limit(command: str, tmp_path: Path) -> None:
    """A store of some hundred log files needs more than a shell's usual 1,024."""
    if command == "export":
        pytest.importorskip("pyarrow")
    with Broker(tmp_path / "store") as broker:
        broker.create_topic("t", queues=1)
    out = [] if command == "check" else [str(tmp_path / "out")]
    program = (
        "import resource as r, sys; from commitbus.broker.cli.main import main\n"
        "hard = r.getrlimit(r.RLIMIT_NOFILE)[1]; r.setrlimit(r.RLIMIT_NOFILE, (200, hard))\n"
        "main(sys.argv[1:]); print('limit', r.getrlimit(r.RLIMIT_NOFILE) == (hard, hard))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, command, str(tmp_path / "store"), *out],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.endswith("limit True\n"), done.stderr
