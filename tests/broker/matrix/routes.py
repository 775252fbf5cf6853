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


def _with_long_namespace() -> pb.Resource:
    return pb.Resource(name="T", resource_namespace="n" * 128)


@cell(ROUTE, pb.ILLEGAL_TOPIC)
async def long_namespace(_stage: Stage) -> pb.QueryRouteRequest:
    """The topic's namespace is too long."""
    return pb.QueryRouteRequest(topic=_with_long_namespace())


@cell(ASSIGNMENT, pb.ILLEGAL_TOPIC)
async def long_namespace_of_assignment(_stage: Stage) -> pb.QueryAssignmentRequest:
    """The topic's namespace is too long."""
    return pb.QueryAssignmentRequest(topic=_with_long_namespace(), group=pb.Resource(name="G"))
