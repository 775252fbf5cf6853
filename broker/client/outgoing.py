"""Messages of one topic that are sent together."""

from __future__ import annotations

import logging
import math
from typing import Final, final

from commitbus.broker.client.errors import ClientError
from commitbus.broker.client.receipt import OnDelivery, Receipt

_log: Final = logging.getLogger(__name__)


@final
class OutgoingBatch:
    """Messages that are stored together."""

    __slots__ = ("born_ms", "count", "listeners", "parts", "sequence", "since_s", "size_bytes")

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        """Of each message its body, then its properties."""
        self.listeners: list[tuple[int, OnDelivery]] = []
        """By index of the message; of those that have one."""
        self.count = self.size_bytes = 0
        self.born_ms = 0
        self.since_s = math.inf
        """When its first message came, monotonic."""
        self.sequence = -1

    def take_out(self, index: int) -> OutgoingBatch:
        """Return a batch of one message, which is then missing here."""
        one = OutgoingBatch()
        at = slice(2 * index, 2 * index + 2)
        one.parts, self.parts[at] = self.parts[at], []
        one.listeners = [(0, told) for where, told in self.listeners if where == index]
        self.listeners = [
            (where - (where > index), told) for where, told in self.listeners if where != index
        ]
        one.count, one.size_bytes = 1, sum(map(len, one.parts))
        self.count -= 1
        self.size_bytes -= one.size_bytes
        return one

    def stored(self, topic: str, queue_id: int, first_offset: int, store_ms: int) -> None:
        """Give each listener the receipt of its message."""
        for index, listener in self.listeners:
            _tell(listener, None, Receipt(topic, queue_id, first_offset + index, store_ms))

    def failed(self, error: ClientError) -> None:
        """Tell each listener why its message was not stored, or may not be."""
        for _, listener in self.listeners:
            _tell(listener, error, None)


def _tell(listener: OnDelivery, error: ClientError | None, receipt: Receipt | None) -> None:
    try:
        listener(error, receipt)
    except Exception:  # noqa: BLE001 - logged below, and no reason to stop sending
        _log.exception("a delivery callback failed")
