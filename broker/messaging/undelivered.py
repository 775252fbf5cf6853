"""Taken messages that are not handed over: put off, given up, or moved to the dead letters."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final, final

from commitbus.broker.filters.message_filter import MessageFilter
from commitbus.broker.messaging import dead_letters
from commitbus.broker.messaging.context import MessagingContext
from commitbus.broker.messaging.store_reads import Place, read_or_wait, read_record
from commitbus.broker.messaging.taken import Run
from commitbus.broker.metadata.progress import InFlight, Lease, QueueProgress
from commitbus.commitlog.errors import (
    CorruptRecordError,
    MessageRefusedError,
    OffsetOutOfRangeError,
    ReadFailedError,
    StoreError,
)

UNREADABLE_ATTEMPTS_MAX: Final = 16
"""For a message that cannot be read, in a group that tries without end."""

_log: Final = logging.getLogger(__name__)


@final
@dataclass(frozen=True, slots=True)
class Demand:
    """What a receiver asks for."""

    group: str
    topic: str
    wanted: MessageFilter
    batch_size: int
    invisible_ms: int
    client_id: str
    """In a FIFO group together with the attempt, as `receiver_id` writes both."""
    auto_renew: bool
    connection: str
    """The peer's address with its port."""
    one_of_unit: bool = False
    """Whether a FIFO group gets at most one message of a lock unit at a time."""


class Undelivered:
    """The part of a batch that ends, or puts off, what it took and does not hand over."""

    def __init__(self, context: MessagingContext, demand: Demand) -> None:
        self._context, self.demand = context, demand

    def _make_visible(self, run: Run, place: Place, until_ms: int) -> None:
        """Have a message delivered again, which is no other attempt."""
        entry = self._in_flight(run, place)
        if entry is None:
            return
        self._context.progress.change_invisible(
            run.progress,
            entry.offset,
            # Another than it had, even within its millisecond: that ends the automatic renewal.
            pop_time_ms=max(self._context.clock.now_ms(), entry.pop_time_ms + 1),
            invisible_until_ms=until_ms,
            suspend=True,
        )

    def _put_off(self, run: Run, place: Place, error: StoreError) -> None:
        """Leave a message that cannot be read in flight, to be tried again later."""
        _log.error("message unreadable", extra=self._about(run, place, error))
        group = self._context.metadata.group(self.demand.group)
        tries_for_ever = group is not None and group.retry_max_times < 0
        if tries_for_ever and run.delivery_attempt >= UNREADABLE_ATTEMPTS_MAX:
            self._give_up(run, place, error)
        else:
            self._leave_for_retry(run, place)

    def _leave_for_retry(self, run: Run, place: Place) -> None:
        """Keep a message in flight without a client until its invisible time is over."""
        entry = self._in_flight(run, place)
        if entry is not None:
            # Without a client: its receiver could renew it, or repeat the attempt.
            lease = Lease(
                entry.pop_time_ms + 1, entry.invisible_until_ms, client_id="", auto_renew=False
            )
            self._context.progress.redeliver(run.progress, place.queue_offset, lease, counts=False)

    def _give_up(self, run: Run, place: Place, error: StoreError) -> None:
        """End a message that can be neither delivered nor become a dead letter."""
        # Every attempt would fail, and a FIFO group would never go on.
        _log.error("message given up", extra=self._about(run, place, error))
        self._drop(run, place)

    def _about(self, run: Run, place: Place, error: StoreError) -> dict[str, object]:
        return {
            "group": self.demand.group,
            "topic": self.demand.topic,
            "queue_id": run.queue_id,
            "queue_offset": place.queue_offset,
            "reason": str(error),
        }

    async def _bury(self, run: Run) -> None:
        """Move a message that was delivered too often to the dead letter queue."""
        async with self._context.letter_places:
            await self._bury_now(run)

    async def _bury_now(self, run: Run) -> None:
        (place,) = run.places
        try:
            record = await read_or_wait(read_record, self._context.store, place)
        except OffsetOutOfRangeError:
            self._drop(run, place)
            return
        except (CorruptRecordError, ReadFailedError) as error:
            self._give_up(run, place, error)
            return
        try:
            await dead_letters.prepare(self._context, self.demand.group)
            if self._in_flight(run, place) is None:
                return  # Settled while a disk was waited for.
            # The present attempt is the one that there is not any more.
            attempt = run.delivery_attempt - 1
            await dead_letters.bury(self._context, self.demand.group, record, attempt)
        except MessageRefusedError as error:
            # Every attempt would fail, so the message is dropped.
            _log.exception("dead letter refused", extra=self._about(run, place, error))
        except StoreError as error:
            # It stays in flight, and is tried again when it becomes visible.
            _log.exception("dead letter not stored", extra=self._about(run, place, error))
            self._leave_for_retry(run, place)
            return
        self._drop(run, place)

    def _drop(self, run: Run, place: Place) -> None:
        if self._in_flight(run, place) is not None:
            self._context.progress.acknowledge(run.progress, place.queue_offset)

    def _in_flight(self, run: Run, place: Place) -> InFlight | None:
        """Return what became of a message that was taken; None if it is no longer ours.

        An operator may have reset or deleted the group meanwhile, or the client acknowledged.
        """
        if not self._is_current(run.queue_id, run.progress):
            return None
        entry = run.progress.in_flight.get(place.queue_offset)
        return entry if entry is not None and entry.pop_time_ms == run.pop_time_ms else None

    def _key(self, queue_id: int) -> tuple[str, str, int]:
        return self.demand.group, self.demand.topic, queue_id

    def _is_current(self, queue_id: int, progress: QueueProgress) -> bool:
        """Return whether it was not deleted while a disk was waited for."""
        return self._context.progress.get(*self._key(queue_id)) is progress
