"""The order of a FIFO group: each lock unit in order, and nothing of it while a part is out.

Where a batch is locked: `LockUnits` (`broker.progress.fifo_lock`) is an index of what is in flight.
A unit is the whole queue, as in RocketMQ, or a message group where the group is set so. It is
locked while any message of it is in flight and invisible. So the deliveries that `Taken` writes
are the lock, and acknowledgements and expiries are the unlock; there is no other state. Here each
queue is asked what is free (`LockedQueue`), and only that is taken.

Where message groups are locked, what belongs to a locked one is stepped over and kept back, in
flight but not delivered yet, so that its neighbours pass.
"""

from __future__ import annotations

import logging
from typing import Final, final

from commitbus.broker.consuming.store_reads import Place
from commitbus.broker.metadata.groups import GroupConfig, LockUnit
from commitbus.broker.progress.fifo_lock import UnitName, lock_units
from commitbus.broker.progress.queue_progress import QueueProgress
from commitbus.broker.receiving.allowance import BATCH_MAX
from commitbus.broker.receiving.locked_queue import LockedQueue
from commitbus.broker.receiving.new_messages import NewMessages
from commitbus.broker.receiving.taken import Run, Taken
from commitbus.commitlog.errors import StoreError

_log: Final = logging.getLogger(__name__)


