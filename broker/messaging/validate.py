"""The limits of the protocol, checked in the order in which RocketMQ checks them.

Nothing here looks at the store: a request is refused before anything is touched.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Final, NamedTuple, final

from google.protobuf.duration_pb2 import Duration

from commitbus.broker.core import errors as e
from commitbus.broker.messaging.properties import KEY_SEPARATOR, RESERVED_KEYS
from commitbus.broker.metadata.names import (
    TOPIC_LENGTH_MAX,
    IllegalNameError,
    is_system_topic,
    validate_group,
    validate_topic,
)
from commitbus.broker.metadata.topics import MessageType
from commitbus.broker.rpc.defaults import MAX_MESSAGE_BYTES
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from commitbus.broker.shown import shown

MESSAGES_MAX: Final = 1024
"""Of one request. They are appended in one step, in which nobody else is served."""
SEND_FIELDS_MAX: Final = 64 * MESSAGES_MAX
"""Of one request to send, before it is parsed: 50 properties of each message."""
_PROPERTIES_BYTES: Final = 1024 * 1024
"""Of one request, beside the bodies: a kilobyte of each message, or 32 KB of a few."""
USER_PROPERTIES_MAX: Final = 128
USER_PROPERTIES_BYTES_MAX: Final = 16384
MESSAGE_GROUP_BYTES_MAX: Final = 63
LITE_TOPIC_BYTES_MAX: Final = 64
RECOVERY_DURATION_MS_MAX: Final = 3600 * 1000
DELAY_MS_MAX: Final = 24 * 3600 * 1000
INVISIBLE_MS_MIN: Final = 1000
"""RocketMQ's proxy refuses less than 10 s; a second costs us nothing."""
INVISIBLE_MS_MAX: Final = 12 * 3600 * 1000
ATTEMPT_ID_LENGTH_MAX: Final = 255
"""Official clients send a UUID. It is kept with every message in flight."""

_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f]")
_LITE_TOPIC: Final = re.compile(r"[A-Za-z0-9_-]+")
_NO_PROPERTIES: Final[Mapping[str, str]] = MappingProxyType({})
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
    return _client_topic(resource.name)


# A broker hears few names, each of them with every message.
@lru_cache(maxsize=4096)
def _client_topic(name: str) -> str:
    _check_topic(name)
    if is_system_topic(name):
        raise e.IllegalTopicError(f"cannot access system topic {name}")
    return name


def shared_namespace(resource: pb.Resource) -> str:
    """Return the namespace of a topic, which an answer repeats for each queue.

    Raises:
        IllegalTopicError: it is too long.
    """
    namespace = resource.resource_namespace
    if len(namespace) > TOPIC_LENGTH_MAX:
        raise e.IllegalTopicError(
            f"namespace of {len(namespace)} characters, at most {TOPIC_LENGTH_MAX} are allowed"
        )
    return namespace


def known_topic_name(resource: pb.Resource) -> str:
    """Return the name of a topic if its form is right, the system's own included.

    Raises:
        IllegalTopicError: the name breaks the rules.
    """
    return _known_topic(resource.name)


# A client may name a thousand, and many clients the same ones.
@lru_cache(maxsize=4096)
def _known_topic(name: str) -> str:
    _check_topic(name)
    return name


def _check_topic(name: str) -> None:
    try:
        validate_topic(name)
    except IllegalNameError as error:
        raise e.IllegalTopicError(str(error)) from None


def group_name(resource: pb.Resource) -> str:
    """Return the name of a consumer group.

    Raises:
        IllegalGroupError: the name breaks the rules.
    """
    return _client_group(resource.name)


@lru_cache(maxsize=4096)
def _client_group(name: str) -> str:
    try:
        validate_group(name)
    except IllegalNameError as error:
        raise e.IllegalGroupError(str(error)) from None
    return name


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


def common_topic(messages: Sequence[pb.Message]) -> str:
    """Return the one topic of all messages of a request.

    Raises:
        BadRequestError: there are too many messages.
        MessageCorruptedError: there are no messages, or several topics.
        IllegalTopicError: as in `topic_name`.
    """
    if not messages:
        raise e.MessageCorruptedError("no message to send")
    if len(messages) > MESSAGES_MAX:
        raise e.BadRequestError(
            f"{len(messages)} messages or more in one request, at most {MESSAGES_MAX} are allowed"
        )
    if len(messages) > 1 and len({message.topic.name for message in messages}) > 1:
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


def attempt_id(text: str) -> str:
    """Return by what a receive of a FIFO group is known when it is repeated; it may be empty.

    Raises:
        BadRequestError: it is too long.
    """
    if len(text) > ATTEMPT_ID_LENGTH_MAX:
        raise e.BadRequestError(
            f"attempt id of {len(text)} characters, at most {ATTEMPT_ID_LENGTH_MAX} are allowed"
        )
    return text


def check_batch_size(messages: Sequence[pb.Message], *, max_body_bytes: int) -> None:
    """Check that the bodies of one request together take no more than one message may.

    RocketMQ bounds a batch the same way.

    Raises:
        BodyTooLargeError: they do.
    """
    size = sum(len(message.body) for message in messages)
    if size > max_body_bytes:
        raise e.BodyTooLargeError(size, max_body_bytes)


@final
class CheckedMessage(NamedTuple):
    """A message that breaks no limit, with what was read to know it: a field costs 0.1 us."""

    type: MessageType
    message_id: str
    body: bytes
    tag: str
    """Empty without one."""
    keys: str
    """Those that are not empty, joined as they are stored."""
    trace_context: str
    user_properties: Mapping[str, str]
    system: pb.SystemProperties


