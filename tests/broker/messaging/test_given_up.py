"""Calls that their clients gave up before they had their turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio

from commitbus.broker.receiving.scan import Scan
from tests.broker.messaging.pulls import pull

Run = Callable[..., None]


def test_a_receive_that_was_given_up_takes_nothing(run: Run) -> None:
    """Taken, the message would be invisible to everybody for a second."""

    async def scenario(bus: Any) -> None:
        await bus.group("G")
        await bus.send(b"1")
        before_ms = bus.now_ms()
        with trio.CancelScope() as scope:
            scope.cancel()
            await bus.receive()
        assert scope.cancelled_caught
        assert (await bus.receive()).bodies == [b"1"]
        assert bus.now_ms() == before_ms
        client = bus.context.clients.get("client")
        assert client.streams == 0

    run(scenario)


def test_a_pull_that_was_given_up_reads_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """And leaves nobody who counts as waiting."""

    async def scenario(bus: Any) -> None:
        await bus.group("G")
        await bus.send(b"1")
        looks: list[object] = []

        def noted(*arguments: Any) -> Any:
            looks.append(arguments)
            return Scan(*arguments)

        monkeypatch.setattr("commitbus.broker.receiving.pulling.Scan", noted)
        with trio.CancelScope() as scope:
            scope.cancel()
            await pull(bus)
        assert scope.cancelled_caught
        assert looks == []
        assert (await pull(bus)).bodies == [b"1"]
        assert len(bus.context.consuming.watch) == 0

    run(scenario)
