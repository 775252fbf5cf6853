"""A pull call: it looks for messages of one queue, or is parked until there may be some.

Nothing is put in flight, and the group's progress stays as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Generic, final

import trio

from commitbus.broker.common.errors import IllegalOffsetError, TooManyRequestsError
from commitbus.broker.consuming.delivering import Recipient
from commitbus.broker.consuming.state import ConsumingCore
from commitbus.broker.consuming.store_reads import (
    NotRead,
    Place,
    read_or_wait,
    read_records,
    takes_long,
)
from commitbus.broker.filters.message_filter import MessageFilter
from commitbus.broker.receiving.allowance import Allowance
from commitbus.broker.receiving.encoder import Encoder, M, Outcome, encode_messages
from commitbus.broker.receiving.scan import Scan
from commitbus.commitlog.errors import CorruptRecordError, ReadFailedError
from commitbus.commitlog.types import QueueOffset

_log: Final = logging.getLogger(__name__)


@final
@dataclass(frozen=True, slots=True)
class PullDemand:
    """A pull call's parameters, but for its offset."""

    topic: str
    queue_id: int
    wanted: MessageFilter
    batch_size: int
    to: Recipient
    until_s: float
    """When to wait no more, on the scale of `trio.current_time()`; a `shared_deadline_s`."""


@final
class PullBatch(Generic[M]):
    """The messages of one pull. A context manager that holds their bytes until its end."""

    def __init__(self, allowance: Allowance) -> None:
        self.allowance = allowance
        self.messages: list[M] = []

    def __enter__(self) -> PullBatch[M]:
        return self

    def __exit__(self, *_: object) -> None:
        self.allowance.give_back()


@final
class Pulling(Generic[M]):
    """One pull call: a `Poll`."""

    __slots__ = ("_core", "_demand", "_encoder", "_go_on", "offset")

    def __init__(
        self,
        core: ConsumingCore,
        demand: PullDemand,
        encoder: Encoder[M],
        offset: QueueOffset,
    ) -> None:
        self._core, self._demand, self._encoder = core, demand, encoder
        self.offset = offset
        """Where the next look begins: after an answer, where the client goes on."""
        self._go_on: Callable[[], None] | None = None

    # Waiting: a `Watcher` of its queue, and one of the deadlines' `Waits`

    @property
    def group(self) -> str:
        """The group that it pulls for."""
        return self._demand.to.group

    def park(self, go_on: Callable[[], None]) -> None:
        """Have `go_on` called, once, when the queue may have messages or the time is over."""
        topic, queue_id = self._demand.topic, self._demand.queue_id
        self._go_on = go_on
        self._core.polls.deadlines.add(self._demand.until_s, self)
        self._core.watch.add(topic, queue_id, self)
        if self._core.store.max_offset(topic, queue_id) > self.offset:
            self.wake()

    def wake(self) -> None:
        """Look again."""
        go_on = self._go_on
        self.leave()
        if go_on is not None:
            go_on()

    time_over = wake

    def leave(self) -> None:
        """Wait no more."""
        self._go_on = None
        self._core.polls.deadlines.discard(self._demand.until_s, self)
        self._core.watch.discard(self._demand.topic, self._demand.queue_id, self)

    # Looking

    def batch(self) -> PullBatch[M]:
        """Return an empty batch to look with."""
        demand = self._demand
        return PullBatch(Allowance(self._core.delivering, demand.to, demand.batch_size))

    async def look(self, batch: PullBatch[M]) -> bool:
        """Fill a batch and go on behind it; return whether it is worth waiting.

        Raises:
            RequestError: topic, group or queue are gone, or not to be pulled from or for; or the
                offset is none of the queue: then it becomes the nearest that is.
            ReadFailedError: the disk does not give the next message back: the offset becomes that
                of the one behind it. To try again, the client asks for the same one again.
        """
        # Whoever gave the call up before its turn came gets nothing read.
        await trio.lowlevel.checkpoint_if_cancelled()
        demand = self._demand
        scan = Scan(self._core, demand.topic, demand.queue_id, demand.wanted)
        while self._check() > self.offset:
            await self._step(scan, batch)
            if batch.messages or trio.current_time() >= demand.until_s:
                return False
            # A filter may step over millions: others get a turn between two steps.
            await trio.lowlevel.checkpoint()
        waits = trio.current_time() < demand.until_s
        if waits and self._core.watch.is_full(demand.topic, demand.queue_id):
            raise TooManyRequestsError(
                f"too many wait for queue {demand.queue_id} of {demand.topic}"
            )
        return waits

    def _check(self) -> QueueOffset:
        """Look up anew what an operator or retention may have changed; return the queue's end."""
        core, topic, queue_id = self._core, self._demand.topic, self._demand.queue_id
        core.check_readable(topic, queue_id)
        core.consuming_group(self.group)
        first = core.store.min_offset(topic, queue_id)
        end = core.store.max_offset(topic, queue_id)
        if not first <= self.offset <= end:
            asked, self.offset = self.offset, min(max(self.offset, first), end)
            raise IllegalOffsetError(f"offset {asked} is not in [{first}, {end}]")
        return end

    async def _step(self, scan: Scan, batch: PullBatch[M]) -> None:
        """Read what is found in one step, and go on behind it.

        Raises:
            TooManyRequestsError: too many bytes are on their way to the client already.
            ReadFailedError: as `look`.
        """
        found = await scan.step(self.offset, self._demand.batch_size)
        places = batch.allowance.fitting(found.places)
        batch.allowance.take(places)
        batch.allowance.check_after()
        is_cut = len(places) < len(found.places)
        next_offset = found.places[len(places)].queue_offset if is_cut else found.next_offset
        if places:
            outcomes = await read_or_wait(self._encode, places)
            unreadable = self._add(batch, places, outcomes)
            if unreadable is not None:
                place, error = unreadable
                if not batch.messages:
                    _log.error("message unreadable", extra={"reason": str(error)})
                    self.offset = QueueOffset(place.queue_offset + 1)
                    raise error
                next_offset = place.queue_offset
        self.offset = next_offset
        if not batch.messages:
            batch.allowance.give_back()

    def _add(
        self, batch: PullBatch[M], places: Sequence[Place], outcomes: Sequence[Outcome[M]]
    ) -> tuple[Place, ReadFailedError] | None:
        """Add messages, without those that are gone or not wanted; return the unreadable one."""
        body_bytes, unreadable = 0, None
        for place, outcome in zip(places, outcomes, strict=False):
            if isinstance(outcome, tuple):
                message, size_bytes = outcome
                batch.messages.append(message)
                body_bytes += size_bytes
            elif isinstance(outcome, CorruptRecordError):
                # Passed over: at the same place again the consumer would get no further.
                _log.error("message unreadable", extra={"reason": str(outcome)})
            elif isinstance(outcome, ReadFailedError):
                unreadable = place, outcome
        self._core.counters.count_received(
            self.group, self._demand.topic, len(batch.messages), body_bytes
        )
        return unreadable

    def _encode(self, places: Sequence[Place], *, only_cached: bool) -> list[Outcome[M]] | None:
        if only_cached and takes_long(places):
            return None
        records = read_records(self._core.store, places, only_cached=only_cached)
        encode = self._encoder(self._demand.queue_id, None)
        return encode_messages(encode, places, _readable(records), None, self._demand.wanted)


def _readable(
    records: Iterable[memoryview | NotRead | None],
) -> Iterator[memoryview | NotRead | None]:
    """Yield records up to the first that the disk does not give back: it ends the answer."""
    for record in records:
        yield record
        if isinstance(record, ReadFailedError):
            return
