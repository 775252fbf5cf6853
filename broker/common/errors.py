"""The reasons to refuse a request, grouped by subject.

There are two roots: `RequestError`, a fault of the request, and `StoreError` in
`commitbus.commitlog.errors`, a fault of the store. Every adapter has one table with a row for each
class, or for the nearest class above it that is no root: `tests/broker/core/test_error_codes.py`.
"""

from __future__ import annotations

from typing import Final

from commitbus.broker.common.shown import shown
from commitbus.commitlog.errors import StoreError


class RequestError(Exception):
    """The base of every refusal. Its text goes to the client as it is."""


class IllegalRequestError(RequestError):
    """The base of refusals of requests that are wrong in themselves, at any time and broker."""


class MissingError(RequestError):
    """The base of refusals because something that the request names does not exist."""


REFUSALS: Final = (RequestError, StoreError)
"""The errors that a handler may raise on purpose; any other one is a bug."""


# Names, and the calling client


class ClientIdRequiredError(IllegalRequestError):
    """The request carries no client id, or an absurdly long one."""

    def __init__(self) -> None:
        super().__init__("client id cannot be empty or long: send the header x-mq-client-id")


class UnrecognizedClientError(IllegalRequestError):
    """The client is unknown, and the request needs a known one."""


class InvalidSettingsError(IllegalRequestError):
    """A client's settings name neither topics to publish to nor subscriptions."""


class IllegalTopicError(IllegalRequestError):
    """The topic's name breaks the rules, or is one of the system's own."""


class IllegalGroupError(IllegalRequestError):
    """The consumer group's name breaks the rules."""


class TopicNotFoundError(MissingError):
    """There is no such topic."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        super().__init__(f"no such topic: {topic}")


class GroupNotFoundError(MissingError):
    """There is no such consumer group, or no longer."""

    def __init__(self, group: str) -> None:
        self.group = group
        super().__init__(f"no such consumer group: {group}")


class NotPermittedError(RequestError):
    """The topic has no queue for this, or the group may not consume."""


# A message to be stored


class MessageCorruptedError(IllegalRequestError):
    """The messages of one request do not belong together, or there are none."""


class BodyEmptyError(IllegalRequestError):
    """A message has no body."""

    def __init__(self) -> None:
        super().__init__("message body cannot be empty")


class BodyTooLargeError(IllegalRequestError):
    """A message's body is over the limit."""

    def __init__(self, got: int, maximum: int) -> None:
        self.got, self.maximum = got, maximum
        super().__init__(f"message body is {got} bytes, at most {maximum} are allowed")


class PropertiesTooLargeError(IllegalRequestError):
    """A message has too many properties, or too long ones."""


class IllegalPropertyError(IllegalRequestError):
    """A property's name is reserved, or its name or value cannot be stored."""


class IllegalTagError(IllegalRequestError):
    """A message's tag cannot be stored or filtered by."""


class IllegalKeyError(IllegalRequestError):
    """A message's key cannot be stored."""


class IllegalMessageIdError(IllegalRequestError):
    """A message has no id, or one that cannot be stored."""


class IllegalMessageGroupError(IllegalRequestError):
    """A message's group is blank, too long, or has control characters."""


class IllegalLiteTopicError(IllegalRequestError):
    """A message's lite topic is blank, too long, or has characters that are not allowed."""


class IllegalDeliveryTimeError(IllegalRequestError):
    """A message is to be delivered later than the limit allows."""


class BadRequestError(IllegalRequestError):
    """A value is out of its range and the protocol has no code of its own for it."""


class MessageTypeConflictError(RequestError):
    """The message is of another type than its topic."""

    def __init__(self, topic: str, expected: str, got: str) -> None:
        self.topic, self.expected, self.got = topic, expected, got
        super().__init__(f"topic {topic} takes {expected} messages, but this one is {got}")


class UnsupportedFeatureError(RequestError):
    """The protocol has it, this broker does not yet."""


class TooManyRequestsError(RequestError):
    """A queue of work is full; the client should back off and try again."""


# Receiving and acknowledging


class IllegalFilterError(IllegalRequestError):
    """The filter expression cannot be understood."""


class IllegalInvisibleTimeError(IllegalRequestError):
    """The invisible duration is out of its range."""


class IllegalPollingTimeError(IllegalRequestError):
    """The call's deadline leaves no time for a long poll."""


class InvalidReceiptHandleError(IllegalRequestError):
    """The handle is malformed, names no delivered message, or has expired."""


# Offsets


class IllegalOffsetError(IllegalRequestError):
    """A queue has no such offset."""


class OffsetNotFoundError(MissingError):
    """The group has not begun to consume the queue."""


# Operators


class ClientNotConnectedError(MissingError):
    """There is no such client, or nothing can be sent to it."""

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        super().__init__(f"no client {shown(client_id)} is connected")


class ClientSilentError(RequestError):
    """A client did not answer a question in time."""

    def __init__(self, client_id: str, waited_s: float) -> None:
        self.client_id, self.waited_s = client_id, waited_s
        super().__init__(f"client {shown(client_id)} did not answer within {waited_s:g} s")


class MessageNotFoundError(MissingError):
    """No message has this name."""


class PreconditionFailedError(RequestError):
    """The change would break something in use."""


class NotFoundError(MissingError):
    """Something that the request names does not exist, and the protocol has no code for it."""
