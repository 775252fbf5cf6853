"""UpdateOffset, GetOffset and QueryOffset."""

from __future__ import annotations

from typing import Any

from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from tests.broker.matrix.registry import MESSAGING, cell, good_request
from tests.broker.matrix.stage import NOT_SAVED, Stage

UPDATE = MESSAGING + "UpdateOffset"
GET = MESSAGING + "GetOffset"
QUERY = MESSAGING + "QueryOffset"


@cell(UPDATE, pb.OK, changes=("progress",))
async def updated(stage: Stage) -> pb.UpdateOffsetRequest:
    """The request is granted."""
    await stage.bus.send(b"a")
    request = pb.UpdateOffsetRequest(group=pb.Resource(name="G"), offset=1)
    request.message_queue.topic.name = "T"
    return request


@cell(GET, pb.OK)
async def got(stage: Stage) -> pb.GetOffsetRequest:
    """The request is granted."""
    await stage.bus.unary("UpdateOffset", await updated(stage))
    request = pb.GetOffsetRequest(group=pb.Resource(name="G"))
    request.message_queue.topic.name = "T"
    return request


@cell(QUERY, pb.OK)
async def queried(stage: Stage) -> pb.QueryOffsetRequest:
    """The request is granted."""
    await stage.bus.send(b"a")
    request = pb.QueryOffsetRequest(query_offset_policy=pb.END)
    request.message_queue.topic.name = "T"
    return request


@cell(QUERY, pb.TOO_MANY_REQUESTS)
async def too_much_work(stage: Stage) -> Any:
    """Too much work of the connection waits for a thread already: reads, or filters."""
    request = await good_request(stage, QUERY)
    request.query_offset_policy = pb.TIMESTAMP
    request.timestamp.seconds = 1
    stage.no_workers()
    return request


@cell(UPDATE, pb.CONSUMER_GROUP_NOT_FOUND)
async def group_unknown(stage: Stage) -> Any:
    """There is no such group."""
    request = await good_request(stage, UPDATE)
    request.group.name = "Nobody"
    return request


@cell(UPDATE, pb.ILLEGAL_OFFSET)
async def offset_behind_the_end(stage: Stage) -> Any:
    """The queue has no such offset, and will not give it to its next message."""
    request = await good_request(stage, UPDATE)
    request.offset = 2
    return request


@cell(UPDATE, pb.INTERNAL_SERVER_ERROR)
async def progress_not_saved(stage: Stage) -> Any:
    """The group's progress could not be saved."""
    stage.fails(stage.context.progress, "reset", NOT_SAVED)
    return await good_request(stage, UPDATE)


@cell(GET, pb.OFFSET_NOT_FOUND)
async def nothing_consumed(stage: Stage) -> Any:
    """The group has not begun to consume the queue."""
    request = await good_request(stage, GET)
    request.group.name = "Nobody"
    return request


@cell(QUERY, pb.BAD_REQUEST)
async def unknown_policy(stage: Stage) -> Any:
    """There is no such policy."""
    request = await good_request(stage, QUERY)
    request.query_offset_policy = 7
    return request


@cell(QUERY, pb.BAD_REQUEST)
async def no_time(stage: Stage) -> Any:
    """The policy TIMESTAMP comes without a time."""
    request = await good_request(stage, QUERY)
    request.query_offset_policy = pb.TIMESTAMP
    return request
