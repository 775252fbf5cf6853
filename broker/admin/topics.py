"""Topics: create, change, delete, look at."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from commitbus.broker.admin.attributes import (
    TOPIC_ATTRIBUTES,
    AttributeRefusedError,
    changed_entry,
)
from commitbus.broker.admin.context import AdminContext, refuse
from commitbus.broker.common.worker_lines import run_in_worker
from commitbus.broker.metadata.documents import DocumentError
from commitbus.broker.metadata.names import IllegalNameError, is_system_topic, validate_topic
from commitbus.broker.metadata.topics import QUEUES_MAX, TopicConfig, decode_topic, encode_topic
from commitbus.broker.observe.queue_times import store_timestamp
from commitbus.broker.rpc.proto import admin_v1_pb2 as pb
from commitbus.commitlog.types import QueueOffset

PERM_MAX: Final = 7

# Field of the request to its name in RocketMQ's topics.json, by which it is checked.
_FIELDS: Final = {
    "read_queue_nums": "readQueueNums",
    "write_queue_nums": "writeQueueNums",
    "perm": "perm",
    "order": "order",
    "topic_sys_flag": "topicSysFlag",
}


async def put_topic(context: AdminContext, request: pb.PutTopicRequest) -> pb.Topic:
    """Create a topic or change one."""
    _check_name(request.name)
    current = context.metadata.topic(request.name) or TopicConfig(request.name)
    try:
        entry = changed_entry(
            encode_topic(current), TOPIC_ATTRIBUTES, current.attributes, request, _FIELDS
        )
        config = decode_topic(request.name, entry)
    except (AttributeRefusedError, DocumentError) as error:
        refuse(error)
    for what, count in (("read", config.read_queue_nums), ("write", config.write_queue_nums)):
        if not 1 <= count <= QUEUES_MAX:
            refuse(f"{count} {what} queues: a topic has 1 to {QUEUES_MAX}")
    if not 0 <= config.perm <= PERM_MAX:
        refuse(f"perm {config.perm} is not a sum of 4 (read), 2 (write) and 1 (inherit)")
    await context.metadata.put_topic(config)
    return _topic(config, context.progress.groups_of(config.name))


async def delete_topic(
    context: AdminContext, request: pb.DeleteTopicRequest
) -> pb.DeleteTopicResponse:
    """Delete a topic, its queues and the progress of all groups on it."""
    _check_name(request.name)
    context.existing_topic(request.name)
    await context.broker.delete_topic(request.name)
    return pb.DeleteTopicResponse()


async def list_topics(
    context: AdminContext,
    _request: pb.ListTopicsRequest,
) -> pb.ListTopicsResponse:
    """Return all topics by name."""
    topics = await run_in_worker(_topics, context)
    return pb.ListTopicsResponse(topics=topics)


def _topics(context: AdminContext) -> list[pb.Topic]:
    """Return all topics. There may be many, so not on the trio thread."""
    topics = sorted(context.metadata.topics(), key=lambda config: config.name)
    return [_topic(config, context.progress.groups_of(config.name)) for config in topics]


async def get_topic_status(
    context: AdminContext, request: pb.GetTopicStatusRequest
) -> pb.TopicStatus:
    """Return the offsets of every queue of a topic."""
    config = context.existing_topic(request.topic)
    count = max(config.read_queue_nums, config.write_queue_nums)
    queues = await run_in_worker(_queue_states, context, request.topic, count)
    return pb.TopicStatus(queues=queues, put_tps=context.rates.put_tps(request.topic))


def _queue_states(context: AdminContext, topic: str, count: int) -> list[pb.TopicStatus.Queue]:
    """Return the queues' offsets. Reads pages that may be cold, so not on the trio thread."""
    states = []
    for queue_id in range(count):
        max_offset = context.store.max_offset(topic, queue_id)
        states.append(
            pb.TopicStatus.Queue(
                queue_id=queue_id,
                min_offset=context.store.min_offset(topic, queue_id),
                max_offset=max_offset,
                last_updated_ms=store_timestamp(
                    context.store, topic, queue_id, QueueOffset(max_offset - 1)
                ),
            )
        )
    return states


def _topic(config: TopicConfig, groups: Iterable[str]) -> pb.Topic:
    return pb.Topic(
        name=config.name,
        read_queue_nums=config.read_queue_nums,
        write_queue_nums=config.write_queue_nums,
        perm=config.perm,
        order=config.order,
        topic_sys_flag=config.topic_sys_flag,
        attributes=config.attributes,
        groups=sorted(groups),
    )


def _check_name(name: str) -> None:
    try:
        validate_topic(name)
    except IllegalNameError as error:
        refuse(error)
    if is_system_topic(name):
        refuse(f"{name!r} is a topic of the system")
