"""Places of a transport that does not know its connections."""

from __future__ import annotations

import pytest

from commitbus.broker.rpc.access import NOTHING
from commitbus.broker.rpc.call import RpcError
from commitbus.broker.rpc.method import Method, MethodKind
from commitbus.broker.rpc.peer_places import PeerPlaces
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from commitbus.broker.rpc.shares import CallLimits

METHOD = Method(
    "/test.Any/Ask",
    MethodKind.UNARY,
    pb.RecallMessageRequest,
    pb.RecallMessageResponse,
    lambda *_: pb.RecallMessageResponse(),
    access=NOTHING,
)


def test_a_peer_is_forgotten_with_its_last_call() -> None:
    """Also one whose only call was refused."""
    places = PeerPlaces(CallLimits(1))
    call_id = places.take("1.2.3.4:5", METHOD)
    with pytest.raises(RpcError, match="too many calls"):
        places.take("1.2.3.5:5", METHOD)
    assert list(places._peers) == ["1.2.3.4:5"]
    places.leave("1.2.3.4:5", call_id)
    assert not places._peers
    assert places.take("1.2.3.5:5", METHOD) != call_id