@final
class Fifo:
    """Takes messages in the order of their lock units: an `Order`."""

    __slots__ = ("_held_up", "_new", "_retries_begin", "_taken", "_unit_of")

    def __init__(self, taken: Taken) -> None:
        self._taken, self._new = taken, NewMessages(taken)
        self._unit_of: dict[tuple[int, int], UnitName] = {}
        """By queue id and queue offset: the lock units of what was taken."""
        self._retries_begin: dict[int, bool] = {}
        """By queue id: whether retries come before what is new."""
        self._held_up: set[tuple[int, UnitName]] = set()
        """Queue id and lock unit of unreadable messages: no later one of them may be delivered."""

    async def take(self, queue_count: int, group: GroupConfig, until_s: float) -> None:
        """Take what the same attempt took before; if there is nothing, what is free, then new.

        A client that repeats an attempt did not get the answer.
        """
        taken = self._taken
        turns = taken.core.turns_of(taken.demand.group, taken.demand.topic)
        queues = turns.queues_for_retries(queue_count)
        if taken.demand.attempt_id:
            for queue_id in queues:
                progress = taken.get(queue_id)
                if progress is not None:
                    await self._locked(queue_id, progress, group).repeat()
            taken.has_more = bool(taken.runs)
        if taken.allowance.room and not taken.has_more:
            await self._new.take_from(turns.queues_for_new(queue_count), self._step, until_s)

    def _locked(self, queue_id: int, progress: QueueProgress, group: GroupConfig) -> LockedQueue:
        return LockedQueue(self._taken, queue_id, progress, group, self._unit_of)

    async def _step(self, queue_id: int) -> bool:
        """Take what is in flight and free, then what is new; return whether there may be more."""
        progress = self._taken.progress(queue_id)
        _, group = self._taken.check()
        queue = self._locked(queue_id, progress, group)
        if group.lock_unit is LockUnit.QUEUE:
            return await self._step_in_queue(queue)
        return await self._step_in_groups(queue)

    # The queue is one lock unit

    async def _step_in_queue(self, queue: LockedQueue) -> bool:
        taken, progress = self._taken, queue.progress
        for retries in (True, False) if progress.in_flight else ():
            if not await queue.take_free(retries=retries):
                return False
        offsets, one_of_unit = taken.offsets_of(progress), taken.demand.one_of_unit
        if not progress.in_flight.keys() <= offsets or (offsets and one_of_unit):
            # What is out comes before everything new.
            return False
        return await self._new.take(queue.queue_id, 1 if one_of_unit else BATCH_MAX)

    # Its message groups are the lock units

    async def _step_in_groups(self, queue: LockedQueue) -> bool:
        """Take retries and what is new, first the kind whose turn it is in this queue.

        Order is owed inside a message group only, and groups that fail again and again must not
        keep their neighbours from being delivered at all.
        """
        retries_begin = self._retries_begin.get(queue.queue_id)
        if retries_begin is None:
            retries_begin = await self._is_turn_of_retries(queue)
            self._retries_begin[queue.queue_id] = retries_begin
        if retries_begin and not await queue.take_free(retries=True):
            return False
        if not await queue.take_free(retries=False):
            return False
        may_be_more = await self._step_over(queue)
        if retries_begin or not self._taken.allowance.room or not queue.is_current:
            return may_be_more
        has_room = await queue.take_free(retries=True)
        return may_be_more and has_room

    async def _is_turn_of_retries(self, queue: LockedQueue) -> bool:
        units = await queue.units()
        demand, core = self._taken.demand, self._taken.core
        now_ms, queue_id = core.clock.now_ms(), queue.queue_id
        if not units.has_free(now_ms, retries=True):
            return False
        if not units.has_free(now_ms, retries=False) and not self._new.may_be_in(
            queue_id, queue.progress
        ):
            return True
        turns = core.turns_of(demand.group, demand.topic).of_queue(queue_id)
        return turns.retries_begin(core.config.retry_percent)

    async def _step_over(self, queue: LockedQueue) -> bool:
        """Keep back what is new, and take of it what is free."""
        queue_id, progress = queue.queue_id, queue.progress
        start, room = progress.next_offset, self._in_flight_room(queue_id, progress)
        found = await self._new.find(queue_id, progress, BATCH_MAX, in_flight_room=room)
        if found is None:
            return False
        if not self._taken.is_at(start, queue_id, progress):
            return True
        offsets = [place.queue_offset for place in found.places]
        self._taken.core.progress.hold(progress, offsets, next_offset=found.next_offset)
        has_room = await queue.take_free(retries=False)
        return has_room and self._new.may_be_in(queue_id, progress)

    def _in_flight_room(self, queue_id: int, progress: QueueProgress) -> int:
        """Return how many messages more may be in flight, or be held back."""
        core, units = self._taken.core, progress.lock_units
        room = core.progress.in_flight_max - progress.in_flight_count
        if units is None or units.whole_queue:
            return room
        # What is held back has a limit of its own: it is not the consumers who let it wait.
        limit, held_back = core.config.held_back_max, units.held_back
        if units.is_newly_full(limit):
            group, topic, _ = self._taken.key(queue_id)
            about = {"group": group, "topic": topic, "queue_id": queue_id}
            _log.warning("message groups held back up to the limit", extra=about)
        return min(room + held_back, limit - held_back)

    def limit_met(self) -> str:
        """Return that locked message groups of a queue hold back as much as they may."""
        core = self._taken.core
        topic = core.metadata.topic(self._taken.demand.topic)
        for queue_id in range(topic.read_queue_nums if topic else 0):
            progress = self._taken.get(queue_id)
            units = progress.lock_units if progress is not None else None
            if units is None or units.whole_queue:
                continue
            if units.held_back >= core.config.held_back_max:
                return (
                    f"{units.held_back} messages of locked message groups are held back in queue "
                    f"{queue_id}, and nothing behind them is looked at"
                )
        return ""

    def next_visible_ms(self, progress: QueueProgress) -> int | None:
        """Return when the next lock unit may become free; None when nothing is out."""
        # What is visible already waits for something else of its unit: that is what counts.
        group = self._taken.core.metadata.group(self._taken.demand.group)
        unit = group.lock_unit if group is not None else LockUnit.QUEUE
        return lock_units(progress, unit).next_free_ms(self._taken.core.clock.now_ms())

    # What cannot be read

    def holds_up(self, run: Run, place: Place) -> bool:
        """Return whether an earlier message of the same lock unit cannot be read."""
        return self._lock_unit(run, place) in self._held_up

    def note_unreadable(self, run: Run, place: Place, _error: StoreError) -> None:
        """Hold up what comes behind an unreadable message in its lock unit."""
        self._held_up.add(self._lock_unit(run, place))
        units, offset = run.progress.lock_units, place.queue_offset
        if units is not None and units.name_of(offset) == offset:
            # If it can be read the next time, its message group can.
            units.forget(offset)

    def _lock_unit(self, run: Run, place: Place) -> tuple[int, UnitName]:
        # What was new in a queue that is one unit was taken without a look at units.
        return run.queue_id, self._unit_of.get((run.queue_id, place.queue_offset))
