"""Taking messages for a consumer: what became visible again first, then what is new.

Each step that takes something is done and journaled before the trio thread does anything else, so
two receivers never take the same message. Only reading bodies that are likely not in memory any
more happens on another thread; by then the messages are taken.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, final

import trio

from commitbus.broker.messaging import dead_letters, renewals
from commitbus.broker.messaging.context import MessagingContext
from commitbus.broker.messaging.errors import TooManyRequestsError
from commitbus.broker.messaging.filters import TagFilter
from commitbus.broker.messaging.message_codec import to_delivered
from commitbus.broker.messaging.properties import TAGS
from commitbus.broker.messaging.receipt_handle import ReceiptHandle
from commitbus.broker.metadata.errors import StateWriteError
from commitbus.broker.metadata.groups import GroupConfig
from commitbus.broker.metadata.progress import InFlight, QueueProgress
from commitbus.broker.metadata.topics import TopicConfig
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from commitbus.broker.store.message_store import MessageStore
from commitbus.broker.store.store_reader import FetchedUnit
from commitbus.commitlog.errors import CorruptRecordError, OffsetOutOfRangeError, StoreError
from commitbus.commitlog.record_format import decode_record
from commitbus.commitlog.types import QueueOffset, Record

BATCH_BYTES_MAX: Final = 32 * 1024 * 1024
"""Of one answer, so that 32 bodies of 4 MiB do not stand in memory at once."""
PROGRESS_MAX: Final = 1_000_000
"""Queues of groups, 700 bytes each: any client may begin one by naming a group."""
DELIVERING_BYTES_MAX: Final = 256 * 1024 * 1024
"""Of all answers on their way, one batch more at most: slow readers must not fill the memory."""
HOT_BYTES: Final = 64 * 1024 * 1024
"""This close to the log's end a record is in the page cache, and reading it never waits."""

_log: Final = logging.getLogger(__name__)


@final
@dataclass(frozen=True, slots=True)
class Demand:
    """What a receiver asks for."""

    group: str
    topic: str
    tags: TagFilter
    batch_size: int
    invisible_ms: int
    client_id: str
    auto_renew: bool


@final
class _Taken(NamedTuple):
    """A message that was put in flight for this batch."""

    progress: QueueProgress
    queue_id: int
    unit: FetchedUnit
    pop_time_ms: int
    delivery_attempt: int


