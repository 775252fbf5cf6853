"""What a producer gets for a message."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias, final

from commitbus.broker.client.errors import ClientError


@final
class Receipt(NamedTuple):
    """Where a message was stored."""

    topic: str
    queue_id: int
    queue_offset: int
    store_timestamp: int
    """Milliseconds since 1970, by the broker's clock."""


OnDelivery: TypeAlias = Callable[[ClientError | None, Receipt | None], object]
"""Told once, with an error or with a receipt. What it raises is logged."""
