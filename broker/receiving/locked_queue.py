"""One queue of a FIFO group: what is in flight there and free, taken in the order of lock units.

Whether a message is free is decided by `LockUnits` on the trio thread, at one moment. It needs the
places of the messages and, where message groups are locked, their names, which may have to be read
from a disk. So a decision is repeatable: it takes what it can, raises `ColdPlacesError` where it
must wait, and is made again with what was read, on what is in flight by then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar, final

from commitbus.broker.consuming.store_reads import (
    ColdPlacesError,
    Place,
    read_or_wait,
    read_places,
    read_properties,
)
from commitbus.broker.core import properties as names
from commitbus.broker.metadata.groups import GroupConfig
from commitbus.broker.progress.fifo_lock import LockUnits, UnitName, lock_units
from commitbus.broker.progress.queue_progress import InFlight, QueueProgress
from commitbus.broker.receiving.allowance import BATCH_MAX
from commitbus.broker.receiving.taken import Run, Taken, is_exhausted
from commitbus.broker.receiving.undelivered import bury
from commitbus.broker.store.store_reader import StoreReader
from commitbus.commitlog.record_format import decode_properties

READ_AT_ONCE_MAX: Final = 2 * BATCH_MAX
"""Message groups that are read on the trio thread, 10 us each. More are only after a restart."""
READ_IN_THREAD_MAX: Final = 4096
"""Message groups that are read at a time on another thread, 40 ms: what is read is kept, even if
the receiver goes away meanwhile."""

_Places = dict[int, Place | None]
"""By queue offset; None for a message that was deleted."""
_T = TypeVar("_T")


@final
class LockedQueue:
    """A queue as one step of a receive call sees it."""

    def __init__(
        self,
        taken: Taken,
        queue_id: int,
        progress: QueueProgress,
        group: GroupConfig,
        unit_of: dict[tuple[int, int], UnitName],
    ) -> None:
        self._taken, self._group, self._unit_of = taken, group, unit_of
        self.queue_id, self.progress = queue_id, progress

    @property
    def is_current(self) -> bool:
        """Whether the group's progress in the queue was not deleted meanwhile."""
        return self._taken.is_current(self.queue_id, self.progress)

    async def units(self) -> LockUnits:
        """Return the lock units of what is in flight; reads the message groups not known yet."""
        store, topic = self._taken.core.store, self._taken.demand.topic
        while True:
            # Looked up anew: a reset, while a disk is waited for, ends the present one.
            units = lock_units(self.progress, self._group.lock_unit)
            unknown = units.unknown(READ_IN_THREAD_MAX)
            if not unknown:
                return units
            units.assign(await read_or_wait(_read_units, store, topic, self.queue_id, unknown))

    async def repeat(self) -> None:
        """Take again what an earlier receive of the same attempt took."""
        await self._decide(self._repeat)

    async def take_free(self, *, retries: bool) -> bool:
        """Take what is free, of one kind; return whether there is room for more.

        A message that was delivered too often becomes a dead letter once all that lies before it
        in its unit is settled, and before anything behind it is delivered.

        Args:
            retries: whether units are wanted whose first message was delivered before, or the
                others.
        """
        for _ in range(BATCH_MAX):
            exhausted = await self._decide(partial(self._take, retries=retries))
            if exhausted is None:
                return self._taken.allowance.room > 0
            await bury(self._taken, exhausted)
            if not self.is_current:
                return False
        # Others get a turn before more of them are dead letters.
        self._taken.has_more = True
        return False

    async def _decide(self, decide: Callable[[LockUnits, _Places], _T]) -> _T | None:
        """Return the decision, made once all that it needs was read; None for a deleted queue."""
        known: _Places = {}
        while True:
            units = await self.units()
            if not self.is_current:
                return None
            try:
                return decide(units, known)
            except ColdPlacesError as cold:
                offsets = [offset for _, offset in cold.places]
                known |= await read_or_wait(self._read_places, offsets)

    def _repeat(self, units: LockUnits, known: _Places) -> None:
        taken, progress = self._taken, self.progress
        now_ms, offsets = taken.core.clock.now_ms(), taken.offsets_of(progress)
        found = units.repeated(now_ms, (taken.demand.client_id, taken.demand.attempt_id))
        for index, entry in enumerate(found):
            if entry.offset in offsets or is_exhausted(self._group, entry.delivery_attempt):
                continue  # Another receiver of the attempt is just burying it.
            place = self._place(found[index : index + BATCH_MAX], known)
            if place is None:
                taken.core.progress.acknowledge(progress, entry.offset)
            elif taken.allowance.room and taken.allowance.fitting((place,)):
                name = units.name_of(entry.offset)
                self._add(
                    name, taken.redeliver(self.queue_id, progress, place, now_ms, counts=False)
                )
            else:
                return

    def _take(self, units: LockUnits, known: _Places, *, retries: bool) -> Run | None:
        """Take what is free, up to a message that was delivered too often; return that one."""
        taken, progress, one_of_unit = self._taken, self.progress, self._taken.demand.one_of_unit
        now_ms = taken.core.clock.now_ms()
        in_batch = {units.name_of(offset) for offset in taken.offsets_of(progress)}
        # Units of which nothing more is wanted in this batch.
        ended = set(in_batch) if one_of_unit else set[UnitName]()
        while free := units.free(
            now_ms, taken.offsets_of(progress), ended, taken.allowance.room + 1, retries=retries
        ):
            for index, entry in enumerate(free):
                name = units.name_of(entry.offset)
                if name in ended:
                    continue
                place = self._place(free[index:], known)
                if place is None:
                    # Retention has deleted it: there is nothing left to deliver.
                    taken.core.progress.acknowledge(progress, entry.offset)
                elif not is_exhausted(self._group, progress.next_attempt(entry.offset)):
                    if not taken.allowance.room or not taken.allowance.fitting((place,)):
                        return None
                    self._add(name, taken.redeliver(self.queue_id, progress, place, now_ms))
                    in_batch.add(name)
                    if one_of_unit:
                        ended.add(name)
                elif name in in_batch:
                    ended.add(name)
                else:
                    return taken.redeliver(self.queue_id, progress, place, now_ms)
        return None

    def _add(self, name: UnitName, run: Run) -> None:
        """Make a message of a lock unit part of the batch."""
        (place,) = run.places
        self._unit_of[run.queue_id, place.queue_offset] = name
        self._taken.add(run)

    def _place(self, entries: Sequence[InFlight], known: _Places) -> Place | None:
        """Return where the first of some messages lies; None if it was deleted.

        Where that is unknown its neighbours are looked up with it.

        Raises:
            ColdPlacesError: a disk would have to be waited for.
        """
        first = entries[0].offset
        if first not in known:
            offsets = [entry.offset for entry in entries if entry.offset not in known]
            places = self._read_places(offsets, only_cached=True)
            if places is None:
                raise ColdPlacesError([(self.queue_id, offset) for offset in offsets])
            known |= places
        return known[first]

    def _read_places(self, offsets: Sequence[int], *, only_cached: bool) -> _Places | None:
        store, topic = self._taken.core.store, self._taken.demand.topic
        return read_places(store, topic, self.queue_id, offsets, only_cached=only_cached)


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
