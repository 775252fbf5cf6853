"""What a call does and to what, as each method declares it for whoever permits calls.

Nothing here permits or refuses anything: an interceptor that does asks `Method.access` about each
request that it is shown. The names are those of RocketMQ's access control lists.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter
from typing import Any, Final, NamedTuple, final


@final
class Action(Enum):
    """The kinds of actions."""

    PUB = "Pub"
    SUB = "Sub"
    CREATE = "Create"
    """Make something, or change its settings if it exists."""
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"
    LIST = "List"
    ANY = "Any"
    """Any permitted action on the resource is enough: the call says what clients that publish need
    as well as those that subscribe."""


@final
class ResourceType(Enum):
    """The kinds of resources."""

    CLUSTER = "Cluster"
    """The broker itself, or its whole log."""
    TOPIC = "Topic"
    GROUP = "Group"


@final
class Resource(NamedTuple):
    """One thing that a request touches."""

    type: ResourceType
    name: str
    """As the request has it, not checked yet. Empty: no particular one, so it may be any."""


@final
@dataclass(frozen=True, slots=True)
class Access:
    """What the calls of a method do."""

    action: Action
    resources: Callable[[Any], Sequence[Resource]]
    """Returns what a request touches, each of which must be permitted. It may raise what the
    handler may raise."""


def touching(action: Action, *, topic: str = "", group: str = "") -> Access:
    """Return the access to the one topic, and the one group, that these fields of a request name.

    Args:
        action: what is done to them.
        topic: the path of the field, such as `message_queue.topic.name`; empty: there is none.
        group: likewise.
    """
    fields = [
        (type_, attrgetter(path))
        for type_, path in ((ResourceType.TOPIC, topic), (ResourceType.GROUP, group))
        if path
    ]
    return Access(action, lambda request: [Resource(type_, get(request)) for type_, get in fields])


def topics(names: Sequence[str]) -> list[Resource]:
    """Return topics as resources, each once."""
    return [Resource(ResourceType.TOPIC, name) for name in dict.fromkeys(names)]


def group(name: str) -> Resource:
    """Return a group as a resource."""
    return Resource(ResourceType.GROUP, name)


def touching_all(action: Action, type_: ResourceType) -> Access:
    """Return the access to all resources of a type."""
    all_of_them = (Resource(type_, ""),)
    return Access(action, lambda _: all_of_them)


NOTHING: Final = Access(Action.GET, lambda _: ())
"""The access of calls that anybody may make."""
