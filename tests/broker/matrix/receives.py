"""ReceiveMessage and PullMessage: what one of them answers, and what both do."""

from __future__ import annotations

from typing import Any

import trio
import trio.testing

from commitbus.broker.admin.groups import delete_group
from commitbus.broker.consuming import delivering, long_polling, queue_watch
from commitbus.broker.filters import sql_filter
from commitbus.broker.filters.filter_cache import SHORT_LENGTH_MAX
from commitbus.broker.messaging.handover import HANDOVER_S_MAX
from commitbus.broker.rpc.call import StatusCode
from commitbus.broker.rpc.proto import admin_v1_pb2 as admin
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from tests.broker.bad_blocks import BadBlocks
from tests.broker.matrix.registry import MESSAGING, cell, cells, good_request
from tests.broker.matrix.stage import Stage

RECEIVE = MESSAGING + "ReceiveMessage"
PULL = MESSAGING + "PullMessage"
BOTH = (RECEIVE, PULL)
QUICKLY = 1000
"""Seconds of the broker's time in one of ours, for scenarios that wait for the end of a wait."""


@cell(RECEIVE, pb.OK, changes=("progress",))
async def messages_received(stage: Stage) -> pb.ReceiveMessageRequest:
    """The request is granted."""
    await stage.bus.send(b"a")
    request = pb.ReceiveMessageRequest(batch_size=32, group=pb.Resource(name="G"))
    request.message_queue.topic.name = "T"
    request.invisible_duration.seconds = 30
    return request


@cell(PULL, pb.OK)
async def messages_pulled(stage: Stage) -> pb.PullMessageRequest:
    """The request is granted."""
    await stage.bus.send(b"a")
    request = pb.PullMessageRequest(batch_size=32, group=pb.Resource(name="G"))
    request.message_queue.topic.name = "T"
    return request


@cells(BOTH, pb.MESSAGE_NOT_FOUND)
async def nothing_new(stage: Stage, path: str) -> Any:
    """There was no message until the polling time was over."""
    request = await good_request(stage, path)
    if path == PULL:
        request.offset = 1
    else:
        await stage.bus.receive(invisible_s=3600)
    stage.bus.clock.rate = QUICKLY
    return request


@cells(BOTH, pb.ILLEGAL_FILTER_EXPRESSION)
async def bad_filter(stage: Stage, path: str) -> Any:
    """The filter is none: empty SQL, a wrong expression, or too long or deep a one."""
    request = await good_request(stage, path)
    request.filter_expression.CopyFrom(pb.FilterExpression(type=pb.SQL, expression="a >"))
    return request


@cells(BOTH, pb.TOO_MANY_REQUESTS)
async def too_many_filters(stage: Stage, path: str) -> Any:
    """Consumers wait with too many long filters already."""
    request = await good_request(stage, path)
    stage.patch.setattr(sql_filter.cache, "length_max", -1)
    text = f"only < 1{' ' * SHORT_LENGTH_MAX}"
    request.filter_expression.CopyFrom(pb.FilterExpression(type=pb.SQL, expression=text))
    return request


@cells(BOTH, pb.TOO_MANY_REQUESTS)
async def too_much_work(stage: Stage, path: str) -> Any:
    """Too much work of the connection waits for a thread already: reads, or filters."""
    request = await good_request(stage, path)
    text = "not_compiled_yet < 1"
    request.filter_expression.CopyFrom(pb.FilterExpression(type=pb.SQL, expression=text))
    stage.no_workers()
    return request


@cells(BOTH, pb.ILLEGAL_POLLING_TIME, deadline_s=4)
async def short_deadline(stage: Stage, path: str) -> Any:
    """The call's deadline leaves less than 4.5 s."""
    return await good_request(stage, path)


@cells(BOTH, pb.BAD_REQUEST, deadline_s=4, headers={"x-mq-client-version": "5.0.2"})
async def short_deadline_of_an_old_client(stage: Stage, path: str) -> Any:
    """The deadline leaves less than 4.5 s, and the client is older than 5.0.3."""
    return await good_request(stage, path)


