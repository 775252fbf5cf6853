"""QueryRoute and QueryAssignment."""

from __future__ import annotations

from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from tests.broker.matrix.registry import MESSAGING, cell
from tests.broker.matrix.stage import Stage

ROUTE = MESSAGING + "QueryRoute"
ASSIGNMENT = MESSAGING + "QueryAssignment"


@cell(ROUTE, pb.OK)
async def topic_exists(_stage: Stage) -> pb.QueryRouteRequest:
    """The request is granted."""
    return pb.QueryRouteRequest(topic=pb.Resource(name="T"))


@cell(ASSIGNMENT, pb.OK)
async def topic_is_readable(_stage: Stage) -> pb.QueryAssignmentRequest:
    """The request is granted."""
    topic, group = pb.Resource(name="T"), pb.Resource(name="G")
    return pb.QueryAssignmentRequest(topic=topic, group=group)
