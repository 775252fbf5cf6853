"""A broker for the client to talk to, over either transport."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from commitbus.broker import Broker
from commitbus.broker.config import Transport
from commitbus.broker.embedded.broker import SMALL_FILES

WITHIN_S = 60


@pytest.fixture(scope="module", params=list(Transport))
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """One broker for the tests of a module, over each transport: each test has its own topics."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SMALL_FILES, "transport", request.param)
        with Broker() as running:
            yield running


@pytest.fixture
def topic(broker: Broker) -> str:
    """A topic of its own, with two queues."""
    name = f"topic-{secrets.token_hex(4)}"
    broker.create_topic(name, queues=2)
    return name


@pytest.fixture
def run() -> Callable[..., None]:
    """Run an async function of the test, with a limit to its time."""

    def run(main: Callable[[], Awaitable[Any]], within_s: float = WITHIN_S) -> None:
        async def limited() -> None:
            with trio.fail_after(within_s):
                await main()

        trio.run(limited)

    return run


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Where a broker that is started more than once keeps its messages."""
    return tmp_path / "store"
