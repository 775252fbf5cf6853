"""What a receiver asks for, as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from commitbus.broker.filters.message_filter import MessageFilter


@final
@dataclass(frozen=True, slots=True)
class Demand:
    """One receive call's parameters."""

    group: str
    topic: str
    wanted: MessageFilter
    batch_size: int
    invisible_ms: int
    client_id: str
    """In a FIFO group together with the attempt, as `receiver_id` writes both."""
    auto_renew: bool
    connection: str
    """The peer's address with its port."""
    one_of_unit: bool = False
    """Whether a FIFO group gets at most one message of a lock unit at a time."""
