"""The limits of names and messages, checked in the order in which RocketMQ checks them.

Nothing here looks at the store: a request is refused before anything is touched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple, final

from commitbus.broker.common import errors as e
from commitbus.broker.common.shown import shown
from commitbus.broker.core.kinds import KINDS, NORMAL, kind_sent
from commitbus.broker.core.message_kind import NO_PROPERTIES, MessageKind, SpecialFields
from commitbus.broker.core.properties import RESERVED_KEYS, has_control_characters
from commitbus.broker.metadata.names import (
    TOPIC_LENGTH_MAX,
    IllegalNameError,
    is_system_topic,
    validate_group,
    validate_topic,
)

MESSAGES_MAX: Final = 1024
"""The messages of one request are appended in one step, in which no other request is served."""
USER_PROPERTIES_MAX: Final = 128
USER_PROPERTIES_BYTES_MAX: Final = 16384
INVISIBLE_MS_MIN: Final = 1000
"""RocketMQ's proxy refuses less than 10 s; a second costs us nothing."""
INVISIBLE_MS_MAX: Final = 12 * 3600 * 1000


@final
class NewMessage(NamedTuple):
    """A message as a producer made it."""

    body: bytes
    message_id: str
    tag: str = ""
    """Empty without one."""
    keys: Sequence[str] = ()
    """An empty key is no key."""
    trace_context: str = ""
    user_properties: Mapping[str, str] = NO_PROPERTIES
    born_ms: int = 0
    """The time of birth, milliseconds since 1970; an impossible one becomes that of the send."""
    born_host: str = ""
    """The producer's host, as the producer says it; empty: the peer's address."""
    is_compressed: bool = False
    special: SpecialFields | None = None


# A broker hears few names, each of them with every message.
@lru_cache(maxsize=4096)
def client_topic(name: str) -> str:
    """Return the name of a topic if a client may use it.

    Raises:
        IllegalTopicError: the name breaks the rules, or is one of the system's own.
    """
    if is_system_topic(known_topic(name)):
        raise e.IllegalTopicError(f"cannot access system topic {name}")
    return name


# A client may name a thousand, and many clients the same ones.
@lru_cache(maxsize=4096)
def known_topic(name: str) -> str:
    """Return the name of a topic if its form is right, the system's own included.

    Raises:
        IllegalTopicError: the name breaks the rules.
    """
    try:
        validate_topic(name)
    except IllegalNameError as error:
        raise e.IllegalTopicError(str(error)) from None
    return name


@lru_cache(maxsize=4096)
def client_group(name: str) -> str:
    """Return the name of a consumer group if a client may use it.

    Raises:
        IllegalGroupError: the name breaks the rules.
    """
    try:
        validate_group(name)
    except IllegalNameError as error:
        raise e.IllegalGroupError(str(error)) from None
    return name


def namespace(name: str) -> str:
    """Return the namespace of a topic, which an answer repeats for each queue.

    Raises:
        IllegalTopicError: it is too long.
    """
    if len(name) > TOPIC_LENGTH_MAX:
        raise e.IllegalTopicError(
            f"namespace of {len(name)} characters, at most {TOPIC_LENGTH_MAX} are allowed"
        )
    return name


def check_invisible(value: int, *, minimum_ms: int = INVISIBLE_MS_MIN) -> int:
    """Return an invisible duration, in milliseconds.

    Raises:
        IllegalInvisibleTimeError: it is outside `minimum_ms` to 12 hours.
    """
    if value < minimum_ms:
        raise e.IllegalInvisibleTimeError(
            f"the invisible time {value} ms is too small. min is {minimum_ms}"
        )
    if value > INVISIBLE_MS_MAX:
        raise e.IllegalInvisibleTimeError(
            f"the invisible time {value} ms is too large. max is {INVISIBLE_MS_MAX}"
        )
    return value


