"""Which queue a message goes to: in turn, or that of its message group.

RocketMQ's choice for a message group, so that a group keeps its queue whoever serves the topic: the
jump consistent hash of Guava's `Hashing.consistentHash` over Java's `String.hashCode`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from commitbus.broker.core.errors import NotPermittedError
from commitbus.broker.messaging.context import MessagingContext
from commitbus.broker.messaging.validate import CheckedMessage
from commitbus.broker.metadata.topics import MessageType, TopicConfig
from commitbus.commitlog.java_hash import java_string_hash

_MULTIPLIER: Final = 2862933555777941757
_MASK: Final = (1 << 64) - 1


def choose_queues(
    context: MessagingContext, topic: TopicConfig, messages: Sequence[CheckedMessage]
) -> list[int]:
    """Return the queue for each message of one request.

    A message with a message group goes to the queue of that group, whatever else the request
    holds: only so is the group's order kept. All others share the queue whose turn it is.

    Raises:
        NotPermittedError: the topic has no writable queue.
    """
    in_turn: int | None = None
    queue_ids: list[int] = []
    for message in messages:
        if message.type is MessageType.FIFO:
            count = _writable_queues(topic)
            queue_ids.append(queue_of_group(message.system.message_group, count))
        else:
            if in_turn is None:
                in_turn = next_queue(context, topic)
            queue_ids.append(in_turn)
    return queue_ids


def next_queue(context: MessagingContext, topic: TopicConfig) -> int:
    """Return the queues of a topic in turn.

    Raises:
        NotPermittedError: it has no writable queue.
    """
    queue_id = context.next_queue.get(topic.name, 0) % _writable_queues(topic)
    context.next_queue[topic.name] = queue_id + 1
    return queue_id


def _writable_queues(topic: TopicConfig) -> int:
    count = topic.write_queue_nums if topic.writable else 0
    if count == 0:
        raise NotPermittedError(f"topic {topic.name} has no writable queue")
    return count


def queue_of_group(message_group: str, count: int) -> int:
    """Return the queue of a message group among `count` queues, one at least."""
    state = java_string_hash(message_group) & _MASK
    candidate = 0
    while True:
        state = (state * _MULTIPLIER + 1) & _MASK
        following = int((candidate + 1) / (((state >> 33) + 1) / (1 << 31)))
        if following >= count:
            return candidate
        candidate = following