@final
class Batch:
    """The messages that one receive call hands over."""

    def __init__(self, context: MessagingContext, demand: Demand) -> None:
        self._context, self.demand = context, demand
        self.messages: list[pb.ReceiveMessageResponse] = []
        """Each in the response that carries it."""
        self.has_more = False
        """Whether taking stopped at a limit, so that there may be more."""
        self._too_long = False
        self._taken: list[_Taken] = []
        self._bytes = 0

    async def fill(self) -> None:
        """Take what is there now; `messages` stays empty if nothing is.

        Raises:
            RequestError: the topic or the group is gone, or is not to be received from or for.
            StoreError: the store failed.
        """
        assert not self.messages
        # What the last fill took was dropped, all of it: it is no part of this batch.
        self.finish()
        topic, group = self._check()
        if self._context.delivering_bytes >= DELIVERING_BYTES_MAX:
            raise TooManyRequestsError("too many bytes wait for consumers that read slowly")
        now_ms = self._context.clock.now_ms()
        queues = self._queues(topic)
        for queue_id in queues:
            progress = self._progress(queue_id)
            if progress.may_have_expired(now_ms) and self._room:
                await self._take_expired(queue_id, progress, group, now_ms)
        for queue_id in queues:
            if not self._room:
                break
            await self._take_new(queue_id, now_ms)
        self.has_more = self._room == 0
        if self._taken:
            await self._read()

    def finish(self) -> None:
        """Forget what was taken, because it was handed over, released or dropped."""
        self._context.delivering_bytes -= self._bytes
        self._taken.clear()
        self._bytes, self._too_long = 0, False

    def release(self) -> None:
        """Make what was taken visible again after a second: the client did not get it."""
        until_ms = self._context.clock.now_ms() + renewals.RELEASED_INVISIBLE_MS
        try:
            for taken in self._taken:
                self._release(taken, until_ms)
        except StateWriteError as error:
            # It becomes visible later then, at the end of its invisible time.
            _log.warning("release not saved", extra={"reason": str(error)})
        if self._taken:
            self._note_expiry(until_ms)
        self._taken.clear()
        self.messages.clear()

    def _release(self, taken: _Taken, until_ms: int) -> None:
        entry = self._in_flight(taken)
        if entry is None:
            return
        self._context.progress.change_invisible(
            taken.progress,
            entry.offset,
            # Another than it had, even within its millisecond: that ends the automatic renewal.
            pop_time_ms=max(self._context.clock.now_ms(), entry.pop_time_ms + 1),
            invisible_until_ms=until_ms,
            suspend=False,
        )

    def note_next_expiry(self) -> None:
        """Have one of those who wait woken when the first message in flight is visible again."""
        table, demand = self._context.progress, self.demand
        topic = self._context.metadata.topic(demand.topic)
        expiries = [
            at_ms
            for queue_id in range(topic.read_queue_nums if topic else 0)
            if (progress := table.get(demand.group, demand.topic, queue_id)) is not None
            and (at_ms := progress.next_expiry_ms) is not None
        ]
        if expiries:
            self._note_expiry(min(expiries))

    def _check(self) -> tuple[TopicConfig, GroupConfig]:
        """Look up topic and group anew: an operator may have changed them meanwhile."""
        context = self._context
        topic = context.readable_topic(self.demand.topic)
        return topic, context.consuming_group(self.demand.group)

    def _queues(self, topic: TopicConfig) -> list[int]:
        """Return every readable queue once, beginning one further than the last time."""
        count = topic.read_queue_nums
        key = self.demand.group, self.demand.topic
        first = self._context.first_queue.get(key, 0) % count
        self._context.first_queue[key] = first + 1
        return [*range(first, count), *range(first)]

    def _progress(self, queue_id: int) -> QueueProgress:
        """Return the group's progress in a queue, at its beginning for a new group."""
        table, topic = self._context.progress, self.demand.topic
        progress = table.get(self.demand.group, topic, queue_id)
        if progress is None:
            # Of a topic or group that was deleted a moment ago no progress may be left behind.
            self._check()
            if len(table) >= PROGRESS_MAX:
                raise TooManyRequestsError(f"{len(table)} queues of groups are kept track of")
            store = self._context.store
            first = store.min_offset(topic, queue_id)
            # RocketMQ lets a new group see a young queue in full, and only the last message of one
            # whose beginning is gone already. One of a topic that was deleted and made anew goes on
            # counting, so a first offset above 0 alone does not say that anything is gone.
            is_whole = first == 0 or store.min_physical_offset == 0
            last = max(first, QueueOffset(store.max_offset(topic, queue_id) - 1))
            progress = table.create(self.demand.group, topic, queue_id, first if is_whole else last)
        return progress

    async def _take_expired(
        self, queue_id: int, progress: QueueProgress, group: GroupConfig, now_ms: int
    ) -> None:
        """Take what was delivered before and is visible again."""
        attempts_max = group.retry_max_times + 1
        exhausted: list[_Taken] = []
        for entry in progress.expired(now_ms, self._room):
            unit = self._unit(queue_id, QueueOffset(entry.offset))
            if unit is None:
                # Retention has deleted it: there is nothing left to deliver.
                self._context.progress.acknowledge(progress, entry.offset)
                continue
            if not self._fits(unit):
                break
            attempt = self._context.progress.redeliver(
                progress,
                entry.offset,
                pop_time_ms=now_ms,
                invisible_until_ms=now_ms + self.demand.invisible_ms,
                client_id=self.demand.client_id,
                auto_renew=self.demand.auto_renew,
            )
            taken = _Taken(progress, queue_id, unit, now_ms, attempt)
            # -1 tries without end.
            if 0 < attempts_max < attempt:
                exhausted.append(taken)
            else:
                self._count(unit)
                self._taken.append(taken)
        for taken in exhausted:
            await self._bury(taken)

    async def _take_new(self, queue_id: int, now_ms: int) -> None:
        """Take what this group has not seen yet."""
        store, topic = self._context.store, self.demand.topic
        while self._room:
            progress = self._progress(queue_id)
            # A consumer that never acknowledges gets no further.
            in_flight_max = self._context.progress.in_flight_max
            allowed = min(self._room, in_flight_max - progress.in_flight_count)
            if allowed <= 0 or progress.next_offset >= store.max_offset(topic, queue_id):
                return
            start = QueueOffset(progress.next_offset)
            found = store.fetch(topic, queue_id, start, allowed, self.demand.tags.tags_codes)
            next_offset = found.next_offset
            if next_offset <= progress.next_offset:
                # The topic was deleted between the two looks at its queue.
                return
            units: list[FetchedUnit] = []
            for unit in found.units:
                if not self._fits(unit):
                    next_offset = unit.queue_offset
                    break
                self._count(unit)
                units.append(unit)
            self._context.progress.deliver(
                progress,
                [unit.queue_offset for unit in units],
                next_offset=next_offset,
                pop_time_ms=now_ms,
                invisible_until_ms=now_ms + self.demand.invisible_ms,
                client_id=self.demand.client_id,
                auto_renew=self.demand.auto_renew,
            )
            self._taken += [_Taken(progress, queue_id, unit, now_ms, 1) for unit in units]
            if not units:
                # A filter may step over millions: others get a turn between two scans.
                await trio.lowlevel.checkpoint()

    async def _read(self) -> None:
        """Make messages of what was taken; what the filter's hash let in wrongly is dropped."""
        store = self._context.store
        units = [taken.unit for taken in self._taken]
        if store.end_offset - min([unit.physical_offset for unit in units]) <= HOT_BYTES:
            records = _read_all(store, units)
        else:
            records = await trio.to_thread.run_sync(_read_all, store, units)
        body_bytes = 0
        for taken, record in zip(self._taken, records, strict=True):
            if isinstance(record, OffsetOutOfRangeError):
                self._drop(taken)
            elif isinstance(record, StoreError):
                # It stays in flight, so that the group's lag shows what could not be delivered.
                _log.error("message unreadable", extra={"reason": str(record)})
            elif not self.demand.tags.matches(record.properties.get(TAGS)):
                self._drop(taken)
            else:
                self.messages.append(self._message(taken, record))
                body_bytes += len(record.body)
        self._context.counters.count_received(
            self.demand.group, self.demand.topic, len(self.messages), body_bytes
        )

    def _message(self, taken: _Taken, record: Record) -> pb.ReceiveMessageResponse:
        handle = ReceiptHandle(
            pop_time_ms=taken.pop_time_ms,
            invisible_ms=self.demand.invisible_ms,
            broker_name=self._context.config.broker_name,
            queue_id=taken.queue_id,
            queue_offset=taken.unit.queue_offset,
            physical_offset=taken.unit.physical_offset,
        )
        return to_delivered(
            record, receipt_handle=handle.encode(), delivery_attempt=taken.delivery_attempt
        )

    async def _bury(self, taken: _Taken) -> None:
        """Move a message that was delivered too often to the dead letter queue."""
        try:
            record = self._context.store.read(taken.unit.physical_offset)
            await dead_letters.bury(self._context, self.demand.group, record)
        except StoreError as error:
            # It stays in flight, and is tried again when it becomes visible.
            _log.exception("dead letter not stored", extra={"reason": str(error)})
            return
        self._drop(taken)

    def _drop(self, taken: _Taken) -> None:
        if self._in_flight(taken) is not None:
            self._context.progress.acknowledge(taken.progress, taken.unit.queue_offset)

    def _in_flight(self, taken: _Taken) -> InFlight | None:
        """Return what became of a message that was taken; None if it is no longer ours.

        An operator may have reset or deleted the group meanwhile, or the client acknowledged.
        """
        key = self.demand.group, self.demand.topic, taken.queue_id
        if self._context.progress.get(*key) is not taken.progress:
            return None
        entry = taken.progress.in_flight.get(taken.unit.queue_offset)
        return entry if entry is not None and entry.pop_time_ms == taken.pop_time_ms else None

    @property
    def _room(self) -> int:
        """How many messages more may be taken."""
        return 0 if self._too_long else self.demand.batch_size - len(self._taken)

    def _count(self, unit: FetchedUnit) -> None:
        self._bytes += unit.size_bytes
        self._context.delivering_bytes += unit.size_bytes

    def _fits(self, unit: FetchedUnit) -> bool:
        """Return whether a message may still be taken; one always may."""
        if self._bytes and self._bytes + unit.size_bytes > BATCH_BYTES_MAX:
            self._too_long = True
        return not self._too_long

    def _unit(self, queue_id: int, queue_offset: QueueOffset) -> FetchedUnit | None:
        """Return where a message in flight lies; None if it was deleted."""
        found = self._context.store.fetch(self.demand.topic, queue_id, queue_offset, 1)
        # Below its first stored message a queue answers with that one.
        return next((unit for unit in found.units if unit.queue_offset == queue_offset), None)

    def _note_expiry(self, at_ms: int) -> None:
        self._context.polls.note_expiry(self.demand.group, self.demand.topic, at_ms)


def _read_all(store: MessageStore, units: Sequence[FetchedUnit]) -> list[Record | StoreError]:
    """Return the record of each unit, or why it cannot be read. Runs on any thread."""
    start = min([unit.physical_offset for unit in units])
    end = max([unit.physical_offset + unit.size_bytes for unit in units])
    try:
        # Nearly always they lie in one file, which then is looked up and pinned only once.
        with store.pin(start, end - start) as view:
            return [_decode(view[unit.physical_offset - start :], unit) for unit in units]
    except OffsetOutOfRangeError:
        return [_read(store, unit) for unit in units]


def _decode(view: memoryview, unit: FetchedUnit) -> Record | StoreError:
    try:
        return decode_record(view, unit.physical_offset)
    except CorruptRecordError as error:
        return error


def _read(store: MessageStore, unit: FetchedUnit) -> Record | StoreError:
    try:
        return store.read(unit.physical_offset)
    except (CorruptRecordError, OffsetOutOfRangeError) as error:
        return error
