"""Taking messages for a FIFO group: of each lock unit in order, and nothing while a part is out.

What may be taken is decided in `broker.metadata.fifo_lock`. A group locks whole queues, as RocketMQ
does, or message groups: then what belongs to a locked one is stepped over and kept back, in flight
but not delivered yet, so that its neighbours pass.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple, final

from commitbus.broker.core import properties as names
from commitbus.broker.messaging.context import MessagingContext
from commitbus.broker.messaging.pop import BATCH_MAX, Batch, is_exhausted
from commitbus.broker.messaging.store_reads import Place, read_or_wait, read_places, read_properties
from commitbus.broker.messaging.taken import Run
from commitbus.broker.messaging.undelivered import Demand
from commitbus.broker.metadata.fifo_lock import LockUnits, UnitName, lock_units, names_attempt
from commitbus.broker.metadata.groups import GroupConfig, LockUnit
from commitbus.broker.metadata.progress import InFlight, QueueProgress
from commitbus.broker.store.store_reader import StoreReader
from commitbus.broker.worker_lines import run_in_worker
from commitbus.commitlog.errors import StoreError
from commitbus.commitlog.record_format import decode_properties

READ_AT_ONCE_MAX: Final = 2 * BATCH_MAX
"""Message groups that are read on the trio thread, 10 us each. More are only after a restart."""
READ_IN_THREAD_MAX: Final = 4096
"""Message groups that are read at a time on another thread, 40 ms: what is read is kept, even if
the receiver goes away meanwhile."""

_log: Final = logging.getLogger(__name__)

_Places = dict[int, Place | None]


@final
class _Cold(NamedTuple):
    """Offsets of messages whose places must be read from a disk before more can be taken."""

    offsets: list[int]


def make_batch(context: MessagingContext, demand: Demand) -> Batch:
    """Return an empty batch that takes messages in the order that the group wants."""
    group = context.metadata.group(demand.group)
    orderly = group is not None and group.consume_message_orderly
    return FifoBatch(context, demand) if orderly else Batch(context, demand)


@final
class FifoBatch(Batch):
    """The messages that one receive call of a FIFO group hands over."""

    is_fifo = True

    def __init__(self, context: MessagingContext, demand: Demand) -> None:
        super().__init__(context, demand)
        self._unit_of: dict[tuple[int, int], UnitName] = {}
        """By queue id and queue offset: the lock units of what was taken."""
        self._retries_begin: dict[int, bool] = {}
        """By queue id: whether retries come before what is new."""
        self._held_up: set[tuple[int, UnitName]] = set()
        """Queue id and lock unit of unreadable messages: no later one of them may be delivered."""

    def _next_visible_ms(self, progress: QueueProgress) -> int | None:
        # What is visible already waits for something else of its unit: that is what counts.
        group = self._context.metadata.group(self.demand.group)
        unit = group.lock_unit if group is not None else LockUnit.QUEUE
        return lock_units(progress, unit).next_free_ms(self._context.clock.now_ms())

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
                await self._repeat(queue_id, progress, group)
        self.has_more = bool(self._taken)

    async def _repeat(self, queue_id: int, progress: QueueProgress, group: GroupConfig) -> None:
        known: _Places = {}
        while True:
            units = await self._units(queue_id, progress, group)
            if not self._is_current(queue_id, progress):
                return
            cold = self._repeat_known(queue_id, progress, group, units, known)
            if cold is None:
                return
            known |= await self._wait_for_places(queue_id, cold)

    def _repeat_known(
        self,
        queue_id: int,
        progress: QueueProgress,
        group: GroupConfig,
        units: LockUnits,
        known: _Places,
    ) -> _Cold | None:
        now_ms, taken = self._context.clock.now_ms(), self._offsets(progress)
        found = units.repeated(now_ms, self.demand.client_id)
        for index, entry in enumerate(found):
            if entry.offset in taken or is_exhausted(group, entry.delivery_attempt):
                continue  # Another receiver of the attempt is just burying it.
            if cold := self._look_up(queue_id, found[index : index + BATCH_MAX], known):
                return cold
            place = known[entry.offset]
            if place is None:
                self._context.progress.acknowledge(progress, entry.offset)
            elif self._room and self._fitting((place,)):
                name = units.name_of(entry.offset)
                self._take_of(
                    name, self._redeliver(queue_id, progress, place, now_ms, counts=False)
                )
            else:
                return None
        return None

    def _take_of(self, name: UnitName, run: Run) -> None:
        """Make a message of a lock unit part of the batch."""
        (place,) = run.places
        self._unit_of[run.queue_id, place.queue_offset] = name
        self._take(run)

    def _look_up(self, queue_id: int, entries: Sequence[InFlight], known: _Places) -> _Cold | None:
        """Learn where the first of some messages lies, and its neighbours if it is unknown."""
        if entries[0].offset in known:
            return None
        offsets = [entry.offset for entry in entries if entry.offset not in known]
        places = self._read_places(queue_id, offsets, only_cached=True)
        if places is None:
            return _Cold(offsets)
        known |= places
        return None

    async def _wait_for_places(self, queue_id: int, cold: _Cold) -> _Places:
        """Read from a disk; others may take the same messages meanwhile."""
        read = partial(self._read_places, queue_id, cold.offsets, only_cached=False)
        places = await run_in_worker(read)
        assert places is not None, "only what is not cached can be missing"
        return places

    async def _take_step(self, queue_id: int) -> bool:
        """Take what is in flight and free, then what is new; return whether there may be more."""
        progress = self._progress(queue_id)
        _, group = self._check()
        if group.lock_unit is LockUnit.MESSAGE_GROUP:
            return await self._take_of_groups(queue_id, progress, group)
        for retries in (True, False) if progress.in_flight else ():
            if not await self._take_free(queue_id, progress, group, retries=retries):
                return False
        taken = self._offsets(progress)
        if not progress.in_flight.keys() <= taken or (taken and self.demand.one_of_unit):
            # What is out comes before everything new.
            return False
        return await super()._take_step(queue_id)

    def _room_for_new(self) -> int:
        # The queue is one lock unit here.
        return min(1, self._room) if self.demand.one_of_unit else self._room

    async def _take_of_groups(
        self, queue_id: int, progress: QueueProgress, group: GroupConfig
    ) -> bool:
        """Take retries and what is new, first the kind whose turn it is in this queue.

        Order is owed inside a message group only, and groups that fail again and again must not
        keep their neighbours from being delivered at all.
        """
        retries_begin = self._retries_begin.get(queue_id)
        if retries_begin is None:
            units = await self._units(queue_id, progress, group)
            retries_begin = self._is_turn_of_retries(queue_id, progress, units)
            self._retries_begin[queue_id] = retries_begin
        if retries_begin and not await self._take_free(queue_id, progress, group, retries=True):
            return False
        if not await self._take_free(queue_id, progress, group, retries=False):
            return False
        may_be_more = await self._step_over(queue_id, progress, group)
        if retries_begin or not self._room or not self._is_current(queue_id, progress):
            return may_be_more
        has_room = await self._take_free(queue_id, progress, group, retries=True)
        return may_be_more and has_room

    def _is_turn_of_retries(self, queue_id: int, progress: QueueProgress, units: LockUnits) -> bool:
        now_ms = self._context.clock.now_ms()
        if not units.has_free(now_ms, retries=True):
            return False
        if not units.has_free(now_ms, retries=False) and not self._has_new(queue_id, progress):
            return True
        turns = self._context.turns_of(self.demand.group, self.demand.topic)
        return turns.of_queue(queue_id).retries_begin(self._context.config.retry_percent)

    async def _step_over(self, queue_id: int, progress: QueueProgress, group: GroupConfig) -> bool:
        """Keep back what is new, and take of it what is free."""
        start = progress.next_offset
        found = await self._find_new(queue_id, progress, BATCH_MAX)
        if found is None:
            return False
        if not self._is_at(start, queue_id, progress):
            return True
        offsets = [place.queue_offset for place in found.places]
        self._context.progress.hold(progress, offsets, next_offset=found.next_offset)
        has_room = await self._take_free(queue_id, progress, group, retries=False)
        return has_room and self._has_new(queue_id, progress)

    def _in_flight_room(self, queue_id: int, progress: QueueProgress) -> int:
        room, units = super()._in_flight_room(queue_id, progress), progress.lock_units
        if units is None or units.whole_queue:
            return room
        # What is held back has a limit of its own: it is not the consumers who let it wait.
        limit, held_back = self._context.config.held_back_max, units.held_back
        if held_back < limit:
            units.is_full_logged = units.is_full_logged and held_back > limit // 2
        elif not units.is_full_logged:  # once, not at every receive
            units.is_full_logged = True
            about = {"group": self.demand.group, "topic": self.demand.topic, "queue_id": queue_id}
            _log.warning("message groups held back up to the limit", extra=about)
        return min(room + held_back, limit - held_back)

    def limit_met(self) -> str:
        """Return that locked message groups of a queue hold back as much as they may."""
        topic = self._context.metadata.topic(self.demand.topic)
        for queue_id in range(topic.read_queue_nums if topic else 0):
            progress = self._context.progress.get(*self._key(queue_id))
            units = progress.lock_units if progress is not None else None
            if units is None or units.whole_queue:
                continue
            if units.held_back >= self._context.config.held_back_max:
                return (
                    f"{units.held_back} messages of locked message groups are held back in queue "
                    f"{queue_id}, and nothing behind them is looked at"
                )
        return super().limit_met()

    async def _take_free(
        self, queue_id: int, progress: QueueProgress, group: GroupConfig, *, retries: bool
    ) -> bool:
        """Take what is in flight and free, of one kind; return whether there is room for more."""
        for _ in range(BATCH_MAX):
            exhausted = await self._take_until_exhausted(queue_id, progress, group, retries=retries)
            if exhausted is None:
                return self._room > 0
            await self._bury(exhausted)
            if self._context.progress.get(*self._key(queue_id)) is not progress:
                return False
        # Others get a turn before more of them are dead letters.
        self.has_more = True
        return False

    async def _take_until_exhausted(
        self, queue_id: int, progress: QueueProgress, group: GroupConfig, *, retries: bool
    ) -> Run | None:
        """Take what is free, up to a message that was delivered too often; return that one.

        It becomes a dead letter once all that lies before it in its unit is settled, and before
        anything behind it is delivered.
        """
        known: _Places = {}
        while True:
            units = await self._units(queue_id, progress, group)
            if not self._is_current(queue_id, progress):
                return None
            found = self._take_known(queue_id, progress, group, units, known, retries=retries)
            if not isinstance(found, _Cold):
                return found
            known |= await self._wait_for_places(queue_id, found)

    def _take_known(
        self,
        queue_id: int,
        progress: QueueProgress,
        group: GroupConfig,
        units: LockUnits,
        known: _Places,
        *,
        retries: bool,
    ) -> Run | _Cold | None:
        now_ms = self._context.clock.now_ms()
        in_batch = {units.name_of(offset) for offset in self._offsets(progress)}
        # Units of which nothing more is wanted in this batch.
        ended = set(in_batch) if self.demand.one_of_unit else set[UnitName]()
        while free := units.free(
            now_ms, self._offsets(progress), ended, self._room + 1, retries=retries
        ):
            for index, entry in enumerate(free):
                name = units.name_of(entry.offset)
                if name in ended:
                    continue
                if cold := self._look_up(queue_id, free[index:], known):
                    return cold
                place = known[entry.offset]
                if place is None:
                    # Retention has deleted it: there is nothing left to deliver.
                    self._context.progress.acknowledge(progress, entry.offset)
                elif not is_exhausted(group, entry.delivery_attempt + (not entry.suspended)):
                    if not self._room or not self._fitting((place,)):
                        return None
                    self._take_of(name, self._redeliver(queue_id, progress, place, now_ms))
                    in_batch.add(name)
                    if self.demand.one_of_unit:
                        ended.add(name)
                elif name in in_batch:
                    ended.add(name)
                else:
                    return self._redeliver(queue_id, progress, place, now_ms)
        return None

    def _offsets(self, progress: QueueProgress) -> set[int]:
        """Return what of a queue is part of this batch."""
        runs = [run for run in self._taken if run.progress is progress]
        return {place.queue_offset for run in runs for place in run.places}

    def _must_wait(self, run: Run, place: Place) -> bool:
        lock_unit = self._lock_unit(run, place)
        if lock_unit not in self._held_up:
            return False
        # It was not delivered. The message before it locks the unit.
        self._make_visible(run, place, self._context.clock.now_ms())
        return True

    def _put_off(self, run: Run, place: Place, error: StoreError) -> None:
        self._held_up.add(self._lock_unit(run, place))
        units, offset = run.progress.lock_units, place.queue_offset
        if units is not None and units.name_of(offset) == offset:
            # If it can be read the next time, its message group can.
            units.forget(offset)
        super()._put_off(run, place, error)

    def _lock_unit(self, run: Run, place: Place) -> tuple[int, UnitName]:
        # What was new in a queue that is one unit was taken without a look at units.
        return run.queue_id, self._unit_of.get((run.queue_id, place.queue_offset))

    def _drop(self, run: Run, place: Place) -> None:
        super()._drop(run, place)
        # Others may have found the unit locked by it, and wait.
        self.has_more = True

    async def _units(self, queue_id: int, progress: QueueProgress, group: GroupConfig) -> LockUnits:
        """Return the lock units of what is in flight; reads the message groups that are unknown."""
        store, topic = self._context.store, self.demand.topic
        while True:
            # Looked up anew: a reset, while a disk is waited for, ends the present one.
            units = lock_units(progress, group.lock_unit)
            unknown = units.unknown(READ_IN_THREAD_MAX)
            if not unknown:
                return units
            units.assign(await read_or_wait(_read_units, store, topic, queue_id, unknown))


def _read_units(
    store: StoreReader, topic: str, queue_id: int, offsets: Sequence[int], *, only_cached: bool
) -> dict[int, UnitName] | None:
    """Return the message groups, empty where there is none.

    A message that cannot be read is a unit of its own, by its offset. With `only_cached` None if
    that takes long or waits for a disk.
    """
    if only_cached and len(offsets) > READ_AT_ONCE_MAX:
        return None
    places = read_places(store, topic, queue_id, offsets, only_cached=only_cached)
    if places is None:
        return None
    units: dict[int, UnitName] = {offset: offset for offset in offsets}
    stored = [place for place in places.values() if place is not None]
    found = read_properties(store, stored, only_cached=only_cached)
    for place, properties in zip(stored, found, strict=False):
        if properties is None:
            return None
        if isinstance(properties, memoryview):
            group = decode_properties(properties.tobytes()).get(names.SHARDING_KEY, "")
            units[place.queue_offset] = group
    return units
