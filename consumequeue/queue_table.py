"""The queues of a store by topic and id; of most, only where they begin and end is in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, final

from commitbus.commitlog.threads import SYSTEM_THREADS, Threads
from commitbus.commitlog.types import PhysicalOffset, QueueOffset
from commitbus.consumequeue.consume_queue import ConsumeQueue
from commitbus.consumequeue.queue_states import QueueState, SavedState, States

_new_state = partial(tuple.__new__, QueueState)
"""A third of the cost of calling the class."""
_NO_QUEUES: Final[dict[int, SavedState]] = {}


@final
class QueueTable:
    """Makes a `ConsumeQueue` of what a checkpoint says of a queue when that is first asked for.

    Reading and `get` are safe on any thread; what adds and removes is called under a lock
    of the caller's. Nothing here waits for a disk.
    """

    __slots__ = ("_awake_ids", "_lock", "_make", "_resting", "awake", "is_doubtful")

    def __init__(
        self, make: Callable[[str, int], ConsumeQueue], threads: Threads = SYSTEM_THREADS
    ) -> None:
        """Begin without a queue; `make` names one."""
        self._make = make
        self.awake: Final[dict[tuple[str, int], ConsumeQueue]] = {}
        """Those that exist as objects. For a look-up before `get`."""
        self._awake_ids: dict[str, set[int]] = {}
        self._resting: States = {}
        self.is_doubtful = False
        """Whether the files of those that rest may go on behind their end, after a power cut."""
        self._lock = threads.lock()

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return a queue, None if there is none."""
        return self.awake.get((topic, queue_id)) or self._wake(topic, queue_id)

    def _wake(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        if queue_id not in self._resting.get(topic, _NO_QUEUES):
            # Another thread may just have been first.
            return self.awake.get((topic, queue_id))
        with self._lock:
            queue = self.awake.get((topic, queue_id))
            state = self._resting.get(topic, _NO_QUEUES).get(queue_id)
            if queue is None and state is not None:
                queue = self._make(topic, queue_id)
                queue.rest(_new_state(state), is_doubtful=self.is_doubtful)
                self._add(queue)
        return queue

    def add(self, queue: ConsumeQueue) -> None:
        """Add a queue."""
        with self._lock:
            self._add(queue)

    def _add(self, queue: ConsumeQueue) -> None:
        topic, queue_id = queue.topic, queue.queue_id
        # In this order: who looks without the lock finds it in one of the two.
        self._awake_ids.setdefault(topic, set()).add(queue_id)
        self.awake[topic, queue_id] = queue
        self._pop_resting(topic, queue_id)

    def rest(self, topic: str, states: dict[int, SavedState]) -> None:
        """Add queues of a topic as a checkpoint has them. Before any other use of the topic."""
        self._resting[topic] = states

    def remove(self, topic: str, queue_id: int) -> None:
        """Remove a queue."""
        with self._lock:
            self.awake.pop((topic, queue_id), None)
            ids = self._awake_ids.get(topic, set())
            ids.discard(queue_id)
            if not ids:
                self._awake_ids.pop(topic, None)
            self._pop_resting(topic, queue_id)

    def clear(self) -> list[ConsumeQueue]:
        """Remove all; return those that exist as objects."""
        with self._lock:
            queues = list(self.awake.values())
            self.awake.clear()
            self._awake_ids.clear()
            self._resting.clear()
        return queues

    def bounds(self, topic: str, queue_id: int) -> tuple[QueueOffset, QueueOffset] | None:
        """Return `min_offset` and `max_offset` of a queue, None if there is none."""
        if (state := self._resting.get(topic, _NO_QUEUES).get(queue_id)) is not None:
            return state[0], state[1]
        queue = self.awake.get((topic, queue_id))
        return None if queue is None else (queue.min_offset, queue.max_offset)

    def state(self, topic: str, queue_id: int) -> QueueState | None:
        """Return where a queue begins and ends, None if there is none."""
        if (queue := self.awake.get((topic, queue_id))) is not None:
            return queue.state()
        if (state := self._resting.get(topic, _NO_QUEUES).get(queue_id)) is not None:
            return _new_state(state)
        queue = self.awake.get((topic, queue_id))
        return None if queue is None else queue.state()

    def saved(self, topic: str, queue_id: int) -> QueueState | None:
        """Return a queue's state as of the last flush, None if there is none."""
        if (queue := self.awake.get((topic, queue_id))) is not None:
            return queue.saved
        state = self._resting.get(topic, _NO_QUEUES).get(queue_id)
        return None if state is None else _new_state(state)

    def dispatched_to(self) -> PhysicalOffset:
        """Return the end of the last message that is in a queue, 0 without any."""
        resting = (state[3] for queues in self._resting.values() for state in queues.values())
        awake = (queue.dispatched_to for queue in self.awake.values())
        return max(max(resting, default=PhysicalOffset(0)), max(awake, default=PhysicalOffset(0)))

    def units_by_queue(self) -> Iterator[tuple[int, int]]:
        """Yield `min_offset` and `max_offset` of every queue that exists now."""
        for topic in list(self._resting):
            # Copied in one step: another thread may wake one.
            for state in list(self._resting.get(topic, _NO_QUEUES).values()):
                yield state[0], state[1]
        for queue in list(self.awake.values()):
            yield queue.min_offset, queue.max_offset

    def beginning_before(self, physical_offset: PhysicalOffset) -> Iterator[tuple[str, int]]:
        """Yield the queues that may have a visible unit of a message before an offset."""
        for topic in sorted(self.topics()):
            with self._lock:
                resting = self._resting.get(topic, _NO_QUEUES)
                ids = [
                    queue_id for queue_id, state in resting.items() if state[2] < physical_offset
                ]
                ids += self._awake_ids.get(topic, ())
            for queue_id in sorted(ids):
                yield topic, queue_id

    def rests(self, topic: str, queue_id: int) -> bool:
        """Return whether a queue is there and does not exist as an object."""
        return queue_id in self._resting.get(topic, _NO_QUEUES)

    def topics(self) -> set[str]:
        """Return the topics that have a queue."""
        return {*list(self._resting), *list(self._awake_ids)}

    def ids(self, topic: str) -> list[int]:
        """Return the ids of a topic's queues, in order."""
        with self._lock:
            ids = {*self._resting.get(topic, ()), *self._awake_ids.get(topic, ())}
        return sorted(ids)

    def __iter__(self) -> Iterator[tuple[str, int]]:
        """Yield topic and id of every queue, topic by topic; those that come meanwhile, or not."""
        for topic in sorted(self.topics()):
            for queue_id in self.ids(topic):
                yield topic, queue_id

    def _pop_resting(self, topic: str, queue_id: int) -> None:
        queues = self._resting.get(topic)
        if queues is not None:
            queues.pop(queue_id, None)
            if not queues:
                del self._resting[topic]
