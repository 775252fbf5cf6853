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
    auto_renew: bool
    connection: str
    """The peer's address with its port."""
    attempt_id: str = ""
    """The name of the attempt, in a FIFO group: a client repeats it to get the same batch."""
    one_of_unit: bool = False
    """Whether a FIFO group gets at most one message of a lock unit at a time."""