@cell(RECEIVE, pb.ILLEGAL_INVISIBLE_TIME)
async def briefly_invisible(stage: Stage) -> Any:
    """The invisible duration is not between a second and 12 hours, and not renewed by itself."""
    request = await good_request(stage, RECEIVE)
    request.invisible_duration.seconds = 0
    return request


@cell(RECEIVE, pb.BAD_REQUEST)
async def long_attempt_id(stage: Stage) -> Any:
    """The attempt id (of a FIFO group) has more than 255 characters."""
    await stage.bus.group(consume_message_orderly=True)
    request = await good_request(stage, RECEIVE)
    request.attempt_id = "a" * 256
    return request


@cells(BOTH, pb.FORBIDDEN)
async def group_may_not_consume(stage: Stage, path: str) -> Any:
    """The group may not consume."""
    await stage.bus.group(consume_enable=False)
    return await good_request(stage, path)


@cells(BOTH, pb.CONSUMER_GROUP_NOT_FOUND, {RECEIVE: ("groups", "progress"), PULL: ("groups",)})
async def group_deleted(stage: Stage, path: str) -> Any:
    """The group was deleted while the call waited."""
    request = await nothing_new(stage, path)
    stage.bus.clock.rate = 1

    async def delete() -> None:
        await trio.testing.wait_all_tasks_blocked()
        await delete_group(stage.admin, admin.DeleteGroupRequest(name="G"))

    stage.beside.start_soon(delete)
    return request


@cell(RECEIVE, pb.TOO_MANY_REQUESTS)
async def too_many_receivers(stage: Stage) -> Any:
    """Too many receivers of the group wait for the topic."""
    stage.patch.setattr(long_polling, "WAITING_POLLS_MAX", 1)
    stage.beside.start_soon(stage.bus.receive)
    await trio.testing.wait_all_tasks_blocked()
    return await good_request(stage, RECEIVE)


@cell(RECEIVE, pb.TOO_MANY_REQUESTS)
async def too_much_progress(stage: Stage) -> Any:
    """The broker keeps track of too many queues of groups."""
    stage.patch.setattr("commitbus.broker.receiving.taken.PROGRESS_MAX", 0)
    return await good_request(stage, RECEIVE)


@cell(PULL, pb.TOO_MANY_REQUESTS)
async def too_many_pull(stage: Stage) -> Any:
    """Too many consumers wait for the queue."""
    stage.patch.setattr(queue_watch, "WATCHERS_MAX", 0)
    return await nothing_new(stage, PULL)


@cells(BOTH, pb.TOO_MANY_REQUESTS)
async def slow_readers(stage: Stage, path: str) -> Any:
    """Consumers that read slowly hold too many bytes."""
    for name in ("DELIVERING_BYTES_MAX", "RESERVE_BYTES"):
        stage.patch.setattr(delivering, name, 0)
    return await good_request(stage, path)


@cells(BOTH, StatusCode.DEADLINE_EXCEEDED, {RECEIVE: ("progress",)})
async def slow_reader(stage: Stage, path: str) -> Any:
    """The client takes longer than a minute to read the messages."""
    request = await good_request(stage, path)
    stage.reads_for_s = HANDOVER_S_MAX + 1
    return request


@cell(PULL, pb.BAD_REQUEST)
async def empty_batch(stage: Stage) -> Any:
    """The batch size is not positive."""
    request = await good_request(stage, PULL)
    request.batch_size = 0
    return request


@cell(PULL, pb.ILLEGAL_OFFSET)
async def offset_behind_the_end(stage: Stage) -> Any:
    """The queue has no such offset, and will not give it to its next message."""
    request = await good_request(stage, PULL)
    request.offset = 2
    return request


@cell(PULL, pb.INTERNAL_SERVER_ERROR)
async def unreadable_message(stage: Stage) -> Any:
    """The disk does not give the next message back; the response has the offset behind it."""
    request = await good_request(stage, PULL)
    BadBlocks(stage.patch).add_record(stage.context.store, "T", 0)
    return request