def check_message(message: pb.Message, *, max_body_bytes: int, now_ms: int) -> CheckedMessage:
    """Check everything about a message but its topic; return it as `to_outgoing` takes it.

    Raises:
        RequestError: the first limit that the message breaks.
    """
    body, system = message.body, message.system_properties
    if not body:
        raise e.BodyEmptyError
    if len(body) > max_body_bytes:
        raise e.BodyTooLargeError(len(body), max_body_bytes)
    properties = message.user_properties
    user_properties = _checked_user_properties(properties) if properties else _NO_PROPERTIES
    # A slice of the repeated field is a list, whose items come at a third of the cost.
    tag, keys, message_id = system.tag, system.keys[:], system.message_id
    trace_context = system.trace_context
    # Nearly all text is printable: one look at all of it, and at each only where it is not.
    is_plain = f"{tag}{''.join(keys)}{message_id}{trace_context}".isprintable()
    # An empty tag is no tag, as for the clients that always set the field; keys likewise.
    if tag and (tag.isspace() or "|" in tag or not (is_plain or _is_clean(tag))):
        raise e.IllegalTagError(f"tag {shown(tag)} is blank, or has '|' or control characters")
    for key in keys:
        if key.isspace() or not (is_plain or _is_clean(key)):
            raise e.IllegalKeyError(f"key {shown(key)} is blank or has control characters")
    joined_keys = KEY_SEPARATOR.join(filter(None, keys) if "" in keys else keys)
    # A character takes at most 4 bytes, so few characters need no counting.
    if user_properties or (len(tag) + len(joined_keys)) * 4 > USER_PROPERTIES_BYTES_MAX:
        _check_properties_size([*user_properties, *user_properties.values(), tag, *keys])
    if not message_id or message_id.isspace() or not (is_plain or _is_clean(message_id)):
        raise e.IllegalMessageIdError("message id cannot be blank or have control characters")
    message_type = MessageType.NORMAL
    if _is_special(system):
        _check_special(system, now_ms)
        message_type = message_type_of(message)
    if not (is_plain or _is_clean(trace_context)):
        raise e.IllegalPropertyError("trace context has control characters")
    return _new(
        CheckedMessage,
        (message_type, message_id, body, tag, joined_keys, trace_context, user_properties, system),
    )


def _is_clean(text: str) -> bool:
    """Return whether there are no control characters in it."""
    return _CONTROL.search(text) is None


def _checked_user_properties(field: Mapping[str, str]) -> Mapping[str, str]:
    if len(field) > USER_PROPERTIES_MAX:
        raise e.PropertiesTooLargeError(
            f"{len(field)} user properties, at most {USER_PROPERTIES_MAX} are allowed"
        )
    properties = dict(field.items())
    for key, value in properties.items():
        if key in RESERVED_KEYS:
            raise e.IllegalPropertyError(f"property {key} is reserved for the system")
        # An empty key could not be told from the end of the list once stored.
        if not key or not _is_clean(key) or not _is_clean(value):
            raise e.IllegalPropertyError(
                f"property {shown(key)}: the key is empty, or it or the value has control "
                "characters"
            )
    return properties


def _check_properties_size(texts: list[str]) -> None:
    """Check the properties, tag and keys together."""
    size = len("".join(texts).encode())
    if size > USER_PROPERTIES_BYTES_MAX:
        raise e.PropertiesTooLargeError(
            f"properties, tag and keys are {size} bytes, at most {USER_PROPERTIES_BYTES_MAX} are "
            "allowed"
        )


def _is_special(properties: pb.SystemProperties) -> bool:
    """Return whether anything is there that only messages of other types than NORMAL have."""
    has = properties.HasField
    return (
        has("delivery_timestamp")
        or has("priority")
        or has("lite_topic")
        or has("orphaned_transaction_recovery_duration")
        or properties.message_group != ""
        or properties.message_type == pb.TRANSACTION
    )


def _check_special(properties: pb.SystemProperties, now_ms: int) -> None:
    has = properties.HasField
    if (
        has("orphaned_transaction_recovery_duration")
        and duration_ms(properties.orphaned_transaction_recovery_duration)
        > RECOVERY_DURATION_MS_MAX
    ):
        raise e.BadRequestError(
            f"transaction recovery duration is more than {RECOVERY_DURATION_MS_MAX} ms"
        )
    if has("delivery_timestamp"):
        deliver = properties.delivery_timestamp
        if deliver.seconds * 1000 + deliver.nanos // 1_000_000 - now_ms > DELAY_MS_MAX:
            raise e.IllegalDeliveryTimeError(f"delivery is more than {DELAY_MS_MAX} ms from now")
    if properties.priority < 0:
        raise e.BadRequestError(f"priority {properties.priority} is negative")
    if group := properties.message_group:
        _check_message_group(group)
    if has("lite_topic"):
        _check_lite_topic(properties.lite_topic)


def _check_message_group(group: str) -> None:
    too_long = len(group.encode()) > MESSAGE_GROUP_BYTES_MAX
    if too_long or not group.strip() or not _is_clean(group):
        raise e.IllegalMessageGroupError(
            f"message group is blank, has control characters, or more than "
            f"{MESSAGE_GROUP_BYTES_MAX} bytes"
        )


def _check_lite_topic(topic: str) -> None:
    if len(topic) > LITE_TOPIC_BYTES_MAX or not _LITE_TOPIC.fullmatch(topic):
        raise e.IllegalLiteTopicError(
            f"lite topic must be 1 to {LITE_TOPIC_BYTES_MAX} characters of A-Z a-z 0-9 _ -"
        )
