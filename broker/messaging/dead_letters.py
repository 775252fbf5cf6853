"""Messages that a group could not consume, moved to a topic of the group's own."""

from __future__ import annotations

from functools import partial

from commitbus.broker.messaging import properties as names
from commitbus.broker.messaging.acks import find_delivery, settle
from commitbus.broker.messaging.context import MessagingContext
from commitbus.broker.messaging.errors import InvalidReceiptHandleError
from commitbus.broker.messaging.message_codec import message_id, stored_again
from commitbus.broker.messaging.status import ok
from commitbus.broker.messaging.validate import group_name, topic_name
from commitbus.broker.metadata.names import dead_letter_topic
from commitbus.broker.metadata.topics import TopicConfig
from commitbus.broker.rpc.call import Call
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from commitbus.commitlog.errors import MessageRefusedError
from commitbus.commitlog.types import Record


async def forward_message_to_dead_letter_queue(
    context: MessagingContext, request: pb.ForwardMessageToDeadLetterQueueRequest, call: Call
) -> pb.ForwardMessageToDeadLetterQueueResponse:
    """Move a message that its consumer gives up on to the group's dead letter queue.

    Raises:
        RequestError: a name or the handle is refused.
        StoreError: the copy could not be stored; the message stays where it is.
    """
    context.clients.seen(call)
    group, topic = group_name(request.group), topic_name(request.topic)
    delivery = find_delivery(context, group, topic, request.receipt_handle)
    if delivery.entry is not None:
        handle = delivery.handle
        # Where the message lies is ours to know: the handle has been in the client's hands.
        units = context.store.fetch(topic, handle.queue_id, handle.queue_offset, 1).units
        if not units or units[0].queue_offset != handle.queue_offset:
            raise InvalidReceiptHandleError("the message is deleted")
        record = context.store.read(units[0].physical_offset)
        await bury(context, group, record, delivery.entry.delivery_attempt)
        settle(context, group, topic, delivery.progress, (handle.queue_offset,))
    return pb.ForwardMessageToDeadLetterQueueResponse(status=ok())


async def bury(
    context: MessagingContext, group: str, record: Record, delivery_attempt: int
) -> None:
    """Store a copy in the group's dead letter queue, durably. The original stays in flight.

    Args:
        context: the broker.
        group: who could not consume the message.
        record: the message.
        delivery_attempt: the last one.

    Raises:
        MessageRefusedError: the copy breaks a limit of the store, and always will.
        StoreError: the copy could not be stored.
    """
    topic = dead_letter_topic(group)
    if context.metadata.topic(topic) is None:
        await context.metadata.add_topic(TopicConfig(topic, read_queue_nums=1, write_queue_nums=1))
    # A message that was buried before keeps the place that it came from first.
    origin = {
        names.DEAD_LETTER_ORIGIN_TOPIC: record.topic,
        names.DEAD_LETTER_ORIGIN_MESSAGE_ID: message_id(record),
    }
    copy = partial(stored_again, record, topic, 0, reconsume_times=delivery_attempt - 1)
    try:
        result = context.store.put(copy({**origin, **record.properties}))
    except MessageRefusedError:
        # There may be no room for it beside properties of nearly 32 KB.
        result = context.store.put(copy(record.properties))
    await context.durability.wait(result.end_offset)
    context.counters.count_dead_letter(group, record.topic)
