"""What holds for any RPC, over either transport."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from commitbus.broker import Broker
from commitbus.broker.config import Transport
from commitbus.broker.embedded.broker import SMALL_FILES
from tests.broker.matrix.all_cells import UNSERVED
from tests.broker.matrix.any_rpc import ATTEMPTS, Attempt
from tests.broker.matrix.registry import Unserved


@pytest.fixture(params=list(Transport))
def broker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    monkeypatch.setitem(SMALL_FILES, "transport", request.param)
    with Broker() as running:
        yield running


@pytest.fixture
def channel(broker: Broker) -> Iterator[grpc.Channel]:
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(broker.endpoint, options) as opened:
        yield opened


def code_of(error: Any) -> str:
    return str(error.code().name)


@pytest.mark.parametrize("attempt", [pytest.param(a, id=a.code.name) for a in ATTEMPTS])
def test_the_call_fails_so(broker: Broker, channel: Any, attempt: Attempt) -> None:
    """Whatever the RPC is."""
    with pytest.raises(grpc.RpcError) as caught:
        attempt.make(broker, channel)
    assert code_of(caught.value) == attempt.code.name


@pytest.mark.parametrize("unserved", [pytest.param(rpc, id=rpc.path) for rpc in UNSERVED])
def test_what_is_not_served_is_unimplemented(channel: Any, unserved: Unserved) -> None:
    """So that a client can tell it from what fails."""
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(unserved.path)(b"")
    assert code_of(caught.value) == "UNIMPLEMENTED"
