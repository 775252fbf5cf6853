"""The order of a group that is not FIFO: retries and new messages take turns, and so do queues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from commitbus.broker.consuming.store_reads import Place, read_or_wait, read_places
from commitbus.broker.metadata.groups import GroupConfig
from commitbus.broker.progress.queue_progress import QueueProgress
from commitbus.broker.receiving.new_messages import NewMessages
from commitbus.broker.receiving.taken import Run, Taken, is_exhausted
from commitbus.broker.receiving.undelivered import bury
from commitbus.commitlog.errors import StoreError


@final
class Unordered:
    """Takes messages in any order: an `Order`."""

    __slots__ = ("_new", "_taken")

    def __init__(self, taken: Taken) -> None:
        self._taken, self._new = taken, NewMessages(taken)

    async def take(self, queue_count: int, group: GroupConfig, until_s: float) -> None:
        """Take retries and new messages: first the kind whose turn it is, then the other one."""
        taken, core = self._taken, self._taken.core
        has_retries = self._has_retries(queue_count)
        turns = core.turns_of(taken.demand.group, taken.demand.topic)
        retries_begin = has_retries and (
            not self._has_new(queue_count) or turns.retries_begin(core.config.retry_percent)
        )
        if retries_begin:
            await self._take_retries(turns.queues_for_retries(queue_count), group)
        if taken.allowance.room:
            # Where retries wait, nothing new is searched for beyond the least: a filter may let
            # nothing pass for a long time.
            search_until_s = until_s if retries_begin or not has_retries else 0.0
            await self._new.take_from(
                turns.queues_for_new(queue_count), self._new.take, search_until_s
            )
        if has_retries and not retries_begin and taken.allowance.room:
            await self._take_retries(turns.queues_for_retries(queue_count), group)

    def _has_retries(self, queue_count: int) -> bool:
        """Return whether anything is visible again; begins the group's progress in each queue."""
        core, demand, found = self._taken.core, self._taken.demand, False
        now_ms, get = core.clock.now_ms(), core.progress.get
        for queue_id in range(queue_count):
            progress = get(demand.group, demand.topic, queue_id) or self._taken.progress(queue_id)
            # The first is much quicker, the second right.
            if progress.may_have_expired(now_ms) and not found:
                next_ms = progress.next_expiry_ms
                found = next_ms is not None and next_ms <= now_ms
        return found

    def _has_new(self, queue_count: int) -> bool:
        taken, may_be_in = self._taken, self._new.may_be_in
        return any(may_be_in(queue, taken.progress(queue)) for queue in range(queue_count))

    async def _take_retries(self, queues: Sequence[int], group: GroupConfig) -> None:
        """Take what was delivered before and is visible again, of every queue."""
        now_ms = self._taken.core.clock.now_ms()
        for queue_id in queues:
            progress = self._taken.progress(queue_id)
            if progress.may_have_expired(now_ms) and self._taken.allowance.room:
                await self._take_expired(queue_id, progress, group)

    async def _take_expired(
        self, queue_id: int, progress: QueueProgress, group: GroupConfig
    ) -> None:
        taken, core = self._taken, self._taken.core
        entries = progress.expired(core.clock.now_ms(), taken.allowance.room)
        offsets = [entry.offset for entry in entries]
        places = await read_or_wait(read_places, core.store, taken.demand.topic, queue_id, offsets)
        if not taken.is_current(queue_id, progress):
            return
        now_ms, exhausted = core.clock.now_ms(), list[Run]()
        for entry in entries:
            if (
                progress.in_flight.get(entry.offset) is not entry
                or entry.invisible_until_ms > now_ms
            ):
                continue  # Another receiver was quicker while a disk was waited for.
            place = places[entry.offset]
            if place is None:
                # Retention has deleted it: there is nothing left to deliver.
                core.progress.acknowledge(progress, entry.offset)
                continue
            if not taken.allowance.fitting((place,)):
                break
            run = taken.redeliver(queue_id, progress, place, now_ms)
            if is_exhausted(group, run.delivery_attempt):
                exhausted.append(run)
            else:
                taken.add(run)
        for run in exhausted:
            await bury(taken, run)

    def next_visible_ms(self, progress: QueueProgress) -> int | None:
        """Return when the next message in flight is visible again; None without one."""
        return progress.next_expiry_ms

    def limit_met(self) -> str:
        """Return an empty text: it has no limits of its own."""
        return ""

    def holds_up(self, _run: Run, _place: Place) -> bool:
        """Return False: an unreadable message keeps no other from being delivered."""
        return False

    def note_unreadable(self, _run: Run, _place: Place, _error: StoreError) -> None:
        """Do nothing about a message that cannot be read."""
