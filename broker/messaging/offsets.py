"""UpdateOffset, GetOffset and QueryOffset: the progress of consumers that pull.

RocketMQ 5.4.0 answers UNIMPLEMENTED to all of them. What they mean here is what the protocol's
documentation says, on the same progress that POP uses: a group may change from one to the other.
"""

from __future__ import annotations

from collections.abc import Awaitable

from commitbus.broker.common.errors import BadRequestError
from commitbus.broker.common.worker_lines import run_in_worker
from commitbus.broker.core.offsets import committed_offset, set_offset
from commitbus.broker.messaging.context import MessagingContext
from commitbus.broker.messaging.status import ok
from commitbus.broker.messaging.validate import group_name, topic_name
from commitbus.broker.rpc.call import Call
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb


def update_offset(
    context: MessagingContext, request: pb.UpdateOffsetRequest, call: Call
) -> pb.UpdateOffsetResponse:
    """Set where a group goes on in a queue; what is in flight for it there is forgotten.

    Raises:
        GroupNotFoundError: there is no such group; receiving or pulling makes one.
        IllegalOffsetError: the queue has no such offset and will not give it to its next message.
        RequestError: the queue cannot be read.
        StateWriteError: the progress could not be saved.
    """
    group = group_name(request.group)
    topic, queue_id = readable_queue(context, request.message_queue)
    set_offset(context.broker, group, topic, queue_id, request.offset)
    return pb.UpdateOffsetResponse(status=ok())


def get_offset(
    context: MessagingContext, request: pb.GetOffsetRequest, call: Call
) -> pb.GetOffsetResponse:
    """Return the offset before which a group has consumed everything in a queue.

    Raises:
        OffsetNotFoundError: the group has not begun there.
        RequestError: the queue cannot be read.
    """
    group = group_name(request.group)
    topic, queue_id = readable_queue(context, request.message_queue)
    offset = committed_offset(context.broker, group, topic, queue_id)
    return pb.GetOffsetResponse(status=ok(), offset=offset)


def query_offset(
    context: MessagingContext, request: pb.QueryOffsetRequest, call: Call
) -> pb.QueryOffsetResponse | Awaitable[pb.QueryOffsetResponse]:
    """Return a queue's first offset, its end, or the first one stored at a time or later.

    Raises:
        BadRequestError: the policy is unknown, or the time is missing or out of range.
        RequestError: the queue cannot be read.
    """
    topic, queue_id = readable_queue(context, request.message_queue)
    policy = request.query_offset_policy
    if policy == pb.TIMESTAMP:
        return _offset_at(context, topic, queue_id, _timestamp_ms(request))
    if policy == pb.BEGINNING:
        offset = context.store.min_offset(topic, queue_id)
    elif policy == pb.END:
        offset = context.store.max_offset(topic, queue_id)
    else:
        raise BadRequestError(f"there is no query offset policy {policy}")
    return pb.QueryOffsetResponse(status=ok(), offset=offset)


async def _offset_at(
    context: MessagingContext, topic: str, queue_id: int, timestamp_ms: int
) -> pb.QueryOffsetResponse:
    # It looks at records all over the queue, which may have to come from the disk.
    offset = await run_in_worker(context.store.offset_by_timestamp, topic, queue_id, timestamp_ms)
    return pb.QueryOffsetResponse(status=ok(), offset=offset)


def _timestamp_ms(request: pb.QueryOffsetRequest) -> int:
    if not request.HasField("timestamp"):
        raise BadRequestError("the query offset policy TIMESTAMP needs a timestamp")
    timestamp = request.timestamp
    return timestamp.seconds * 1000 + timestamp.nanos // 1_000_000


def readable_queue(context: MessagingContext, queue: pb.MessageQueue) -> tuple[str, int]:
    """Return the topic and the id of a queue that can be read.

    Raises:
        IllegalTopicError: the topic's name is illegal.
        TopicNotFoundError: there is no such topic.
        NotPermittedError: nobody may read it.
        BadRequestError: it has no such queue.
    """
    topic = topic_name(queue.topic)
    check_readable(context, topic, queue.id)
    return topic, queue.id


def check_readable(context: MessagingContext, topic: str, queue_id: int) -> None:
    """Check that there is such a queue, and that it can be read.

    Raises:
        RequestError: as `readable_queue`.
    """
    count = context.readable_topic(topic).read_queue_nums
    if not 0 <= queue_id < count:
        raise BadRequestError(f"topic {topic} has no queue {queue_id}: {count} can be read")
