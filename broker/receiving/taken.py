"""What one receive call has taken: its messages, the room left, and every write to the progress.

The orders (`unordered`, `fifo`) decide which messages are taken; all of them take through `Taken`.
A message that is taken is in flight, journaled, before the trio thread does anything else, so two
receivers never take the same one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, final

from commitbus.broker.common.errors import TooManyRequestsError
from commitbus.broker.consuming.delivering import Recipient
from commitbus.broker.consuming.state import ConsumingCore, beginning_of
from commitbus.broker.consuming.store_reads import Place
from commitbus.broker.metadata.groups import GroupConfig
from commitbus.broker.metadata.topics import TopicConfig
from commitbus.broker.progress.queue_progress import InFlight, Lease, QueueProgress
from commitbus.broker.receiving.allowance import Allowance
from commitbus.broker.receiving.demand import Demand

PROGRESS_MAX: Final = 1_000_000
"""Queues of groups, 700 bytes each: any client may begin one by naming a group."""


@final
class Run(NamedTuple):
    """Messages of one queue that were put in flight together, for this batch."""

    progress: QueueProgress
    queue_id: int
    pop_time_ms: int
    delivery_attempt: int
    places: Sequence[Place]


@final
class Taken:
    """The messages that one receive call has put in flight."""

    __slots__ = ("allowance", "core", "demand", "has_more", "is_fifo", "runs")

    def __init__(self, core: ConsumingCore, demand: Demand, *, is_fifo: bool) -> None:
        self.core, self.demand, self.is_fifo = core, demand, is_fifo
        self.runs: list[Run] = []
        self.has_more = False
        """Whether taking stopped at a limit, so that there may be more."""
        to = Recipient(demand.group, demand.client_id, demand.connection)
        self.allowance = Allowance(core.delivering, to, demand.batch_size)

    def add(self, run: Run) -> None:
        """Make a run part of the batch."""
        self.runs.append(run)
        self.allowance.take(run.places)

    def offsets_of(self, progress: QueueProgress) -> set[int]:
        """Return the queue offsets that were taken from one queue."""
        runs = [run for run in self.runs if run.progress is progress]
        return {place.queue_offset for run in runs for place in run.places}

    def clear(self) -> None:
        """Forget the messages, because they were handed over, released or dropped."""
        self.allowance.give_back()
        self.runs.clear()

    # Topic, group and queues: others may change them while a disk is waited for

    def check(self) -> tuple[TopicConfig, GroupConfig]:
        """Return topic and group as they are now.

        Raises:
            RequestError: one is gone, or is not to be received from or for.
        """
        topic = self.core.readable_topic(self.demand.topic)
        return topic, self.core.consuming_group(self.demand.group)

    def key(self, queue_id: int) -> tuple[str, str, int]:
        """Return the key of the group's progress in a queue."""
        return self.demand.group, self.demand.topic, queue_id

    def get(self, queue_id: int) -> QueueProgress | None:
        """Return the group's progress in a queue, None where it has not begun."""
        return self.core.progress.get(self.demand.group, self.demand.topic, queue_id)

    def progress(self, queue_id: int) -> QueueProgress:
        """Return the group's progress in a queue, begun now for a new group.

        Raises:
            RequestError: topic or group are gone, or there is no room for one more.
        """
        demand, table = self.demand, self.core.progress
        progress = table.get(demand.group, demand.topic, queue_id)
        if progress is None:
            # A topic or group that was deleted a moment ago must not leave progress behind.
            self.check()
            if len(table) >= PROGRESS_MAX:
                raise TooManyRequestsError(f"{len(table)} queues of groups are kept track of")
            first = beginning_of(self.core.store, demand.topic, queue_id)
            progress = table.create(*self.key(queue_id), first)
        return progress

    def is_current(self, queue_id: int, progress: QueueProgress) -> bool:
        """Return whether a queue's progress was not deleted meanwhile."""
        return self.get(queue_id) is progress

    def is_at(self, offset: int, queue_id: int, progress: QueueProgress) -> bool:
        """Return whether a queue's progress was neither deleted nor moved meanwhile."""
        return self.is_current(queue_id, progress) and progress.next_offset == offset

    # Putting messages in flight

    def deliver(
        self, queue_id: int, progress: QueueProgress, places: Sequence[Place], *, next_offset: int
    ) -> None:
        """Take new messages, and go on behind them at `next_offset`."""
        now_ms = self.core.clock.now_ms()
        offsets, lease = [place.queue_offset for place in places], self._lease(now_ms, now_ms)
        self.core.progress.deliver(progress, offsets, lease, next_offset=next_offset)
        if places:
            self.add(Run(progress, queue_id, now_ms, 1, places))

    def redeliver(
        self,
        queue_id: int,
        progress: QueueProgress,
        place: Place,
        now_ms: int,
        *,
        counts: bool = True,
    ) -> Run:
        """Deliver a message that is in flight once more; return the run, which is not added."""
        # Never the time that it had, even within its millisecond or after the wall clock was set
        # back: an older handle would pass for the new one.
        pop_time_ms = max(now_ms, progress.in_flight[place.queue_offset].pop_time_ms + 1)
        attempt = self.core.progress.redeliver(
            progress, place.queue_offset, self._lease(now_ms, pop_time_ms), counts=counts
        )
        return Run(progress, queue_id, pop_time_ms, attempt, (place,))

    def _lease(self, now_ms: int, pop_time_ms: int) -> Lease:
        demand = self.demand
        until_ms = now_ms + demand.invisible_ms
        return Lease(pop_time_ms, until_ms, demand.client_id, demand.auto_renew, demand.attempt_id)

    # Taking back what is not handed over

    def in_flight(self, run: Run, place: Place) -> InFlight | None:
        """Return the state of a message that was taken; None if it is no longer this batch's.

        An operator may have reset or deleted the group meanwhile, or the client acknowledged.
        """
        if not self.is_current(run.queue_id, run.progress):
            return None
        entry = run.progress.in_flight.get(place.queue_offset)
        return entry if entry is not None and entry.pop_time_ms == run.pop_time_ms else None

    def make_visible(self, run: Run, place: Place, until_ms: int) -> None:
        """Have a message delivered again from a time on, which is no other attempt."""
        entry = self.in_flight(run, place)
        if entry is None:
            return
        self.core.progress.change_invisible(
            run.progress,
            entry.offset,
            # Another than it had, even within its millisecond: that ends the automatic renewal.
            pop_time_ms=max(self.core.clock.now_ms(), entry.pop_time_ms + 1),
            invisible_until_ms=until_ms,
            suspend=True,
        )

    def leave_for_retry(self, run: Run, place: Place) -> None:
        """Keep a message in flight without a client until its invisible time is over."""
        entry = self.in_flight(run, place)
        if entry is not None:
            # Without a client: its receiver could renew it, or repeat the attempt.
            lease = Lease(
                entry.pop_time_ms + 1, entry.invisible_until_ms, client_id="", auto_renew=False
            )
            self.core.progress.redeliver(run.progress, place.queue_offset, lease, counts=False)

    def drop(self, run: Run, place: Place) -> None:
        """Take a message out of flight for good, undelivered."""
        if self.in_flight(run, place) is not None:
            self.core.progress.acknowledge(run.progress, place.queue_offset)
        if self.is_fifo:
            # Other receivers may have found the lock unit locked by it, and wait.
            self.has_more = True


def is_exhausted(group: GroupConfig, attempt: int) -> bool:
    """Return whether a delivery would be one more than the group is given."""
    # -1 tries without end.
    return 0 < group.retry_max_times + 1 < attempt
