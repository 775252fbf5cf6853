"""New messages of a group: each queue is searched from the group's `next_offset` on, in steps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import final

import trio

from commitbus.broker.progress.queue_progress import QueueProgress
from commitbus.broker.receiving.allowance import BATCH_MAX
from commitbus.broker.receiving.scan import Found, Scan
from commitbus.broker.receiving.taken import Taken
from commitbus.commitlog.types import QueueOffset

Step = Callable[[int], Awaitable[bool]]
"""Takes from a queue, by its id, what is found in one step; returns whether another step may find
more."""


@final
class NewMessages:
    """Searches the queues for one receive call, and takes what it finds."""

    __slots__ = ("_taken",)

    def __init__(self, taken: Taken) -> None:
        self._taken = taken

    async def take_from(self, queues: Sequence[int], step: Step, until_s: float) -> None:
        """Take from one queue after the other until a limit is met.

        Args:
            queues: their ids.
            step: called again and again for each of them.
            until_s: on the scale of `trio.current_time()`: no later a step begins but the first.
        """
        taken, scanning = self._taken, self._taken.core.scanning
        for queue_id in queues:
            if not taken.allowance.room or taken.has_more:
                break
            key = taken.key(queue_id)
            if key not in scanning:
                # The group's other receivers leave the queue alone meanwhile: else each of a
                # thousand would look through it. With `has_more` they are told of the rest.
                scanning.add(key)
                try:
                    await self._take_steps(queue_id, step, until_s)
                except BaseException:
                    taken.has_more = True
                    raise
                finally:
                    scanning.discard(key)

    async def _take_steps(self, queue_id: int, step: Step, until_s: float) -> None:
        taken = self._taken
        while await step(queue_id):
            taken.has_more = bool(taken.runs) or trio.current_time() >= until_s
            if taken.has_more:
                return
            # A filter may step over millions: others get a turn between two steps.
            await trio.lowlevel.checkpoint()
            taken.check()

    async def take(self, queue_id: int, count_max: int = BATCH_MAX) -> bool:
        """Take up to `count_max` messages: a `Step`."""
        taken, progress = self._taken, self._taken.progress(queue_id)
        start, count_max = progress.next_offset, min(count_max, taken.allowance.room)
        room = taken.core.progress.in_flight_max - progress.in_flight_count
        found = await self.find(queue_id, progress, count_max, in_flight_room=room)
        if found is None:
            return False
        if not taken.is_at(start, queue_id, progress):
            return True
        places = taken.allowance.fitting(found.places)
        is_cut = len(places) < len(found.places)
        next_offset = found.places[len(places)].queue_offset if is_cut else found.next_offset
        taken.deliver(queue_id, progress, places, next_offset=next_offset)
        return taken.allowance.room > 0 and self.may_be_in(queue_id, progress)

    async def find(
        self, queue_id: int, progress: QueueProgress, count_max: int, *, in_flight_room: int
    ) -> Found | None:
        """Return what is found in one step; None if there is nothing that may be taken now.

        Args:
            queue_id: the queue.
            progress: the group's in the queue.
            count_max: how many messages are wanted at most.
            in_flight_room: how many the group may be given: if it never acknowledges, it gets no
                further.
        """
        if not self.may_be_in(queue_id, progress):
            return None
        allowed = min(count_max, in_flight_room)
        if allowed <= 0:
            if count_max > 0:
                self._note_cap(queue_id, progress)
            return None
        taken, start = self._taken, QueueOffset(progress.next_offset)
        scan = Scan(taken.core, taken.demand.topic, queue_id, taken.demand.wanted)
        found = await scan.step(start, allowed)
        # Else the topic was deleted between the two looks at its queue.
        return found if found.next_offset > start else None

    def may_be_in(self, queue_id: int, progress: QueueProgress) -> bool:
        """Return whether a queue has messages behind the group's progress."""
        taken = self._taken
        return progress.next_offset < taken.core.store.max_offset(taken.demand.topic, queue_id)

    def _note_cap(self, queue_id: int, progress: QueueProgress) -> None:
        core, count = self._taken.core, progress.delivered_count
        if count >= core.progress.in_flight_max:
            core.in_flight_cap.reached(*self._taken.key(queue_id), count)
