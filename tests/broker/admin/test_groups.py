"""The limits of what an operator may set for a group."""

from __future__ import annotations

import json
from typing import Any

import grpc
import pytest

from commitbus.broker.admin.groups import DELAYS_MAX
from commitbus.broker.rpc.proto import admin_v1_pb2 as pb


def test_a_retry_policy_has_a_bounded_number_of_delays(served: Any, names: tuple[str, str]) -> None:
    """Every client of the group is told all of them, each time that it sends its settings."""
    _, group = names

    def put(delays: int) -> Any:
        policy = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1000] * delays}}
        request = pb.PutGroupRequest(name=group, group_retry_policy=json.dumps(policy))
        return served.own("PutGroup", request, pb.Group)

    assert json.loads(put(DELAYS_MAX).group_retry_policy)["type"] == "CUSTOMIZED"
    with pytest.raises(grpc.RpcError, match=f"{DELAYS_MAX + 1} delays, at most {DELAYS_MAX} can"):
        put(DELAYS_MAX + 1)
