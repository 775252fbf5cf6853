"""What a store must hold: a dict of lists, fed by what it answered.

Each queue is a list of messages, indexed by queue offset. From each message the oracle knows how
much was promised about it:

| the store said                             | a kill keeps it | a power cut keeps it |
|--------------------------------------------|-----------------|----------------------|
| nothing: the call did not return           | perhaps         | perhaps              |
| appended (`put` returned)                  | yes             | perhaps              |
| durable (the watermark passed it)          | yes             | yes                  |
| shown to a consumer, SYNC_FLUSH            | yes             | yes                  |
| shown to a consumer, ASYNC_FLUSH           | yes             | perhaps              |
| found by a recovery that then returned     | yes             | yes                  |

What was lost once never comes back, and below the end of the log nothing is missing.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, final

from commitbus.commitlog.types import AppendResult, PhysicalOffset, QueueOffset
from tests.simulation.scheduler import SimulationError

QueueKey: TypeAlias = tuple[str, int]


@final
@dataclass
class Sent:
    """A message that a producer gave to the store."""

    queue: QueueKey
    body: bytes
    batch: int = 0
    """Number of its batch, 0 for none."""
    result: AppendResult | None = None
    is_durable: bool = False
    is_shown: bool = False


@final
class Found(NamedTuple):
    """A message as a consumer gets it."""

    body: bytes
    physical_offset: int
    size_bytes: int
    queue_offset: int


@final
class Oracle:
    """The promises of one store over all its processes."""

    def __init__(self, *, is_sync: bool) -> None:
        self._is_sync = is_sync
        self.queues: dict[QueueKey, list[Sent | None]] = {}
        """None where a message is known to be, but not which."""
        self.pending: dict[bytes, Sent] = {}
        """By body: given to the store, which has not said what became of them."""
        self._gone: set[bytes] = set()
        self._durable_end = 0
        self._batches = 0

    def copy(self) -> Oracle:
        """Return the promises as they are now."""
        return copy.deepcopy(self)

    # What the store says

    def sending(self, queue: QueueKey, bodies: Sequence[bytes]) -> list[Sent]:
        """A producer is about to put these."""
        if len(bodies) > 1:
            self._batches += 1
        batch = self._batches if len(bodies) > 1 else 0
        messages = [Sent(queue, body, batch) for body in bodies]
        for message in messages:
            self.pending[message.body] = message
        return messages

    def refused(self, messages: Sequence[Sent]) -> None:
        """The put raised: none of these may ever be seen."""
        for message in messages:
            del self.pending[message.body]
            self._gone.add(message.body)

    def appended(self, messages: Sequence[Sent], results: Sequence[AppendResult]) -> None:
        """The put returned."""
        for message, result in zip(messages, results, strict=True):
            message.result = result
            message.is_durable = result.end_offset <= self._durable_end
            self._place(message, result.queue_offset)
            self.pending.pop(message.body, None)

    def durable(self, end: int) -> None:
        """The watermark is at `end`."""
        self._durable_end = max(self._durable_end, end)
        for queue in self.queues.values():
            for message in queue:
                if message is not None and message.result is not None:
                    message.is_durable |= message.result.end_offset <= self._durable_end

    def shown(self, queue: QueueKey, found: Found) -> None:
        """A consumer got a message.

        Raises:
            SimulationError: It cannot be the one at this place.
        """
        message = self._identify(queue, found)
        message.is_shown = True

    # What must be

    def recovered(
        self, found: Mapping[QueueKey, Sequence[Found]], end: int, *, power_cut: bool
    ) -> None:
        """A start has returned, and these messages are there; `end` is the log's.

        Raises:
            SimulationError: A promise is broken.
        """
        for key in {*self.queues, *found}:
            messages = found.get(key, ())
            for message in messages:
                self._identify(key, message)
            self._check_lost(key, len(messages), end, power_cut=power_cut)
        if not power_cut:
            self._check_batches()
        # What is unknown still was never appended, and what is there was made durable.
        self._gone.update(self.pending)
        self.pending.clear()
        for queue in self.queues.values():
            for sent in queue:
                assert sent is not None
                sent.is_durable = True
        self._durable_end = end

    def _check_lost(self, key: QueueKey, count: int, end: int, *, power_cut: bool) -> None:
        queue = self.queues.setdefault(key, [])
        for offset, message in enumerate(queue[count:], count):
            if message is None:
                continue
            where = f"{key[0]}/{key[1]} at queue offset {offset}"
            assert message.result is not None
            if message.is_durable:
                raise SimulationError(f"{where}: a durable message is lost")
            if message.is_shown and self._is_sync:
                raise SimulationError(f"{where}: a message that a consumer saw is lost")
            if not power_cut:
                raise SimulationError(f"{where}: a kill lost an appended message")
            if message.result.physical_offset < end:
                raise SimulationError(f"{where}: it is missing, though the log goes on behind it")
            self._gone.add(message.body)
        del queue[count:]

    def _check_batches(self) -> None:
        present = {m.batch for queue in self.queues.values() for m in queue if m is not None}
        for message in self.pending.values():
            if message.batch and message.batch in present:
                raise SimulationError(f"a kill left half of batch {message.batch}")

    def _identify(self, key: QueueKey, found: Found) -> Sent:
        queue = self.queues.setdefault(key, [])
        where = f"{key[0]}/{key[1]} at queue offset {found.queue_offset}"
        known = queue[found.queue_offset] if found.queue_offset < len(queue) else None
        if known is None:
            known = self.pending.get(found.body)
            if known is None or known.queue != key:
                what = "one that was lost before" if found.body in self._gone else "an alien one"
                raise SimulationError(f"{where}: {what}: {found.body[:40]!r}")
            if known.result is None:
                known.result = AppendResult(
                    PhysicalOffset(found.physical_offset),
                    found.size_bytes,
                    QueueOffset(found.queue_offset),
                    0,
                )
            self._place(known, found.queue_offset)
            del self.pending[found.body]
        assert known.result is not None
        if known.body != found.body:
            raise SimulationError(f"{where}: {found.body[:40]!r} instead of {known.body[:40]!r}")
        if known.result.physical_offset != found.physical_offset:
            raise SimulationError(
                f"{where}: at physical offset {found.physical_offset} instead of "
                f"{known.result.physical_offset}"
            )
        return known

    def _place(self, message: Sent, queue_offset: int) -> None:
        queue = self.queues.setdefault(message.queue, [])
        while len(queue) <= queue_offset:
            queue.append(None)
        there = queue[queue_offset]
        if there is not None and there is not message:
            raise SimulationError(f"two messages at {message.queue} queue offset {queue_offset}")
        queue[queue_offset] = message
