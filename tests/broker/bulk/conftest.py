"""A broker whose bulk service is tested."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from commitbus.broker import Broker
from commitbus.broker.config import Transport
from commitbus.broker.embedded.broker import SMALL_FILES
from tests.broker.bulk.bulk_client import Bulk


@pytest.fixture(scope="module", params=list(Transport))
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """One broker for the tests of a module, over each transport: each test has its own topics."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SMALL_FILES, "transport", request.param)
        with Broker() as running:
            yield running


@pytest.fixture(scope="module")
def bulk(broker: Broker) -> Iterator[Bulk]:
    client = Bulk(broker)
    yield client
    client.channel.close()


@pytest.fixture
def topic(broker: Broker) -> str:
    """A topic of its own, with two queues."""
    name = f"topic-{secrets.token_hex(4)}"
    broker.create_topic(name, queues=2)
    return name
