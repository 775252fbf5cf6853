"""The table of message kinds: what each carries, where it is stored, how it is delivered.

A new kind is an entry here and, where it has behaviour, a module that the entry names. One with a
field of its own in a request also needs a place for it: `SpecialFields` in `message_kind.py`, which
`messaging/validate.py` fills; and `messaging/delivered.py` writes what consumers are to see. Where
a message has the fields of several kinds, the first kind of the table wins, as in RocketMQ.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import trio

from commitbus.broker.common.errors import (
    BadRequestError,
    IllegalDeliveryTimeError,
    IllegalLiteTopicError,
    IllegalMessageGroupError,
    MessageTypeConflictError,
    UnsupportedFeatureError,
)
from commitbus.broker.core import properties as names
from commitbus.broker.core.message_kind import MessageKind, SpecialFields
from commitbus.broker.core.properties import has_control_characters
from commitbus.broker.core.queue_choice import queue_of_group
from commitbus.broker.metadata.topics import MessageType, TopicConfig

if TYPE_CHECKING:
    from commitbus.broker.core.broker import BrokerCore

MESSAGE_GROUP_BYTES_MAX: Final = 63
LITE_TOPIC_BYTES_MAX: Final = 64
RECOVERY_DURATION_MS_MAX: Final = 3600 * 1000
DELAY_MS_MAX: Final = 24 * 3600 * 1000

_LITE_TOPIC: Final = re.compile(r"[A-Za-z0-9_-]+")


def _check_transaction(fields: SpecialFields, _now_ms: int) -> None:
    if fields.recovery_ms is not None and fields.recovery_ms > RECOVERY_DURATION_MS_MAX:
        raise BadRequestError(
            f"transaction recovery duration is more than {RECOVERY_DURATION_MS_MAX} ms"
        )


def _check_delay(fields: SpecialFields, now_ms: int) -> None:
    if fields.delivery_ms is not None and fields.delivery_ms - now_ms > DELAY_MS_MAX:
        raise IllegalDeliveryTimeError(f"delivery is more than {DELAY_MS_MAX} ms from now")


def _check_priority(fields: SpecialFields, _now_ms: int) -> None:
    if fields.priority is not None and fields.priority < 0:
        raise BadRequestError(f"priority {fields.priority} is negative")


def _check_fifo(fields: SpecialFields, _now_ms: int) -> None:
    group = fields.message_group
    too_long = len(group.encode()) > MESSAGE_GROUP_BYTES_MAX
    if group and (too_long or not group.strip() or has_control_characters(group)):
        raise IllegalMessageGroupError(
            f"message group is blank, has control characters, or more than "
            f"{MESSAGE_GROUP_BYTES_MAX} bytes"
        )


def _check_lite(fields: SpecialFields, _now_ms: int) -> None:
    topic = fields.lite_topic
    if topic is not None and (
        len(topic) > LITE_TOPIC_BYTES_MAX or not _LITE_TOPIC.fullmatch(topic)
    ):
        raise IllegalLiteTopicError(
            f"lite topic must be 1 to {LITE_TOPIC_BYTES_MAX} characters of A-Z a-z 0-9 _ -"
        )


TRANSACTION: Final = MessageKind(
    type=MessageType.TRANSACTION,
    is_sent=lambda fields: fields.is_transaction,
    is_stored=lambda stored: stored.get(names.TRANSACTION_PREPARED) == "true",
    check=_check_transaction,
    property=names.TRANSACTION_PREPARED,
    is_mixed=True,
    metric="transaction",
)
DELAY: Final = MessageKind(
    type=MessageType.DELAY,
    is_sent=lambda fields: fields.delivery_ms is not None,
    is_stored=lambda stored: names.DELIVERY_TIME_MS in stored,
    check=_check_delay,
    property=names.DELIVERY_TIME_MS,
    is_mixed=True,
    metric="delay",
)
PRIORITY: Final = MessageKind(
    type=MessageType.PRIORITY,
    # RocketMQ checks the range of the priority first, but a message group makes the message FIFO.
    is_sent=lambda fields: fields.priority is not None and not fields.message_group,
    is_stored=lambda stored: names.PRIORITY in stored and names.SHARDING_KEY not in stored,
    check=_check_priority,
    property=names.PRIORITY,
)
FIFO: Final = MessageKind(
    type=MessageType.FIFO,
    is_sent=lambda fields: fields.message_group != "",
    is_stored=lambda stored: names.SHARDING_KEY in stored,
    check=_check_fifo,
    property=names.SHARDING_KEY,
    properties=lambda fields: {names.SHARDING_KEY: fields.message_group},
    queue_of=lambda fields, count: queue_of_group(fields.message_group, count),
    is_supported=True,
    is_mixed=True,
    metric="fifo",
)
LITE: Final = MessageKind(
    type=MessageType.LITE,
    is_sent=lambda fields: fields.lite_topic is not None,
    is_stored=lambda stored: names.LITE_TOPIC in stored,
    check=_check_lite,
    property=names.LITE_TOPIC,
)
NORMAL: Final = MessageKind(
    type=MessageType.NORMAL,
    is_sent=lambda _fields: True,
    is_stored=lambda _stored: True,
    is_supported=True,
    is_mixed=True,
)

KINDS: Final[dict[MessageType, MessageKind]] = {
    kind.type: kind for kind in (TRANSACTION, DELAY, PRIORITY, FIFO, LITE, NORMAL)
}
"""In the order in which a message is matched, and in which its fields are checked."""


async def run_deliveries(broker: BrokerCore) -> None:
    """Deliver what the kinds hold, until cancelled."""
    async with trio.open_nursery() as nursery:
        for kind in KINDS.values():
            if kind.deliver is not None:
                nursery.start_soon(kind.deliver, broker)


def kind_sent(fields: SpecialFields) -> MessageKind:
    """Return the kind of a producer's message."""
    return next(kind for kind in KINDS.values() if kind.is_sent(fields))


def kind_stored(properties: Mapping[str, str]) -> MessageKind:
    """Return the kind of a stored message."""
    return next(kind for kind in KINDS.values() if kind.is_stored(properties))


def kinds_taken(topic_type: MessageType) -> list[MessageKind]:
    """Return the kinds that clients are told a topic of a type takes; of UNSPECIFIED: none."""
    if topic_type is MessageType.MIXED:
        return [kind for kind in KINDS.values() if kind.is_mixed]
    return [KINDS[topic_type]] if topic_type in KINDS else []


def metric_of(topic_type: MessageType) -> str:
    """Return the label of a topic's messages in metrics."""
    kind = KINDS.get(topic_type, NORMAL)
    return kind.metric


def check_kind(topic: TopicConfig, kind: MessageKind) -> None:
    """Check that a topic takes messages of a kind.

    Raises:
        MessageTypeConflictError: it takes others.
        UnsupportedFeatureError: this broker takes none of the kind.
    """
    expected = topic.message_type
    if expected is not kind.type and expected is not MessageType.MIXED:
        raise MessageTypeConflictError(topic.name, expected, kind.type)
    if not kind.is_supported:
        raise UnsupportedFeatureError(f"{kind.type} messages are not supported yet")
