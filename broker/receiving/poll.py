"""A receive call in line: it looks for messages, or is parked until there may be some."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, final

import trio

from commitbus.broker.consuming.state import ConsumingCore
from commitbus.broker.receiving.batch import Batch
from commitbus.broker.receiving.demand import Demand
from commitbus.broker.receiving.encoder import Encoder, M


@final
class Receiving(Generic[M]):
    """One receive call: a `Poll`.

    Ten thousand may be parked. So what a look needs is made anew for each.
    """

    __slots__ = ("_core", "_demand", "_encoder", "_receiver", "_until_s")

    def __init__(
        self, core: ConsumingCore, demand: Demand, encoder: Encoder[M], until_s: float
    ) -> None:
        """Join the line.

        Args:
            core: the broker.
            demand: what is asked for.
            encoder: makes the messages.
            until_s: when to wait no more, on the scale of `trio.current_time()`; a
                `shared_deadline_s`.

        Raises:
            TooManyRequestsError: the line is full.
        """
        self._core, self._demand, self._encoder = core, demand, encoder
        self._until_s = until_s
        self._receiver = core.polls.join(demand.group, demand.topic, demand.batch_size)

    def park(self, go_on: Callable[[], None]) -> None:
        """Have `go_on` called, once, when there may be messages or the time is over."""
        self._receiver.park(self._until_s, go_on)

    def leave(self) -> None:
        """Leave the line."""
        self._receiver.leave()

    def batch(self) -> Batch[M]:
        """Return an empty batch to look with."""
        return Batch(self._core, self._demand, self._encoder)

    def may_find(self) -> bool:
        """Return whether a look may find something; if not, note when the next one may.

        A call that would only park is spared a task. A group that has not received from the topic
        yet begins to do so with a look.
        """
        core, demand = self._core, self._demand
        if demand.attempt_id:
            return True
        now_ms, topic = core.clock.now_ms(), core.metadata.topic(demand.topic)
        for queue_id in range(topic.read_queue_nums if topic else 0):
            progress = core.progress.get(demand.group, demand.topic, queue_id)
            if progress is None or progress.may_have_expired(now_ms):
                return True
            if progress.next_offset < core.store.max_offset(demand.topic, queue_id):
                return True
        self.batch().note_next_expiry()
        return False

    async def look(self, batch: Batch[M]) -> bool:
        """Fill a batch; return whether it is worth waiting, else leave the line.

        Raises:
            RequestError: topic or group are gone, or not to be received from or for.
            StoreError: the store failed.
        """
        receiver, waits = self._receiver, False
        try:
            # Whoever gave the call up before its turn came gets nothing taken, read and given back.
            await trio.lowlevel.checkpoint_if_cancelled()
            is_in_time = trio.current_time() < self._until_s
            if is_in_time or receiver.woken:
                receiver.begin_look()
                await batch.fill(self._until_s)
            waits = is_in_time and not batch.messages
            if waits or not receiver.is_alone:
                batch.note_next_expiry()
            if waits and batch.has_more:
                # All that was taken had to be dropped, and nobody else is told of the rest.
                receiver.wake()
        finally:
            if not waits:
                receiver.leave()
                if batch.has_more:
                    self._core.polls.wake(self._demand.group, self._demand.topic)
        return waits
