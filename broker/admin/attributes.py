"""How topics and groups are changed, and which attributes they may have.

The names are RocketMQ's, but for `fifo.lock.unit`. One whose value we could not honour is refused
rather than stored: a setting that has no effect is worse than an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final, final

from commitbus.broker.common.shown import shown
from commitbus.broker.metadata.documents import JsonObject, from_strings
from commitbus.broker.metadata.groups import (
    FIFO_LOCK_UNIT_ATTRIBUTE,
    LITE_BIND_TOPIC_ATTRIBUTE,
    PRIORITY_FACTOR_ATTRIBUTE,
    LockUnit,
)
from commitbus.broker.metadata.names import IllegalNameError, validate_topic
from commitbus.broker.metadata.topics import (
    LITE_EXPIRATION_ATTRIBUTE,
    MESSAGE_TYPE_ATTRIBUTE,
    MessageType,
)
from commitbus.broker.rpc.proto import admin_v1_pb2 as pb

_DIGITS_MAX: Final = 19

Problem = Callable[[str], str | None]
"""Says what is wrong with a value, or None."""


@final
class AttributeRefusedError(ValueError):
    """An attribute does not exist, or cannot have this value."""

    def __init__(self, name: str, reason: str) -> None:
        self.name, self.reason = name, reason
        super().__init__(f"attribute {shown(name)}: {reason}")


def _one_of(*values: str) -> Problem:
    return lambda value: None if value in values else f"must be one of {', '.join(values)}"


def _only(value: str) -> Problem:
    return lambda got: None if got == value else f"only {value} is supported, not {shown(got)}"


def _between(minimum: int, maximum: int) -> Problem:
    def problem(value: str) -> str | None:
        # Python refuses to read thousands of digits, and says so by an error of its own.
        digits = value.removeprefix("-") if len(value) <= _DIGITS_MAX else ""
        good = digits.isascii() and digits.isdigit() and minimum <= int(value) <= maximum
        return None if good else f"must be a number from {minimum} to {maximum}"

    return problem


def _topic(value: str) -> str | None:
    try:
        validate_topic(value)
    except IllegalNameError as error:
        return str(error)
    return None


TOPIC_ATTRIBUTES: Final[Mapping[str, Problem]] = {
    MESSAGE_TYPE_ATTRIBUTE: _one_of(*MessageType),
    "queue.type": _only("SimpleCQ"),
    "cleanup.policy": _only("DELETE"),
    # Minutes; -1 never, at most 30 days.
    LITE_EXPIRATION_ATTRIBUTE: _between(-1, 30 * 24 * 60),
}
GROUP_ATTRIBUTES: Final[Mapping[str, Problem]] = {
    LITE_BIND_TOPIC_ATTRIBUTE: _topic,
    PRIORITY_FACTOR_ATTRIBUTE: _between(0, 100),
    FIFO_LOCK_UNIT_ATTRIBUTE: _one_of(*LockUnit),
}


def changed_attributes(
    known: Mapping[str, Problem],
    current: Mapping[str, str],
    sets: Mapping[str, str],
    deletes: Iterable[str],
) -> Mapping[str, str]:
    """Return the attributes after a change.

    Raises:
        AttributeRefusedError: a name is unknown or nothing is there to delete, or a value is bad.
    """
    attributes = dict(current)
    for name in deletes:
        if attributes.pop(name, None) is None:
            raise AttributeRefusedError(name, "it is not set, so it cannot be deleted")
    for name, value in sets.items():
        if name not in known:
            raise AttributeRefusedError(name, f"unknown; there are {', '.join(sorted(known))}")
        if problem := known[name](value):
            raise AttributeRefusedError(name, problem)
        attributes[name] = value
    return MappingProxyType(attributes)


def changed_entry(
    entry: JsonObject,
    known: Mapping[str, Problem],
    current: Mapping[str, str],
    request: pb.PutTopicRequest | pb.PutGroupRequest,
    fields: Mapping[str, str],
) -> JsonObject:
    """Return a topic or a group, as RocketMQ's files have it, with the change of a request.

    Args:
        entry: as it is; what the request does not have stays.
        known: the attributes that it may have.
        current: those that it has.
        request: the change.
        fields: of the request, to their names in the entry.

    Raises:
        AttributeRefusedError: the attributes cannot be changed so.
    """
    sets, deletes = request.set_attributes, request.delete_attributes
    attributes = changed_attributes(known, current, sets, deletes)
    given = {name: getattr(request, f) for f, name in fields.items() if request.HasField(f)}
    return entry | {"attributes": from_strings(attributes)} | given
