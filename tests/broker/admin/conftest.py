"""A running broker over each transport, and the operators' service of the protocol."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from commitbus.broker.config import Transport
from tests.broker.admin.served import Connections, Served


@pytest.fixture(scope="module", params=[Transport.GRPCIO, Transport.TRIO])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """One broker for all tests of a module: each has topics and groups of its own."""
    served = Served(tmp_path_factory.mktemp("store"), request.param)
    yield served
    served.stop()


@pytest.fixture
def names(served: Served, request: pytest.FixtureRequest) -> tuple[str, str]:
    """A topic with one queue and a group, both only for this test."""
    name = f"{request.node.originalname}"[-100:]
    return served.topic(f"T-{name}"), served.group(f"G-{name}")


@pytest.fixture
def connect(served: Served) -> Iterator[Connections]:
    """Connect consumers, which are gone after the test."""
    connections = Connections(served)
    yield connections
    connections.close()
