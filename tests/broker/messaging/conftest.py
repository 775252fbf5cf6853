"""What the tests of the handlers share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from commitbus.broker.config import BrokerConfig
from commitbus.broker.messaging.methods import run_messaging
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from tests.broker.messaging.bus import Bus, make_message, open_context

Scenario = Callable[[Bus], Awaitable[None]]


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
            with open_context(tmp_path / "store", config) as context:
                async with trio.open_nursery() as nursery:
                    await nursery.start(run_messaging, context)
                    bus = Bus(context, clock)
                    if context.metadata.topic("T") is None:
                        await bus.topic()
                        await bus.group()
                    with trio.fail_after(3600 * 24):
                        await scenario(bus)
                    nursery.cancel_scope.cancel()

        trio.run(main, clock=clock)

    return run_scenario
