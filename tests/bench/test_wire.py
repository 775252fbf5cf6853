"""Rows of a broker's figures from what the load generator prints."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from bench import wire

PRINTED: dict[str, Any] = {
    "calls": 3010,
    "others": 10,
    "seconds": 3.0,
    "p50_ms": 1.5,
    "p99_ms": 4.0,
    "messages": 64_000,
    "acks": 64_000,
}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The options of each run of the generator, which stands still and prints the same."""
    calls: list[dict[str, Any]] = []

    def generate(_endpoint: str, path: str, request: bytes, **options: Any) -> dict[str, Any]:
        assert request
        calls.append({"path": path.rsplit("/", 1)[1], **options})
        return PRINTED

    @contextmanager
    def settings(*_: str) -> Iterator[None]:
        yield

    monkeypatch.setattr(wire, "generate", generate)
    monkeypatch.setattr(wire, "receiver_settings", settings)
    monkeypatch.setattr(wire, "fill", lambda *_: None)
    return calls


def test_what_was_refused_is_not_counted(calls: list[dict[str, Any]]) -> None:
    rows = wire.unary("somewhere", "SYNC_FLUSH")
    assert rows[0] == ("unary send, 1 in flight, SYNC_FLUSH", "msg/s", 1000.0, "")
    assert rows[2] == ("unary send, 1 in flight, SYNC_FLUSH, p99", "ms", 4.0, "")
    assert len(rows) == 3 * len(wire.IN_FLIGHT)


def test_every_broker_is_warmed_before_it_is_measured(calls: list[dict[str, Any]]) -> None:
    wire.unary("somewhere", "ASYNC_FLUSH")
    assert calls[0]["calls"] == wire.WARM_CALLS
    assert [call["in_flight"] for call in calls[1:]] == list(wire.IN_FLIGHT)


def test_messages_are_received_by_new_groups_with_and_without_acks(
    calls: list[dict[str, Any]],
) -> None:
    rows = wire.receive("somewhere")
    assert [row[0] for row in rows if row[1] == "msg/s"] == [
        "receive, 32 per call",
        "receive and ack, 32 per call",
    ]
    assert rows[0][2] == 64_000 / 3.0
    assert ["ack" in call for call in calls] == [False, False, True, True]


def test_acks_that_failed_are_no_result(
    calls: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PRINTED, "acks", 10)
    with pytest.raises(AssertionError):
        wire.receive_as("somewhere", "Group", with_ack=True)
