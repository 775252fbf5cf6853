"""The settings of a topic, and their form in RocketMQ's `topics.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final, final

from commitbus.broker.metadata.documents import (
    INT32_MAX,
    DocumentError,
    Json,
    JsonObject,
    from_strings,
    integer,
    strings,
    truth,
)

PERM_WRITE: Final = 2
PERM_READ: Final = 4

STORED_QUEUES_MAX: Final = 65_536
"""Queues of a topic in a file that RocketMQ wrote: every receive looks at each of them."""

QUEUES_MAX: Final = 1024
"""Queues of a topic. Every answer about a route lists all of them."""

MESSAGE_TYPE_ATTRIBUTE: Final = "message.type"
LITE_EXPIRATION_ATTRIBUTE: Final = "lite.topic.expiration"


@final
class MessageType(StrEnum):
    """The kind of message a topic takes, named as in RocketMQ's attribute `message.type`."""

    UNSPECIFIED = "UNSPECIFIED"
    NORMAL = "NORMAL"
    FIFO = "FIFO"
    DELAY = "DELAY"
    TRANSACTION = "TRANSACTION"
    MIXED = "MIXED"
    LITE = "LITE"
    PRIORITY = "PRIORITY"


_MESSAGE_TYPES: Final[Mapping[str, MessageType]] = {kind.value: kind for kind in MessageType}


@final
@dataclass(frozen=True, slots=True)
class TopicConfig:
    """A topic as its operator set it up."""

    name: str
    read_queue_nums: int = 8
    write_queue_nums: int = 8
    perm: int = PERM_READ | PERM_WRITE
    """Bits: `PERM_READ`, `PERM_WRITE`."""
    order: bool = False
    topic_sys_flag: int = 0
    attributes: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """RocketMQ's names without the `+` of its command line, such as `message.type`."""

    message_type: MessageType = field(init=False, repr=False, compare=False)
    """The kind of message it takes: NORMAL where no or an unknown one was set."""

    def __post_init__(self) -> None:
        name = self.attributes.get(MESSAGE_TYPE_ATTRIBUTE, "")
        object.__setattr__(self, "message_type", _MESSAGE_TYPES.get(name, MessageType.NORMAL))

    @property
    def readable(self) -> bool:
        """True if consumers may receive from it."""
        return bool(self.perm & PERM_READ)

    @property
    def writable(self) -> bool:
        """True if producers may send to it."""
        return bool(self.perm & PERM_WRITE)


def encode_topic(config: TopicConfig) -> JsonObject:
    """Return the entry of `topicConfigTable`, its names in RocketMQ's order."""
    return {
        "attributes": from_strings(config.attributes),
        "order": config.order,
        "perm": config.perm,
        "readQueueNums": config.read_queue_nums,
        "topicFilterType": "SINGLE_TAG",
        "topicName": config.name,
        "topicSysFlag": config.topic_sys_flag,
        "writeQueueNums": config.write_queue_nums,
    }


def decode_topic(name: str, entry: Json) -> TopicConfig:
    """Return the topic of an entry of `topicConfigTable`; what it leaves out has its default.

    Raises:
        DocumentError: The entry is no object, or a field has the wrong type or an impossible value.
    """
    if not isinstance(entry, dict):
        raise DocumentError(f"topic {name!r} is no object")
    default = TopicConfig(name)
    return TopicConfig(
        name=name,
        read_queue_nums=integer(
            entry, "readQueueNums", default.read_queue_nums, maximum=STORED_QUEUES_MAX
        ),
        write_queue_nums=integer(
            entry, "writeQueueNums", default.write_queue_nums, maximum=STORED_QUEUES_MAX
        ),
        perm=integer(entry, "perm", default.perm, maximum=INT32_MAX),
        order=truth(entry, "order", default=default.order),
        topic_sys_flag=integer(entry, "topicSysFlag", default.topic_sys_flag, maximum=INT32_MAX),
        attributes=MappingProxyType(strings(entry, "attributes")),
    )
