"""The limits of the protocol, checked in the order in which RocketMQ checks them.

Nothing here looks at the store: a request is refused before anything is touched.
"""

from __future__ import annotations

import re
from typing import Final

from google.protobuf.duration_pb2 import Duration

from commitbus.broker.messaging import errors as e
from commitbus.broker.messaging.properties import RESERVED_KEYS
from commitbus.broker.metadata.names import (
    IllegalNameError,
    is_system_topic,
    validate_group,
    validate_topic,
)
from commitbus.broker.metadata.topics import MessageType
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb

USER_PROPERTIES_MAX: Final = 128
USER_PROPERTIES_BYTES_MAX: Final = 16384
MESSAGE_GROUP_BYTES_MAX: Final = 63
LITE_TOPIC_BYTES_MAX: Final = 64
RECOVERY_DURATION_MS_MAX: Final = 3600 * 1000
DELAY_MS_MAX: Final = 24 * 3600 * 1000
INVISIBLE_MS_MIN: Final = 1000
"""RocketMQ's proxy refuses less than 10 s; a second costs us nothing."""
INVISIBLE_MS_MAX: Final = 12 * 3600 * 1000

_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f]")
_LITE_TOPIC: Final = re.compile(r"[A-Za-z0-9_-]+")


def topic_name(resource: pb.Resource) -> str:
    """Return the name of a topic that a client may use.

    Raises:
        IllegalTopicError: the name breaks the rules, or is one of the system's own.
    """
    name = known_topic_name(resource)
    if is_system_topic(name):
        raise e.IllegalTopicError(f"cannot access system topic {name}")
    return name


def known_topic_name(resource: pb.Resource) -> str:
    """Return the name of a topic if its form is right, the system's own included.

    Raises:
        IllegalTopicError: the name breaks the rules.
    """
    try:
        validate_topic(resource.name)
    except IllegalNameError as error:
        raise e.IllegalTopicError(str(error)) from None
    return resource.name


def group_name(resource: pb.Resource) -> str:
    """Return the name of a consumer group.

    Raises:
        IllegalGroupError: the name breaks the rules.
    """
    try:
        validate_group(resource.name)
    except IllegalNameError as error:
        raise e.IllegalGroupError(str(error)) from None
    return resource.name


def duration_ms(duration: Duration) -> int:
    """Return a duration in whole milliseconds, rounded towards minus infinity."""
    return duration.seconds * 1000 + duration.nanos // 1_000_000


def invisible_ms(duration: Duration, *, minimum_ms: int = INVISIBLE_MS_MIN) -> int:
    """Return an invisible duration in milliseconds.

    Raises:
        IllegalInvisibleTimeError: it is outside `minimum_ms` to 12 hours.
    """
    value = duration_ms(duration)
    if value < minimum_ms:
        raise e.IllegalInvisibleTimeError(
            f"the invisible time {value} ms is too small. min is {minimum_ms}"
        )
    if value > INVISIBLE_MS_MAX:
        raise e.IllegalInvisibleTimeError(
            f"the invisible time {value} ms is too large. max is {INVISIBLE_MS_MAX}"
        )
    return value


def common_topic(messages: list[pb.Message]) -> str:
    """Return the one topic of all messages of a request.

    Raises:
        MessageCorruptedError: there are no messages, or several topics.
        IllegalTopicError: as in `topic_name`.
    """
    if not messages:
        raise e.MessageCorruptedError("no message to send")
    if len({message.topic.name for message in messages}) > 1:
        raise e.MessageCorruptedError("the messages of one request must have the same topic")
    return topic_name(messages[0].topic)


def message_type_of(message: pb.Message) -> MessageType:
    """Return a message's type as its properties say it: its `message_type` does not decide."""
    properties = message.system_properties
    if properties.message_type == pb.TRANSACTION:
        return MessageType.TRANSACTION
    if properties.HasField("delivery_timestamp"):
        return MessageType.DELAY
    if properties.message_group:
        return MessageType.FIFO
    if properties.HasField("priority"):
        return MessageType.PRIORITY
    if properties.lite_topic:
        return MessageType.LITE
    return MessageType.NORMAL


