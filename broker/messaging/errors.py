"""Everything that can be wrong with a request, grouped by what it is about.

Each class has one code of the protocol: `commitbus.broker.messaging.status` holds the table.
"""

from __future__ import annotations

from commitbus.broker.shown import shown


class RequestError(Exception):
    """The base of every refusal. Its text goes to the client as it is."""


# Names, and who is calling


class ClientIdRequiredError(RequestError):
    """The request carries no client id, or an absurdly long one."""

    def __init__(self) -> None:
        super().__init__("client id cannot be empty or long: send the header x-mq-client-id")


class UnrecognizedClientError(RequestError):
    """The client is none we know, and the request is meaningless for an unknown one."""


class InvalidSettingsError(RequestError):
    """A client's settings say neither what it publishes nor what it subscribes to."""


class IllegalTopicError(RequestError):
    """The topic's name breaks the rules, or is one of the system's own."""


class IllegalGroupError(RequestError):
    """The consumer group's name breaks the rules."""


class TopicNotFoundError(RequestError):
    """There is no such topic."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        super().__init__(f"no such topic: {topic}")


class GroupNotFoundError(RequestError):
    """There is no such consumer group, or no longer."""

    def __init__(self, group: str) -> None:
        self.group = group
        super().__init__(f"no such consumer group: {group}")


class NotPermittedError(RequestError):
    """The topic has no queue for this, or the group may not consume."""


# A message to be stored


class MessageCorruptedError(RequestError):
    """The messages of one request do not belong together, or there are none."""


class BodyEmptyError(RequestError):
    """A message has no body."""

    def __init__(self) -> None:
        super().__init__("message body cannot be empty")


class BodyTooLargeError(RequestError):
    """A message's body is over the limit."""

    def __init__(self, got: int, maximum: int) -> None:
        self.got, self.maximum = got, maximum
        super().__init__(f"message body is {got} bytes, at most {maximum} are allowed")


class PropertiesTooLargeError(RequestError):
    """A message has too many properties, or too long ones."""


class IllegalPropertyError(RequestError):
    """A property's name is reserved, or its name or value cannot be stored."""


class IllegalTagError(RequestError):
    """A message's tag cannot be stored or filtered by."""


class IllegalKeyError(RequestError):
    """A message's key cannot be stored."""


class IllegalMessageIdError(RequestError):
    """A message has no id, or one that cannot be stored."""


class IllegalMessageGroupError(RequestError):
    """A message's group is blank, too long, or has control characters."""


class IllegalLiteTopicError(RequestError):
    """A message's lite topic is blank, too long, or has characters that are not allowed."""


class IllegalDeliveryTimeError(RequestError):
    """A message is to be delivered later than the limit allows."""


class BadRequestError(RequestError):
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


class IllegalFilterError(RequestError):
    """The filter expression cannot be understood."""


class IllegalInvisibleTimeError(RequestError):
    """The invisible duration is out of its range."""


class IllegalPollingTimeError(RequestError):
    """The call's deadline leaves no time for a long poll."""


class InvalidReceiptHandleError(RequestError):
    """The handle is malformed, names no delivered message, or has expired."""


# Offsets


class IllegalOffsetError(RequestError):
    """A queue has no such offset."""


class OffsetNotFoundError(RequestError):
    """The group has not begun to consume the queue."""


# Operators


class ClientNotConnectedError(RequestError):
    """There is no such client, or nothing can be sent to it."""

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        super().__init__(f"no client {shown(client_id)} is connected")


class ClientSilentError(RequestError):
    """A client did not answer in time what it was asked."""

    def __init__(self, client_id: str, waited_s: float) -> None:
        self.client_id, self.waited_s = client_id, waited_s
        super().__init__(f"client {shown(client_id)} did not answer within {waited_s:g} s")


class MessageNotFoundError(RequestError):
    """No message has this name."""


class PreconditionFailedError(RequestError):
    """What is asked for would break what is in use."""


class NotFoundError(RequestError):
    """What is named does not exist, and the protocol has no code of its own for it."""