def common_topic(topics: Sequence[str]) -> str:
    """Return the one topic of all messages of a request.

    Args:
        topics: the topic of each message.

    Raises:
        BadRequestError: there are too many messages.
        MessageCorruptedError: there are no messages, or several topics.
        IllegalTopicError: as in `client_topic`.
    """
    if not topics:
        raise e.MessageCorruptedError("no message to send")
    if len(topics) > MESSAGES_MAX:
        raise e.BadRequestError(
            f"{len(topics)} messages or more in one request, at most {MESSAGES_MAX} are allowed"
        )
    if len(topics) > 1 and len(set(topics)) > 1:
        raise e.MessageCorruptedError("the messages of one request must have the same topic")
    return client_topic(topics[0])


def check_batch_size(messages: Sequence[NewMessage], *, max_body_bytes: int) -> None:
    """Check that the bodies of one request together take no more than one message may.

    RocketMQ bounds a batch the same way.

    Raises:
        BodyTooLargeError: they do.
    """
    size = sum(len(message.body) for message in messages)
    if size > max_body_bytes:
        raise e.BodyTooLargeError(size, max_body_bytes)


def check_message(message: NewMessage, *, max_body_bytes: int, now_ms: int) -> MessageKind:
    """Check everything about a message but its topic, and return its kind.

    Raises:
        RequestError: the first limit that the message breaks.
    """
    body, message_id, tag, keys, trace_context, user_properties, _, _, _, special = message
    if not 0 < len(body) <= max_body_bytes:
        raise e.BodyTooLargeError(len(body), max_body_bytes) if body else e.BodyEmptyError
    if user_properties:
        _check_user_properties(user_properties)
    # Nearly all text is printable: one look at all of it, and at each only where it is not.
    texts = f"{tag}{''.join(keys)}{message_id}{trace_context}"
    doubtful = _never if texts.isprintable() else has_control_characters
    if tag and (tag.isspace() or "|" in tag or doubtful(tag)):
        raise e.IllegalTagError(f"tag {shown(tag)} is blank, or has '|' or control characters")
    for key in keys:
        # An empty key is no key, as an empty tag is no tag: some clients always set the fields.
        if key.isspace() or doubtful(key):
            raise e.IllegalKeyError(f"key {shown(key)} is blank or has control characters")
    # A character takes at most 4 bytes, so few characters need no counting.
    if user_properties or len(texts) * 4 > USER_PROPERTIES_BYTES_MAX:
        _check_properties_size([*user_properties, *user_properties.values(), tag, *keys])
    if not message_id or message_id.isspace() or doubtful(message_id):
        raise e.IllegalMessageIdError("message id cannot be blank or have control characters")
    kind = NORMAL if special is None else _checked_kind(special, now_ms)
    if doubtful(trace_context):
        raise e.IllegalPropertyError("trace context has control characters")
    return kind


def _checked_kind(fields: SpecialFields, now_ms: int) -> MessageKind:
    for kind in KINDS.values():
        kind.check(fields, now_ms)
    return kind_sent(fields)


def _never(_text: str) -> bool:
    return False


def _check_user_properties(properties: Mapping[str, str]) -> None:
    if len(properties) > USER_PROPERTIES_MAX:
        raise e.PropertiesTooLargeError(
            f"{len(properties)} user properties, at most {USER_PROPERTIES_MAX} are allowed"
        )
    for key, value in properties.items():
        if key in RESERVED_KEYS:
            raise e.IllegalPropertyError(f"property {key} is reserved for the system")
        # An empty key could not be told from the end of the list once stored.
        if not key or has_control_characters(key) or has_control_characters(value):
            raise e.IllegalPropertyError(
                f"property {shown(key)}: the key is empty, or it or the value has control "
                "characters"
            )


def _check_properties_size(texts: list[str]) -> None:
    """Check the properties, tag and keys together."""
    size = len("".join(texts).encode())
    if size > USER_PROPERTIES_BYTES_MAX:
        raise e.PropertiesTooLargeError(
            f"properties, tag and keys are {size} bytes, at most {USER_PROPERTIES_BYTES_MAX} are "
            "allowed"
        )