def check_message(message: pb.Message, *, max_body_bytes: int, now_ms: int) -> None:
    """Check everything about a message but its topic.

    Raises:
        RequestError: the first limit that the message breaks.
    """
    size = len(message.body)
    if size == 0:
        raise e.BodyEmptyError
    if size > max_body_bytes:
        raise e.BodyTooLargeError(size, max_body_bytes)
    _check_user_properties(message)
    properties = message.system_properties
    _check_tag(properties.tag)
    for key in properties.keys:
        _check_key(key)
    _check_properties_size(message)
    if not properties.message_id.strip() or _CONTROL.search(properties.message_id):
        raise e.IllegalMessageIdError("message id cannot be blank or have control characters")
    _check_system_properties(properties, now_ms)


def _check_user_properties(message: pb.Message) -> None:
    count = len(message.user_properties)
    if count > USER_PROPERTIES_MAX:
        raise e.PropertiesTooLargeError(
            f"{count} user properties, at most {USER_PROPERTIES_MAX} are allowed"
        )
    for key, value in message.user_properties.items():
        if key in RESERVED_KEYS:
            raise e.IllegalPropertyError(f"property {key} is reserved for the system")
        # An empty key could not be told from the end of the list once stored.
        if not key or _CONTROL.search(key) or _CONTROL.search(value):
            raise e.IllegalPropertyError(
                f"property {key!r}: the key is empty, or it or the value has control characters"
            )


def _check_properties_size(message: pb.Message) -> None:
    properties = message.system_properties
    texts = [properties.tag, *properties.keys]
    for key, value in message.user_properties.items():
        texts += (key, value)
    size = sum(len(text.encode()) for text in texts)
    if size > USER_PROPERTIES_BYTES_MAX:
        raise e.PropertiesTooLargeError(
            f"properties, tag and keys are {size} bytes, at most {USER_PROPERTIES_BYTES_MAX} are "
            "allowed"
        )


def _check_tag(tag: str) -> None:
    # An empty tag is no tag, as for the official clients that always set the field.
    if tag and (not tag.strip() or "|" in tag or _CONTROL.search(tag)):
        raise e.IllegalTagError(f"tag {tag!r} is blank, or has '|' or control characters")


def _check_key(key: str) -> None:
    if key and (not key.strip() or _CONTROL.search(key)):
        raise e.IllegalKeyError(f"key {key!r} is blank or has control characters")


def _check_system_properties(properties: pb.SystemProperties, now_ms: int) -> None:
    if duration_ms(properties.orphaned_transaction_recovery_duration) > RECOVERY_DURATION_MS_MAX:
        raise e.BadRequestError(
            f"transaction recovery duration is more than {RECOVERY_DURATION_MS_MAX} ms"
        )
    deliver = properties.delivery_timestamp
    if deliver.seconds * 1000 + deliver.nanos // 1_000_000 - now_ms > DELAY_MS_MAX:
        raise e.IllegalDeliveryTimeError(f"delivery is more than {DELAY_MS_MAX} ms from now")
    if properties.priority < 0:
        raise e.BadRequestError(f"priority {properties.priority} is negative")
    group = properties.message_group
    if group and (
        not group.strip() or len(group.encode()) > MESSAGE_GROUP_BYTES_MAX or _CONTROL.search(group)
    ):
        raise e.IllegalMessageGroupError(
            f"message group is blank, has control characters, or more than "
            f"{MESSAGE_GROUP_BYTES_MAX} bytes"
        )
    lite = properties.lite_topic
    if properties.HasField("lite_topic") and not (
        len(lite) <= LITE_TOPIC_BYTES_MAX and _LITE_TOPIC.fullmatch(lite)
    ):
        raise e.IllegalLiteTopicError(
            f"lite topic must be 1 to {LITE_TOPIC_BYTES_MAX} characters of A-Z a-z 0-9 _ -"
        )
    if _CONTROL.search(properties.trace_context):
        raise e.IllegalPropertyError("trace context has control characters")
