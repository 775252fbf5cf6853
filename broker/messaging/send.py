"""SendMessage: from a producer into the log."""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial
from typing import Final

from commitbus.broker.messaging.context import MessagingContext
from commitbus.broker.messaging.errors import (
    MessageTypeConflictError,
    NotPermittedError,
    UnsupportedFeatureError,
)
from commitbus.broker.messaging.message_codec import to_outgoing
from commitbus.broker.messaging.status import ok
from commitbus.broker.messaging.validate import (
    MESSAGES_MAX,
    check_batch_size,
    check_message,
    common_topic,
    message_type_of,
)
from commitbus.broker.metadata.topics import MessageType, TopicConfig
from commitbus.broker.rpc.call import Call
from commitbus.broker.rpc.method import Later
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from commitbus.commitlog.types import AppendResult

_OK: Final = pb.SendMessageResponse(status=ok()).SerializeToString()
_OK_ENTRY: Final = pb.SendMessageResponse(
    entries=[pb.SendResultEntry(status=ok())]
).SerializeToString()
"""With `_OK` before it, and as often as there are messages, a response that lacks only ids and
offsets. Parsing it takes half the time of setting its fields."""


def send_message(
    context: MessagingContext, request: pb.SendMessageRequest, call: Call
) -> pb.SendMessageResponse | Later | Awaitable[pb.SendMessageResponse]:
    """Store the messages of a request, all or none, and answer once they are durable.

    Raises:
        RequestError: a message is refused; nothing was stored.
        StoreError: the store could not take them, or their durability is unknown.
    """
    context.clients.seen(call)
    now_ms = context.clock.now_ms()
    # One beyond the limit is enough to tell that it is broken.
    messages = request.messages[: MESSAGES_MAX + 1]
    name, max_body_bytes = common_topic(messages), context.config.max_body_bytes
    if len(messages) > 1:
        check_batch_size(messages, max_body_bytes=max_body_bytes)
    for message in messages:
        check_message(message, max_body_bytes=max_body_bytes, now_ms=now_ms)
    topic = context.metadata.topic(name)
    if topic is None:
        return _send_to_new_topic(context, name, messages, call)
    results = _append(context, topic, messages, call, now_ms)
    durability, end_offset = context.durability, results[-1].end_offset
    if durability.reached(end_offset):
        return _response(messages, results)
    answer = Later()

    def result() -> pb.SendMessageResponse:
        durability.check(end_offset)
        return _response(messages, results)

    durability.call_when_over(end_offset, partial(answer.settle, result))
    return answer


async def _send_to_new_topic(
    context: MessagingContext, name: str, messages: list[pb.Message], call: Call
) -> pb.SendMessageResponse:
    topic = await context.topic(name)
    results = _append(context, topic, messages, call, context.clock.now_ms())
    await context.durability.wait(results[-1].end_offset)
    return _response(messages, results)


def _append(
    context: MessagingContext,
    topic: TopicConfig,
    messages: list[pb.Message],
    call: Call,
    now_ms: int,
) -> list[AppendResult]:
    for message in messages:
        _check_type(topic, message_type_of(message))
    context.durability.check_room()
    queue_id = next_queue(context, topic)
    cluster = context.config.cluster_name
    outgoing, body_bytes = [], 0
    for message in messages:
        one = to_outgoing(
            message, queue_id=queue_id, cluster=cluster, peer=call.peer, now_ms=now_ms
        )
        outgoing.append(one)
        body_bytes += len(one.body)
    # One message is the rule, and its append is the cheaper one.
    results = (
        [context.store.put(outgoing[0])]
        if len(outgoing) == 1
        else context.store.put_batch(outgoing)
    )
    context.counters.count_sent(topic.name, len(messages), body_bytes)
    return results


def _response(messages: list[pb.Message], results: list[AppendResult]) -> pb.SendMessageResponse:
    response = pb.SendMessageResponse.FromString(_OK + _OK_ENTRY * len(messages))
    for entry, message, result in zip(response.entries, messages, results, strict=True):
        entry.message_id = entry.transaction_id = message.system_properties.message_id
        entry.offset = result.queue_offset
    return response


def _check_type(topic: TopicConfig, message_type: MessageType) -> None:
    expected = topic.message_type
    if expected is not message_type and expected is not MessageType.MIXED:
        raise MessageTypeConflictError(topic.name, expected, message_type)
    if message_type is not MessageType.NORMAL:
        raise UnsupportedFeatureError(f"{message_type} messages are not supported yet")


def next_queue(context: MessagingContext, topic: TopicConfig) -> int:
    """Return the queues of a topic in turn."""
    count = topic.write_queue_nums if topic.writable else 0
    if count == 0:
        raise NotPermittedError(f"topic {topic.name} has no writable queue")
    queue_id = context.next_queue.get(topic.name, 0) % count
    context.next_queue[topic.name] = queue_id + 1
    return queue_id
