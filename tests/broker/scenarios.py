"""Scenarios of the handlers, run against a broker on a clock that stands still."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from commitbus.broker.config import BrokerConfig
from commitbus.broker.messaging.methods import run_messaging
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from tests.broker.messaging.bus import Bus, TrioClock, make_message, open_context

Scenario = Callable[[Bus], Awaitable[None]]
HANGS_S = 300.0


@contextmanager
def failing_instead_of_hanging() -> Iterator[None]:
    """Bound the block in real time: on a clock that stands still no other limit ends a wait."""
    token, scope = trio.lowlevel.current_trio_token(), trio.CancelScope()
    timer = threading.Timer(HANGS_S, token.run_sync_soon, [scope.cancel])
    timer.start()
    try:
        with scope:
            yield
    finally:
        timer.cancel()
    assert not scope.cancelled_caught, "it would have waited for ever"


@pytest.fixture
def message() -> Callable[..., pb.Message]:
    """Make a message of topic T that nothing is wrong with."""
    return make_message


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., None]:
    """Run a scenario against a broker with topic T (one queue) and group G; again, after a restart.

    `run(scenario, **changes)` takes changes to the configuration.
    """

    def run_scenario(scenario: Scenario, **changes: Any) -> None:
        settings = {"max_body_bytes": 64 * 1024, "log_file_bytes": 1024 * 1024, **changes}
        config = BrokerConfig().with_changes(settings)
        clock = trio.testing.MockClock()

        async def main() -> None:
            with open_context(tmp_path / "store", config, TrioClock(clock)) as context:
                async with trio.open_nursery() as nursery:
                    await nursery.start(run_messaging, context)
                    bus = Bus(context, clock)
                    if context.metadata.topic("T") is None:
                        await bus.topic()
                        await bus.group()
                    with failing_instead_of_hanging():
                        await scenario(bus)
                    nursery.cancel_scope.cancel()

        trio.run(main, clock=clock)

    return run_scenario
