"""Messages of one topic that are sent together."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Final, final

from commitbus.broker.client.errors import ClientError, RefusedError
from commitbus.broker.client.receipt import OnDelivery, Receipt
from commitbus.broker.rpc.call import StatusCode

_log: Final = logging.getLogger(__name__)


@final
@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The batches that a broker takes, as the first response of a stream says."""

    body_bytes_max: int
    batch_bytes_max: int
    """Of bodies and properties together."""
    records_max: int

    def admit(self, batch: OutgoingBatch) -> bool:
        """Return whether the broker takes a batch of this size. A body may still be too long."""
        return batch.size_bytes <= self.batch_bytes_max and batch.count <= self.records_max


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

    def split(self, limits: BatchLimits) -> tuple[list[OutgoingBatch], list[OutgoingBatch]]:
        """Return the messages as batches that a broker takes, and those that it never takes.

        Of the latter each is a batch of its own. A batch that fits is returned as it is.
        """
        # A body that is too long makes a batch that is too long for one body.
        if self.size_bytes <= limits.body_bytes_max and self.count <= limits.records_max:
            return [self], []
        listeners = dict(self.listeners)
        fitting: list[OutgoingBatch] = []
        too_long: list[OutgoingBatch] = []
        for index in range(self.count):
            body, properties = self.parts[2 * index : 2 * index + 2]
            size = len(body) + len(properties)
            if len(body) > limits.body_bytes_max or size > limits.batch_bytes_max:
                batch = self._begin(too_long)
            elif (
                not fitting
                or fitting[-1].size_bytes + size > limits.batch_bytes_max
                or fitting[-1].count == limits.records_max
            ):
                batch = self._begin(fitting)
            else:
                batch = fitting[-1]
            batch.add(body, properties, listeners.get(index))
        return fitting, too_long

    def _begin(self, batches: list[OutgoingBatch]) -> OutgoingBatch:
        batch = OutgoingBatch()
        batch.born_ms, batch.since_s = self.born_ms, self.since_s
        batches.append(batch)
        return batch

    def add(self, body: bytes, properties: bytes, on_delivery: OnDelivery | None) -> None:
        """Add a message."""
        if on_delivery is not None:
            self.listeners.append((self.count, on_delivery))
        self.parts += (body, properties)
        self.count += 1
        self.size_bytes += len(body) + len(properties)

    def stored(self, topic: str, queue_id: int, first_offset: int, store_ms: int) -> None:
        """Give each listener the receipt of its message."""
        for index, listener in self.listeners:
            _tell(listener, None, Receipt(topic, queue_id, first_offset + index, store_ms))

    def failed(self, error: ClientError) -> None:
        """Tell each listener why its message was not stored, or may not be."""
        for _, listener in self.listeners:
            _tell(listener, error, None)


def too_long(batch: OutgoingBatch, limits: BatchLimits) -> RefusedError:
    """Return why the broker does not take the one message of a batch."""
    body_bytes = len(batch.parts[0])
    if body_bytes > limits.body_bytes_max:
        reason = f"a body of {body_bytes} bytes, at most {limits.body_bytes_max} are taken"
    else:
        reason = f"{batch.size_bytes} bytes, at most {limits.batch_bytes_max} are taken"
    return RefusedError(StatusCode.INVALID_ARGUMENT, reason)


def _tell(listener: OnDelivery, error: ClientError | None, receipt: Receipt | None) -> None:
    try:
        listener(error, receipt)
    except Exception:  # noqa: BLE001 - logged below, and no reason to stop sending
        _log.exception("a delivery callback failed")
