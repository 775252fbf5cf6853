"""Taking messages for a FIFO group: of each lock unit in order, and nothing while a part is out.

What may be taken is decided in `broker.metadata.fifo_lock`. A group locks whole queues, as RocketMQ
does, or message groups: then what belongs to a locked one is stepped over and kept back, in flight
but not delivered yet, so that its neighbours pass.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from typing import Final, final

from trio import to_thread

from commitbus.broker.messaging import properties as names
from commitbus.broker.messaging.context import MessagingContext
from commitbus.broker.messaging.pop import (
    BATCH_MAX,
    HOT_BYTES,
    Batch,
    Demand,
    Run,
    is_exhausted,
)
from commitbus.broker.metadata.fifo_lock import (
    UnitOf,
    free_entries,
    names_attempt,
    next_free_ms,
    repeated_entries,
)
from commitbus.broker.metadata.groups import GroupConfig, LockUnit
from commitbus.broker.metadata.progress import QueueProgress
from commitbus.broker.store.message_store import MessageStore
from commitbus.broker.store.store_reader import FetchedUnit
from commitbus.commitlog.errors import StoreError
from commitbus.commitlog.record_format import check_record, decode_properties
from commitbus.commitlog.types import QueueOffset

READ_AT_ONCE_MAX: Final = 2 * BATCH_MAX
"""Message groups that are read on the trio thread, 10 us each. More are only after a restart."""


def make_batch(context: MessagingContext, demand: Demand) -> Batch:
    """Return an empty batch that takes messages in the order that the group wants."""
    group = context.metadata.group(demand.group)
    orderly = group is not None and group.consume_message_orderly
    return FifoBatch(context, demand) if orderly else Batch(context, demand)


@final
class FifoBatch(Batch):
    """The messages that one receive call of a FIFO group hands over."""

    is_fifo = True

    def _next_visible_ms(self, progress: QueueProgress) -> int | None:
        # What is visible already waits for something else of its unit: that is what counts.
        return next_free_ms(progress.in_flight.values(), self._context.clock.now_ms())

    async def _take_again(self, queues: Sequence[int], group: GroupConfig) -> None:
        """Take what an earlier receive of the same attempt took, and if there is any nothing else.

        Its client did not get the answer. What is visible again without that is taken in order, by
        `_take_step`.
        """
        if not names_attempt(self.demand.client_id):
            return
        for queue_id in queues:
            progress = self._context.progress.get(*self._key(queue_id))
            if progress is not None:
                unit_of = await self._units(queue_id, progress, group)
                self._repeat(queue_id, progress, unit_of, group)
        self.has_more = bool(self._taken)

    def _repeat(
        self, queue_id: int, progress: QueueProgress, unit_of: UnitOf, group: GroupConfig
    ) -> None:
        now_ms = self._context.clock.now_ms()
        entries = progress.in_flight.values()
        for entry in repeated_entries(entries, now_ms, self.demand.client_id, unit_of):
            if is_exhausted(group, entry.delivery_attempt):
                continue  # Another receiver of the attempt is just burying it.
            unit = self._unit(queue_id, QueueOffset(entry.offset))
            if unit is None:
                self._context.progress.acknowledge(progress, entry.offset)
            elif self._room and self._fitting((unit,)):
                self._take(self._redeliver(queue_id, progress, unit, now_ms, counts=False))
            else:
                return

    async def _take_step(self, queue_id: int) -> bool:
        """Take what is in flight and free, then what is new; return whether there may be more."""
        progress = self._progress(queue_id)
        _, group = self._check()
        if not await self._take_free(queue_id, progress, group):
            return False
        if group.lock_unit is LockUnit.MESSAGE_GROUP:
            return await self._step_over(queue_id, progress, group)
        if not progress.in_flight.keys() <= self._offsets(progress):
            # What is out comes before everything new.
            return False
        return await super()._take_step(queue_id)

    async def _step_over(self, queue_id: int, progress: QueueProgress, group: GroupConfig) -> bool:
        """Keep back what is new, and take of it what is free."""
        start = progress.next_offset
        found = await self._find_new(queue_id, progress, BATCH_MAX)
        if found is None:
            return False
        if not self._is_at(start, queue_id, progress):
            return True
        offsets = [unit.queue_offset for unit in found.units]
        self._context.progress.hold(progress, offsets, next_offset=found.next_offset)
        has_room = await self._take_free(queue_id, progress, group)
        return has_room and self._has_new(queue_id, progress)

    async def _take_free(self, queue_id: int, progress: QueueProgress, group: GroupConfig) -> bool:
        """Take what is in flight and free, in order; return whether there is room for more."""
        for _ in range(BATCH_MAX):
            exhausted = await self._take_until_exhausted(queue_id, progress, group)
            if exhausted is None:
                return self._room > 0
            await self._bury(exhausted)
            if self._context.progress.get(*self._key(queue_id)) is not progress:
                return False
        # Others get a turn before more of them are dead letters.
        self.has_more = True
        return False

    async def _take_until_exhausted(
        self, queue_id: int, progress: QueueProgress, group: GroupConfig
    ) -> Run | None:
        """Take what is free, up to a message that was delivered too often; return that one.

        It becomes a dead letter once all that lies before it in its unit is settled, and before
        anything behind it is delivered.
        """
        unit_of = await self._units(queue_id, progress, group)
        now_ms, taken = self._context.clock.now_ms(), self._offsets(progress)
        in_batch, ended = {unit_of(offset) for offset in taken}, set[Hashable]()
        for entry in free_entries(progress.in_flight.values(), now_ms, taken, unit_of):
            lock_unit = unit_of(entry.offset)
            unit = self._unit(queue_id, QueueOffset(entry.offset))
            if unit is None:
                # Retention has deleted it: there is nothing left to deliver.
                self._context.progress.acknowledge(progress, entry.offset)
            elif lock_unit in ended:
                continue
            elif not is_exhausted(group, entry.delivery_attempt + (not entry.suspended)):
                if not self._room or not self._fitting((unit,)):
                    return None
                self._take(self._redeliver(queue_id, progress, unit, now_ms))
                in_batch.add(lock_unit)
            elif lock_unit in in_batch:
                ended.add(lock_unit)
            else:
                return self._redeliver(queue_id, progress, unit, now_ms)
        return None

    def _offsets(self, progress: QueueProgress) -> set[int]:
        """Return what of a queue is part of this batch."""
        runs = [run for run in self._taken if run.progress is progress]
        return {unit.queue_offset for run in runs for unit in run.units}

    def _drop(self, run: Run, unit: FetchedUnit) -> None:
        super()._drop(run, unit)
        # Others may have found the unit locked by it, and wait.
        self.has_more = True

    async def _units(self, queue_id: int, progress: QueueProgress, group: GroupConfig) -> UnitOf:
        """Return the lock units of what is in flight; reads the message groups that are unknown."""
        if group.lock_unit is LockUnit.QUEUE:
            return _whole_queue
        known, in_flight = progress.message_groups or {}, progress.in_flight
        if len(known) > 2 * len(in_flight) + BATCH_MAX:
            known = {offset: unit for offset, unit in known.items() if offset in in_flight}
        progress.message_groups = known
        unknown = [offset for offset in in_flight if offset not in known]
        if unknown:
            store, topic = self._context.store, self.demand.topic
            read = partial(_read_units, store, topic, queue_id, unknown)
            known |= read() if self._is_quick(queue_id, unknown) else await to_thread.run_sync(read)
        return known.get

    def _is_quick(self, queue_id: int, offsets: Sequence[int]) -> bool:
        """Return whether to read these messages neither takes long nor waits for a disk."""
        if len(offsets) > READ_AT_ONCE_MAX:
            return False
        units = [self._unit(queue_id, QueueOffset(offset)) for offset in offsets]
        start = min((unit.physical_offset for unit in units if unit), default=None)
        return start is None or self._context.store.end_offset - start <= HOT_BYTES


def _whole_queue(_offset: int) -> None:
    """Return the one lock unit of a queue that is locked as a whole."""


def _read_units(
    store: MessageStore, topic: str, queue_id: int, offsets: Sequence[int]
) -> dict[int, Hashable]:
    """Return the message groups, empty where there is none. May be called on any thread."""
    return {offset: _read_unit(store, topic, queue_id, QueueOffset(offset)) for offset in offsets}


def _read_unit(
    store: MessageStore, topic: str, queue_id: int, offset: QueueOffset
) -> str | QueueOffset:
    """Return a message's group; of one that cannot be read its offset, a unit of its own."""
    for unit in store.fetch(topic, queue_id, offset, 1).units:
        if unit.queue_offset != offset:
            break
        try:
            with store.pin(unit.physical_offset, unit.size_bytes) as view:
                *_, start, end = check_record(view, 0, unit.physical_offset, verify_crc=False)
                return decode_properties(view[start:end].tobytes()).get(names.SHARDING_KEY, "")
        except StoreError:
            break
    return offset
