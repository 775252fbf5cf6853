"""The fields that make a message one of a special kind, and the entry of a kind in the table."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, final

from commitbus.broker.metadata.topics import MessageType

if TYPE_CHECKING:
    from commitbus.broker.core.broker import BrokerCore

NO_PROPERTIES: Final[Mapping[str, str]] = MappingProxyType({})


@final
class SpecialFields(NamedTuple):
    """The fields that messages of kind NORMAL do not have; None: not given."""

    message_group: str = ""
    delivery_ms: int | None = None
    """The time of delivery, milliseconds since 1970."""
    priority: int | None = None
    lite_topic: str | None = None
    is_transaction: bool = False
    recovery_ms: int | None = None
    """The time from the send to the first question about the outcome of the transaction."""


@final
@dataclass(frozen=True, slots=True)
class MessageKind:
    """All that the broker knows about one kind of message.

    A message of a kind with `held_in` is stored there, in queue 0, with the names of its topic and
    queue (REAL_TOPIC, REAL_QID) as RocketMQ has it; `deliver` stores it in its topic later.
    Consumers receive any other message from the queue in which it was stored.
    """

    type: MessageType
    is_sent: Callable[[SpecialFields], bool]
    """Return whether a producer's message with these fields is of this kind."""
    is_stored: Callable[[Mapping[str, str]], bool]
    """Return whether a stored message with these properties is of this kind."""
    check: Callable[[SpecialFields, int], None] = lambda _fields, _now_ms: None
    """Check the fields that belong to this kind, now; a message of any kind may have them.

    Raises:
        RequestError: a field is out of its range.
    """
    property: str = ""
    """The stored property by which a message of this kind is known; empty: it has none."""
    properties: Callable[[SpecialFields], Mapping[str, str]] = lambda _fields: NO_PROPERTIES
    """The properties to store with a message. Their values hold no separator: `check` saw to it."""
    queue_of: Callable[[SpecialFields, int], int] | None = None
    """Return the queue for a message among so many; None: the queues of a topic take turns."""
    held_in: str = ""
    """The system topic in which a message waits; empty: it is stored in its own topic."""
    deliver: Callable[[BrokerCore], Awaitable[None]] | None = None
    """Deliver what is held, until cancelled; runs as a task of the broker."""
    is_supported: bool = False
    """False: the broker refuses messages of this kind."""
    is_mixed: bool = False
    """True: clients are told that topics of type MIXED take it."""
    metric: str = "normal"
    """The label `message_type` of metrics; RocketMQ has fewer labels than kinds."""
