"""Sending: messages into the log, all or none, each as the table of kinds says."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence

from commitbus.broker.core.broker import BrokerCore, writable_queues
from commitbus.broker.core.kinds import check_kind
from commitbus.broker.core.message_kind import MessageKind
from commitbus.broker.core.outgoing import to_outgoing
from commitbus.broker.core.validation import NewMessage, check_batch_size, check_message
from commitbus.broker.metadata.topics import TopicConfig
from commitbus.commitlog.types import AppendResult

Checked = tuple[NewMessage, MessageKind]
"""A message that breaks no limit."""


def check(broker: BrokerCore, messages: Sequence[NewMessage], now_ms: int) -> list[Checked]:
    """Check the messages of one request, before their topic is looked at.

    Raises:
        RequestError: the first limit that a message breaks, or all of them together.
    """
    max_body_bytes = broker.config.max_body_bytes
    if len(messages) > 1:
        check_batch_size(messages, max_body_bytes=max_body_bytes)
    return [
        (message, check_message(message, max_body_bytes=max_body_bytes, now_ms=now_ms))
        for message in messages
    ]


def append(
    broker: BrokerCore,
    topic: TopicConfig,
    messages: Sequence[Checked],
    peer: str,
    now_ms: int,
    *,
    queue_id: int | None = None,
) -> list[AppendResult]:
    """Store messages, all or none; they are not durable yet.

    Args:
        broker: the broker.
        topic: where they belong.
        messages: at least one.
        peer: where they come from.
        now_ms: the time.
        queue_id: a writable queue for all of them; None: the broker chooses for each.

    Raises:
        RequestError: the topic does not take messages of this kind, or none at all.
        StoreError: the store could not take them.
    """
    for _, kind in messages:
        check_kind(topic, kind)
    broker.durability.check_room()
    queue_ids = (
        choose_queues(broker, topic, messages) if queue_id is None else [queue_id] * len(messages)
    )
    name, cluster = topic.name, broker.config.cluster_name
    outgoing, body_bytes = [], 0
    for (message, kind), chosen in zip(messages, queue_ids, strict=True):
        body_bytes += len(message.body)
        outgoing.append(to_outgoing(message, kind, name, chosen, cluster, peer=peer, now_ms=now_ms))
    # One message is the rule, and its append is the cheaper one.
    results = (
        [broker.store.put(outgoing[0])] if len(outgoing) == 1 else broker.store.put_batch(outgoing)
    )
    broker.counters.count_sent(name, len(messages), body_bytes)
    return results


def choose_queues(broker: BrokerCore, topic: TopicConfig, messages: Iterable[Checked]) -> list[int]:
    """Return the queue for each message of one request.

    A message whose kind chooses (that of a message group, say) goes where its kind says, whatever
    else the request holds. All others share the queue whose turn it is.

    Raises:
        NotPermittedError: the topic has no writable queue.
    """
    in_turn: int | None = None
    queue_ids: list[int] = []
    for message, kind in messages:
        if kind.queue_of is not None and message.special is not None:
            queue_ids.append(kind.queue_of(message.special, writable_queues(topic)))
        else:
            if in_turn is None:
                in_turn = broker.next_queue(topic)
            queue_ids.append(in_turn)
    return queue_ids


async def send(
    broker: BrokerCore,
    topic: TopicConfig,
    message: NewMessage,
    *,
    peer: str = "",
    queue_id: int | None = None,
) -> tuple[int, AppendResult]:
    """Store one message; return its queue and its place once it is durable.

    Raises:
        RequestError: the message breaks a limit, or the topic does not take it.
        StoreError: it could not be stored, or its durability is unknown.
    """
    now_ms = broker.clock.now_ms()
    checked = check(broker, [message], now_ms)
    (chosen,) = choose_queues(broker, topic, checked)
    queue_id = chosen if queue_id is None else queue_id
    (result,) = append(broker, topic, checked, peer, now_ms, queue_id=queue_id)
    await broker.durability.wait(result.end_offset)
    return queue_id, result


def new_message_id() -> str:
    """Return an id like those that clients give."""
    return f"01{secrets.token_hex(16).upper()}"
