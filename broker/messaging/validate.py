"""The protocol's values as the core takes them: names, durations, and messages to store."""

from __future__ import annotations

from typing import Final

from google.protobuf.duration_pb2 import Duration

from commitbus.broker.common.errors import BadRequestError
from commitbus.broker.core.message_kind import NO_PROPERTIES, SpecialFields
from commitbus.broker.core.validation import (
    INVISIBLE_MS_MIN,
    MESSAGES_MAX,
    NewMessage,
    check_invisible,
    client_group,
    client_topic,
    known_topic,
)
from commitbus.broker.messaging.message_codec import timestamp_ms
from commitbus.broker.rpc.defaults import MAX_MESSAGE_BYTES
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb

SEND_FIELDS_MAX: Final = 64 * MESSAGES_MAX
"""The limit of a request to send, before it is parsed: 50 properties of each message."""
_PROPERTIES_BYTES: Final = 1024 * 1024
"""The room in one request beside the bodies: 1 KB for each message, or 32 KB for a few."""
ATTEMPT_ID_LENGTH_MAX: Final = 255
"""Official clients send a UUID. It is kept with every message in flight."""

_new = tuple.__new__
"""Half the cost of calling a `NamedTuple`, as it bypasses a `__new__` written in Python."""


def send_request_bytes_max(max_body_bytes: int) -> int:
    """Return how large a request to send may be that is looked at.

    Twice the largest that can be right: a body that is a little too large is told so by its name.
    """
    return min(2 * (max_body_bytes + _PROPERTIES_BYTES), MAX_MESSAGE_BYTES)


def topic_name(resource: pb.Resource) -> str:
    """Return the name of a topic that a client may use.

    Raises:
        IllegalTopicError: the name breaks the rules, or is one of the system's own.
    """
    return client_topic(resource.name)


def known_topic_name(resource: pb.Resource) -> str:
    """Return the name of a topic if its form is right, the system's own included.

    Raises:
        IllegalTopicError: the name breaks the rules.
    """
    return known_topic(resource.name)


def group_name(resource: pb.Resource) -> str:
    """Return the name of a consumer group.

    Raises:
        IllegalGroupError: the name breaks the rules.
    """
    return client_group(resource.name)


def duration_ms(duration: Duration) -> int:
    """Return a duration in whole milliseconds, rounded towards minus infinity."""
    return duration.seconds * 1000 + duration.nanos // 1_000_000


def invisible_ms(duration: Duration, *, minimum_ms: int = INVISIBLE_MS_MIN) -> int:
    """Return an invisible duration in milliseconds.

    Raises:
        IllegalInvisibleTimeError: it is outside `minimum_ms` to 12 hours.
    """
    return check_invisible(duration_ms(duration), minimum_ms=minimum_ms)


def attempt_id(text: str) -> str:
    """Return by what a receive of a FIFO group is known when it is repeated; it may be empty.

    Raises:
        BadRequestError: it is too long.
    """
    if len(text) > ATTEMPT_ID_LENGTH_MAX:
        raise BadRequestError(
            f"attempt id of {len(text)} characters, at most {ATTEMPT_ID_LENGTH_MAX} are allowed"
        )
    return text


def new_message(message: pb.Message) -> NewMessage:
    """Return a producer's message in plain values. Nothing of it is checked yet."""
    system, properties = message.system_properties, message.user_properties
    born = system.born_timestamp
    # A slice of the repeated field is a list, whose items come at a third of the cost.
    return _new(
        NewMessage,
        (
            message.body,
            system.message_id,
            system.tag,
            system.keys[:],
            system.trace_context,
            dict(properties.items()) if properties else NO_PROPERTIES,
            born.seconds * 1000 + born.nanos // 1_000_000,
            system.born_host,
            system.body_encoding == pb.GZIP,
            _special_fields(system) if _is_special(system) else None,
        ),
    )


def _is_special(system: pb.SystemProperties) -> bool:
    """Return whether a field is there that messages of kind NORMAL do not have."""
    has = system.HasField
    return (
        has("delivery_timestamp")
        or has("priority")
        or has("lite_topic")
        or has("orphaned_transaction_recovery_duration")
        or system.message_group != ""
        or system.message_type == pb.TRANSACTION
    )


def _special_fields(system: pb.SystemProperties) -> SpecialFields:
    has = system.HasField
    recovery, delivery = system.orphaned_transaction_recovery_duration, system.delivery_timestamp
    return SpecialFields(
        message_group=system.message_group,
        delivery_ms=timestamp_ms(delivery) if has("delivery_timestamp") else None,
        priority=system.priority if has("priority") else None,
        lite_topic=system.lite_topic if has("lite_topic") else None,
        # What the message says of its type counts for transactions only.
        is_transaction=system.message_type == pb.TRANSACTION,
        recovery_ms=(
            duration_ms(recovery) if has("orphaned_transaction_recovery_duration") else None
        ),
    )
