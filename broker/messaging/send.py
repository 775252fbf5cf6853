"""SendMessage: from a producer into the log."""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial
from typing import Final

from commitbus.broker.core.broker import BrokerCore
from commitbus.broker.core.durability import Durability
from commitbus.broker.core.sending import Checked, append, check
from commitbus.broker.core.validation import MESSAGES_MAX, common_topic
from commitbus.broker.messaging.context import MessagingContext
from commitbus.broker.messaging.status import ok
from commitbus.broker.messaging.validate import new_message
from commitbus.broker.rpc.call import Call
from commitbus.broker.rpc.method import Later
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from commitbus.broker.rpc.proto.wire_format import key_of, length, varint
from commitbus.commitlog.types import AppendResult, PhysicalOffset

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
    broker = context.broker
    now_ms = broker.clock.now_ms()
    # One beyond the limit is enough to tell that it is broken.
    messages = request.messages[: MESSAGES_MAX + 1]
    name = common_topic([message.topic.name for message in messages])
    checked = check(broker, [new_message(message) for message in messages], now_ms)
    topic = broker.metadata.topic(name)
    if topic is None:
        return _send_to_new_topic(broker, name, checked, call)
    results = append(broker, topic, checked, call.peer, now_ms)
    durability, end_offset = broker.durability, results[-1].end_offset
    response = _response(checked, results)
    if durability.reached(end_offset):
        return response
    return _once_durable(durability, end_offset, response)


async def _send_to_new_topic(
    broker: BrokerCore, name: str, messages: list[Checked], call: Call
) -> bytes:
    topic = await broker.topic(name)
    results = append(broker, topic, messages, call.peer, broker.clock.now_ms())
    await broker.durability.wait(results[-1].end_offset)
    return _response(messages, results)


def _once_durable(durability: Durability, end_offset: PhysicalOffset, response: bytes) -> Later:
    answer = Later()

    def result() -> bytes:
        durability.check(end_offset)
        return response

    durability.call_when_over(end_offset, partial(answer.settle, result))
    return answer


def _response(messages: list[Checked], results: list[AppendResult]) -> bytes:
    """Return the SendMessageResponse for messages that were stored."""
    parts = [_OK]
    for (message, _), result in zip(messages, results, strict=True):
        message_id = message.message_id.encode()
        name = length(message_id) + message_id
        entry = _ID_FOLLOWS + name + _TRANSACTION_ID + name + _OFFSET + varint(result.queue_offset)
        parts += (_ENTRIES, length(entry), entry)
    return b"".join(parts)
