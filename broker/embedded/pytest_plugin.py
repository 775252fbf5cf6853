"""The pytest plugin that comes with the package: the fixture `commitbus_broker`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from commitbus.broker.embedded.broker import Broker


@pytest.fixture
def commitbus_broker() -> Iterator[Broker]:
    """A running broker with an empty store in a temporary directory, for one test.

    `commitbus_broker.clock.advance(seconds)` moves its time: nobody waits for a redelivery.
    """
    # Every pytest run of an environment that has commitbus loads this module: only those tests
    # that want a broker pay for importing one.
    from commitbus.broker.embedded.broker import Broker  # noqa: PLC0415 - see above

    with Broker() as broker:
        yield broker
