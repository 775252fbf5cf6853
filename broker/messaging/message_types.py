"""The protocol's words for the kinds of messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from commitbus.broker.core.kinds import KINDS, kinds_taken
from commitbus.broker.metadata.topics import MessageType
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb

TYPES: Final[Mapping[MessageType, pb.MessageType]] = {
    kind: getattr(pb, kind.value) for kind in KINDS
}
"""The protocol has no word for MIXED; UNSPECIFIED is its zero."""


def types_taken(topic_type: MessageType) -> list[pb.MessageType]:
    """Return the types of messages that clients may send to a topic."""
    taken = sorted(TYPES[kind.type] for kind in kinds_taken(topic_type))
    return taken or [pb.MESSAGE_TYPE_UNSPECIFIED]
