"""SendMessage: from a producer into the log."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Final

from commitbus.broker.core.errors import (
    MessageTypeConflictError,
    UnsupportedFeatureError,
)
from commitbus.broker.messaging.context import MessagingContext
from commitbus.broker.messaging.durability import Durability
from commitbus.broker.messaging.message_codec import to_outgoing
from commitbus.broker.messaging.queue_choice import choose_queues
from commitbus.broker.messaging.status import ok
from commitbus.broker.messaging.validate import (
    MESSAGES_MAX,
    CheckedMessage,
    check_batch_size,
    check_message,
    common_topic,
)
from commitbus.broker.metadata.topics import MessageType, TopicConfig
from commitbus.broker.rpc.call import Call
from commitbus.broker.rpc.method import Later
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from commitbus.broker.rpc.proto.wire_format import key_of, length, varint
from commitbus.commitlog.types import AppendResult, PhysicalOffset

_SUPPORTED: Final = (MessageType.NORMAL, MessageType.FIFO)

_OK: Final = pb.SendMessageResponse(status=ok()).SerializeToString()
_ENTRIES: Final = key_of(pb.SendMessageResponse, "entries")
_ID_FOLLOWS: Final = pb.SendResultEntry(status=ok()).SerializeToString() + key_of(
    pb.SendResultEntry, "message_id"
)
_TRANSACTION_ID: Final = key_of(pb.SendResultEntry, "transaction_id")
_OFFSET: Final = key_of(pb.SendResultEntry, "offset")


def send_message(
    context: MessagingContext, request: pb.SendMessageRequest, call: Call
) -> bytes | Later | Awaitable[bytes]:
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
    checked = [
        check_message(message, max_body_bytes=max_body_bytes, now_ms=now_ms) for message in messages
    ]
    topic = context.metadata.topic(name)
    if topic is None:
        return _send_to_new_topic(context, name, checked, call)
    results = append(context, topic, checked, call.peer, now_ms)
    durability, end_offset = context.durability, results[-1].end_offset
    response = _response(checked, results)
    if durability.reached(end_offset):
        return response
    return _once_durable(durability, end_offset, response)


async def _send_to_new_topic(
    context: MessagingContext, name: str, messages: list[CheckedMessage], call: Call
) -> bytes:
    topic = await context.topic(name)
    results = append(context, topic, messages, call.peer, context.clock.now_ms())
    await context.durability.wait(results[-1].end_offset)
    return _response(messages, results)


def _once_durable(durability: Durability, end_offset: PhysicalOffset, response: bytes) -> Later:
    answer = Later()

    def result() -> bytes:
        durability.check(end_offset)
        return response

    durability.call_when_over(end_offset, partial(answer.settle, result))
    return answer


def append(
    context: MessagingContext,
    topic: TopicConfig,
    messages: Sequence[CheckedMessage],
    peer: str,
    now_ms: int,
    *,
    queue_id: int | None = None,
) -> list[AppendResult]:
    """Store messages, all or none, in queues of their topic; they are not durable yet.

    Args:
        context: the broker.
        topic: where they belong.
        messages: at least one.
        peer: where they come from.
        now_ms: the time.
        queue_id: a writable queue for all of them; None: the broker chooses for each.

    Raises:
        RequestError: the topic does not take messages of this type, or none at all.
        StoreError: the store could not take them.
    """
    for message in messages:
        _check_type(topic, message.type)
    context.durability.check_room()
    queue_ids = (
        choose_queues(context, topic, messages) if queue_id is None else [queue_id] * len(messages)
    )
    name, cluster = topic.name, context.config.cluster_name
    outgoing, body_bytes = [], 0
    for message, chosen in zip(messages, queue_ids, strict=True):
        body_bytes += len(message.body)
        outgoing.append(to_outgoing(message, name, chosen, cluster, peer=peer, now_ms=now_ms))
    # One message is the rule, and its append is the cheaper one.
    results = (
        [context.store.put(outgoing[0])]
        if len(outgoing) == 1
        else context.store.put_batch(outgoing)
    )
    context.counters.count_sent(name, len(messages), body_bytes)
    return results


def _response(messages: list[CheckedMessage], results: list[AppendResult]) -> bytes:
    """Return the SendMessageResponse for messages that were stored."""
    parts = [_OK]
    for message, result in zip(messages, results, strict=True):
        message_id = message.message_id.encode()
        name = length(message_id) + message_id
        entry = _ID_FOLLOWS + name + _TRANSACTION_ID + name + _OFFSET + varint(result.queue_offset)
        parts += (_ENTRIES, length(entry), entry)
    return b"".join(parts)


def _check_type(topic: TopicConfig, message_type: MessageType) -> None:
    expected = topic.message_type
    if expected is not message_type and expected is not MessageType.MIXED:
        raise MessageTypeConflictError(topic.name, expected, message_type)
    if message_type not in _SUPPORTED:
        raise UnsupportedFeatureError(f"{message_type} messages are not supported yet")
