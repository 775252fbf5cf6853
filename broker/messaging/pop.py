"""Taking messages for a consumer: what became visible again, and what is new.

Each step that takes something is done and journaled before the trio thread does anything else, so
two receivers never take the same message. Reads that wait for a disk run on another thread. The
messages' places are read before anything is taken, and the queue is then looked at again, because
another receiver may have been quicker; the records are read afterwards.

A message that cannot be read is taken like any other, but without a receiver: it is tried again
when its invisible time is over, and given up after the last attempt.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import trio

from commitbus.broker.messaging import renewals
from commitbus.broker.messaging.client_groups import beginning_of
from commitbus.broker.messaging.context import MessagingContext
from commitbus.broker.messaging.delivering import Recipient
from commitbus.broker.messaging.errors import TooManyRequestsError
from commitbus.broker.messaging.in_flight_cap import explanation
from commitbus.broker.messaging.scan import Found, Scan
from commitbus.broker.messaging.store_reads import Place, read_or_wait, read_places
from commitbus.broker.messaging.taken import Handles, Run, encode_taken
from commitbus.broker.messaging.undelivered import Demand, Undelivered
from commitbus.broker.metadata.errors import StateWriteError
from commitbus.broker.metadata.fifo_lock import client_of
from commitbus.broker.metadata.groups import GroupConfig
from commitbus.broker.metadata.progress import Lease, QueueProgress
from commitbus.broker.metadata.topics import TopicConfig
from commitbus.commitlog.errors import OffsetOutOfRangeError, StoreClosedError
from commitbus.commitlog.types import QueueOffset

BATCH_MAX: Final = 32
"""Messages of one answer."""
BATCH_BYTES_MAX: Final = 32 * 1024 * 1024
"""Of one answer, so that 32 bodies of 4 MiB do not stand in memory at once."""
PROGRESS_MAX: Final = 1_000_000
"""Queues of groups, 700 bytes each: any client may begin one by naming a group."""
TOO_SLOW: Final = "too many bytes are on their way to this client or its group: read faster"

_log: Final = logging.getLogger(__name__)


class Batch(Undelivered):
    """The messages that one receive call hands over."""

    is_fifo = False

    def __init__(self, context: MessagingContext, demand: Demand) -> None:
        super().__init__(context, demand)
        self._to = Recipient(demand.group, client_of(demand.client_id), demand.connection)
        self.messages: list[bytes] = []
        """Each in the response that carries it, encoded."""
        self.has_more = False
        """Whether taking stopped at a limit, so that there may be more."""
        self._taken: list[Run] = []
        self._count = self._bytes = 0
        """Of the messages that were taken."""
        self._too_long = False
        self._lacks_bytes = False
        """Whether taking stopped because too many bytes are on their way."""

    async def fill(self, until_s: float) -> None:
        """Take what is there now; `messages` stays empty if nothing is.

        Args:
            until_s: On the scale of `trio.current_time()`: no longer is looked for what is wanted
                among what is not. At least a little is.

        Raises:
            RequestError: the topic or the group is gone, or is not to be received from or for.
            StoreError: the store failed.
        """
        assert not self.messages
        self.has_more = False
        # What the last fill took was dropped, all of it: it is no part of this batch.
        self.finish()
        topic, group = self._check()
        delivering = self._context.delivering
        if delivering.free_bytes(self._to) <= 0 and not delivering.may_take_one(self._to):
            raise TooManyRequestsError(TOO_SLOW)
        await self._take_in_turn(topic.read_queue_nums, group, until_s)
        if self._lacks_bytes and not self._taken:
            raise TooManyRequestsError(TOO_SLOW)
        self.has_more = self.has_more or self._room == 0
        if self._taken:
            await self._read()

    async def _take_in_turn(self, count: int, group: GroupConfig, until_s: float) -> None:
        """Take retries and new messages: first the kind whose turn it is, then the other one.

        In a FIFO group that is decided in each queue: retries that lock it lie before all new ones.
        """
        has_retries = self.is_fifo or self._has_retries(count)
        turns = self._context.turns_of(self.demand.group, self.demand.topic)
        retries_begin = has_retries and (
            self.is_fifo
            or not self._has_any_new(count)
            or turns.retries_begin(self._context.config.retry_percent)
        )
        if retries_begin:
            await self._take_again(turns.queues_for_retries(count), group)
        if self._room and not self.has_more:
            # Where retries wait, nothing new is searched for beyond the least: a filter may let
            # nothing pass for a long time.
            search_until_s = until_s if retries_begin or not has_retries else 0.0
            await self._take_any_new(turns.queues_for_new(count), search_until_s)
        if has_retries and not retries_begin and self._room:
            await self._take_again(turns.queues_for_retries(count), group)

    def _has_retries(self, count: int) -> bool:
        """Return whether anything is visible again; begins the group's progress in each queue."""
        now_ms, found = self._context.clock.now_ms(), False
        group, topic, get = self.demand.group, self.demand.topic, self._context.progress.get
        for queue_id in range(count):
            progress = get(group, topic, queue_id)
            if progress is None:
                progress = self._progress(queue_id)
            # The first is much quicker, the second right.
            if progress.may_have_expired(now_ms) and not found:
                next_ms = progress.next_expiry_ms
                found = next_ms is not None and next_ms <= now_ms
        return found

    def _has_any_new(self, count: int) -> bool:
        return any(self._has_new(queue_id, self._progress(queue_id)) for queue_id in range(count))

    async def _take_any_new(self, queues: Sequence[int], until_s: float) -> None:
        for queue_id in queues:
            if not self._room or self.has_more:
                break
            if self._key(queue_id) not in self._context.scanning:
                await self._take_new(queue_id, until_s)

    def finish(self) -> None:
        """Forget what was taken, because it was handed over, released or dropped."""
        if self._bytes:
            self._context.delivering.give_back(self._to, self._bytes)
        self._taken.clear()
        self._count, self._bytes = 0, 0
        self._too_long = self._lacks_bytes = False

    def release(self) -> None:
        """Make what was taken visible again after a second: the client did not get all of it.

        It was no attempt: a client that never reads to the end would use up all of them.
        """
        self._release(self._taken)
        self._taken.clear()
        self.messages.clear()

    def when_unfinished(self) -> Callable[[], None]:
        """Return a function that does so once what was handed over turns out not to have left."""
        self.messages.clear()
        return partial(self._release, list(self._taken))

    def _release(self, runs: Sequence[Run]) -> None:
        until_ms = self._context.clock.now_ms() + renewals.RELEASED_INVISIBLE_MS
        try:
            for run in runs:
                for place in run.places:
                    self._make_visible(run, place, until_ms)
        except (StateWriteError, StoreClosedError) as error:
            # It becomes visible later then, at the end of its invisible time.
            _log.warning("release not saved", extra={"reason": str(error)})
        if runs:
            self._note_expiry(until_ms)

    def note_next_expiry(self) -> None:
        """Have one of those who wait woken when the first message in flight is visible again."""
        table, demand = self._context.progress, self.demand
        topic = self._context.metadata.topic(demand.topic)
        expiries = [
            at_ms
            for queue_id in range(topic.read_queue_nums if topic else 0)
            if (progress := table.get(demand.group, demand.topic, queue_id)) is not None
            and (at_ms := self._next_visible_ms(progress)) is not None
        ]
        if expiries:
            self._note_expiry(min(expiries))

    def _next_visible_ms(self, progress: QueueProgress) -> int | None:
        return progress.next_expiry_ms

    def _check(self) -> tuple[TopicConfig, GroupConfig]:
        """Look up topic and group anew: an operator may have changed them meanwhile."""
        context = self._context
        topic = context.readable_topic(self.demand.topic)
        return topic, context.consuming_group(self.demand.group)

    def _progress(self, queue_id: int) -> QueueProgress:
        """Return the group's progress in a queue, at its beginning for a new group."""
        table, topic = self._context.progress, self.demand.topic
        progress = table.get(self.demand.group, topic, queue_id)
        if progress is None:
            # Of a topic or group that was deleted a moment ago no progress may be left behind.
            self._check()
            if len(table) >= PROGRESS_MAX:
                raise TooManyRequestsError(f"{len(table)} queues of groups are kept track of")
            first = beginning_of(self._context.store, topic, queue_id)
            progress = table.create(self.demand.group, topic, queue_id, first)
        return progress

    async def _take_again(self, queues: Sequence[int], group: GroupConfig) -> None:
        """Take what was delivered before and is visible again, of every queue."""
        now_ms = self._context.clock.now_ms()
        for queue_id in queues:
            progress = self._progress(queue_id)
            if progress.may_have_expired(now_ms) and self._room:
                await self._take_expired(queue_id, progress, group)

    async def _take_expired(
        self, queue_id: int, progress: QueueProgress, group: GroupConfig
    ) -> None:
        entries = progress.expired(self._context.clock.now_ms(), self._room)
        places = await read_or_wait(
            self._read_places, queue_id, [entry.offset for entry in entries]
        )
        if not self._is_current(queue_id, progress):
            return
        now_ms, exhausted = self._context.clock.now_ms(), list[Run]()
        for entry in entries:
            if (
                progress.in_flight.get(entry.offset) is not entry
                or entry.invisible_until_ms > now_ms
            ):
                continue  # Another receiver was quicker while a disk was waited for.
            place = places[entry.offset]
            if place is None:
                # Retention has deleted it: there is nothing left to deliver.
                self._context.progress.acknowledge(progress, entry.offset)
                continue
            if not self._fitting((place,)):
                break
            run = self._redeliver(queue_id, progress, place, now_ms)
            if is_exhausted(group, run.delivery_attempt):
                exhausted.append(run)
            else:
                self._take(run)
        for run in exhausted:
            await self._bury(run)

    def _redeliver(
        self,
        queue_id: int,
        progress: QueueProgress,
        place: Place,
        now_ms: int,
        *,
        counts: bool = True,
    ) -> Run:
        """Put a message that is in flight there once more."""
        # Never the time that it had, even within its millisecond or after the wall clock was set
        # back: an older handle would pass for the new one.
        pop_time_ms = max(now_ms, progress.in_flight[place.queue_offset].pop_time_ms + 1)
        attempt = self._context.progress.redeliver(
            progress, place.queue_offset, self._lease(now_ms, pop_time_ms), counts=counts
        )
        return Run(progress, queue_id, pop_time_ms, attempt, (place,))

    def _lease(self, now_ms: int, pop_time_ms: int) -> Lease:
        demand = self.demand
        return Lease(pop_time_ms, now_ms + demand.invisible_ms, demand.client_id, demand.auto_renew)

    async def _take_new(self, queue_id: int, until_s: float) -> None:
        """Take what this group has not seen yet, passing over what is not wanted.

        The group's other receivers leave the queue alone meanwhile: else each of a thousand would
        look through it. So with `has_more` they are told of what was not looked at.
        """
        key, scanning = self._key(queue_id), self._context.scanning
        scanning.add(key)
        try:
            while await self._take_step(queue_id):
                self.has_more = bool(self._taken) or trio.current_time() >= until_s
                if self.has_more:
                    return
                # A filter may step over millions: others get a turn between two steps.
                await trio.lowlevel.checkpoint()
                self._check()
        except BaseException:
            self.has_more = True
            raise
        finally:
            scanning.discard(key)

    async def _take_step(self, queue_id: int) -> bool:
        """Take what is found in one step; return whether another may find more."""
        progress = self._progress(queue_id)
        start = progress.next_offset
        found = await self._find_new(queue_id, progress, self._room_for_new())
        if found is None:
            return False
        if not self._is_at(start, queue_id, progress):
            return True
        now_ms = self._context.clock.now_ms()
        places = self._fitting(found.places)
        is_cut = len(places) < len(found.places)
        self._context.progress.deliver(
            progress,
            [place.queue_offset for place in places],
            self._lease(now_ms, now_ms),
            next_offset=found.places[len(places)].queue_offset if is_cut else found.next_offset,
        )
        if places:
            self._take(Run(progress, queue_id, now_ms, 1, places))
        return self._room > 0 and self._has_new(queue_id, progress)

    async def _find_new(
        self, queue_id: int, progress: QueueProgress, max_count: int
    ) -> Found | None:
        """Return what is found in one step; None if there is nothing that may be taken now."""
        if not self._has_new(queue_id, progress):
            return None
        # A consumer that never acknowledges gets no further.
        allowed = min(max_count, self._in_flight_room(queue_id, progress))
        if allowed <= 0:
            if max_count > 0:
                self._note_cap(queue_id, progress)
            return None
        start = QueueOffset(progress.next_offset)
        scan = Scan(self._context, self.demand.topic, queue_id, self.demand.wanted)
        found = await scan.step(start, allowed)
        # Else the topic was deleted between the two looks at its queue.
        return found if found.next_offset > start else None

    def limit_met(self) -> str:
        """Return which limit keeps the group from new messages, in words; empty if none does."""
        context, demand = self._context, self.demand
        return explanation(
            context.store, context.metadata, context.progress, demand.group, demand.topic
        )

    def _note_cap(self, queue_id: int, progress: QueueProgress) -> None:
        count = progress.delivered_count
        if count >= self._context.progress.in_flight_max:
            self._context.in_flight_cap.reached(*self._key(queue_id), count)

    def _in_flight_room(self, _queue_id: int, progress: QueueProgress) -> int:
        """Return how many messages more may be in flight."""
        return self._context.progress.in_flight_max - progress.in_flight_count

    def _is_at(self, offset: int, queue_id: int, progress: QueueProgress) -> bool:
        """Return whether it was neither reset nor deleted while a disk was waited for."""
        return self._is_current(queue_id, progress) and progress.next_offset == offset

    def _has_new(self, queue_id: int, progress: QueueProgress) -> bool:
        max_offset = self._context.store.max_offset(self.demand.topic, queue_id)
        return progress.next_offset < max_offset

    async def _read(self) -> None:
        """Make messages of what was taken; what the filter's hash let in wrongly is dropped."""
        handles = Handles(self.demand.invisible_ms, self._context.config.broker_name, self.is_fifo)
        outcomes = await read_or_wait(
            encode_taken, self._context.store, self._taken, handles, self.demand.wanted
        )
        body_bytes = 0
        for run, place, found in outcomes:
            if isinstance(found, tuple):
                if self._must_wait(run, place):
                    continue
                response, size_bytes = found
                self.messages.append(response)
                body_bytes += size_bytes
            elif found is None or isinstance(found, OffsetOutOfRangeError):
                self._drop(run, place)
            else:
                self._put_off(run, place, found)
        self._context.counters.count_received(
            self.demand.group, self.demand.topic, len(self.messages), body_bytes
        )

    def _must_wait(self, _run: Run, _place: Place) -> bool:
        """Return whether a message may not be handed over because of one that cannot be read."""
        return False

    @property
    def _room(self) -> int:
        """How many messages more may be taken."""
        return 0 if self._too_long else self.demand.batch_size - self._count

    def _room_for_new(self) -> int:
        """Return how many new messages of the present queue may be taken."""
        return self._room

    def _take(self, run: Run) -> None:
        """Make a run part of the batch."""
        size_bytes = sum([place.size_bytes for place in run.places])
        self._taken.append(run)
        self._count += len(run.places)
        self._bytes += size_bytes
        self._context.delivering.take(self._to, size_bytes)

    def _fitting(self, places: Sequence[Place]) -> Sequence[Place]:
        """Return as many of the first ones as may still be taken.

        One always may, unless too many bytes are on their way to this recipient.
        """
        in_batch, delivering = BATCH_BYTES_MAX - self._bytes, self._context.delivering
        share = delivering.free_bytes(self._to)
        limit, size_bytes = min(in_batch, share), 0
        for count, place in enumerate(places):
            size_bytes += place.size_bytes
            if size_bytes > limit:
                is_first = not self._bytes and not count
                if is_first and (size_bytes <= share or delivering.may_take_one(self._to)):
                    return places[:1]
                self._too_long, self._lacks_bytes = True, is_first or share < in_batch
                return places[:count]
        return places

    def _read_places(
        self, queue_id: int, offsets: Sequence[int], *, only_cached: bool
    ) -> dict[int, Place | None] | None:
        """Return where messages in flight lie; None for one that was deleted."""
        store, topic = self._context.store, self.demand.topic
        return read_places(store, topic, queue_id, offsets, only_cached=only_cached)

    def _note_expiry(self, at_ms: int) -> None:
        self._context.polls.note_expiry(self.demand.group, self.demand.topic, at_ms)


def is_exhausted(group: GroupConfig, attempt: int) -> bool:
    """Return whether this delivery would be one more than the group is given."""
    # -1 tries without end.
    return 0 < group.retry_max_times + 1 < attempt
