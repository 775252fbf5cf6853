"""A running broker, and mqadmin pointed at it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from commitbus.broker import Broker
from commitbus.broker.cli.mqadmin import main


def eventually(read: Callable[[], Any]) -> Any:
    """Read until there is something: queues and index follow the log within milliseconds."""
    for _ in range(1000):
        if found := read():
            return found
    raise AssertionError("it never appeared")


@pytest.fixture(autouse=True)
def bodies_stay_in_the_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Message bodies are written below the temporary directory."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


class Mqadmin(Protocol):
    """Runs a command that must succeed."""

    def __call__(self, *arguments: str) -> str:
        """Return what it printed."""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """One broker for all tests of a module: each uses topics of its own."""
    with Broker(auto_create_topics=False) as running:
        yield running


@pytest.fixture
def mqadmin(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Mqadmin:
    """mqadmin, with the endpoint in the environment."""
    monkeypatch.setenv("COMMITBUS_ENDPOINT", broker.endpoint)

    def run(*arguments: str) -> str:
        status = main(arguments)
        captured = capsys.readouterr()
        assert captured.err == ""
        assert status == 0
        return captured.out

    return run


class MqadminJson(Protocol):
    """Runs a command that must succeed, with `--json`."""

    def __call__(self, *arguments: str) -> Any:
        """Return what it printed, decoded."""


@pytest.fixture
def mqadmin_json(mqadmin: Mqadmin) -> MqadminJson:
    """Mqadmin for programs."""
    return lambda *arguments: json.loads(mqadmin(*arguments, "--json"))


class Refused(Protocol):
    """Runs a command that must fail."""

    def __call__(self, *arguments: str) -> str:
        """Return the reason it printed."""


@pytest.fixture
def refused(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Refused:
    """Mqadmin asked for what cannot be done."""
    monkeypatch.setenv("COMMITBUS_ENDPOINT", broker.endpoint)

    def run(*arguments: str) -> str:
        status = main(arguments)
        captured = capsys.readouterr()
        assert captured.out == ""
        assert status == 1
        assert captured.err.startswith(f"mqadmin {arguments[0]}: ")
        return captured.err

    return run
