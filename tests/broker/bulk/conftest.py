"""A broker whose bulk service is tested."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from commitbus.broker import Broker
from tests.broker.bulk.bulk_client import Bulk


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """One broker for the tests of a module: each uses topics of its own."""
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
