"""How much the groups have before them, for metrics and operators. For threads of their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

from commitbus.broker.observe.queue_times import NEVER_MS, physical_offset, timestamp_at
from commitbus.broker.progress.progress_table import ProgressTable
from commitbus.broker.store.message_store import MessageStore
from commitbus.commitlog.types import PhysicalOffset, QueueOffset


@final
@dataclass(frozen=True, slots=True)
class QueueBacklog:
    """One group in one queue."""

    queue_id: int
    lag: int
    """Messages before the group: never delivered, or delivered and not acknowledged."""
    in_flight: int
    """Delivered and not acknowledged."""
    committed_offset: int


def backlogs(
    store: MessageStore, progress: ProgressTable, group: str, topic: str
) -> Iterator[QueueBacklog]:
    """Yield how far a group is in each queue of a topic that it has begun."""
    for queue_id, queue in progress.queues_of(group, topic):
        yield QueueBacklog(
            queue_id,
            queue.lag(store.max_offset(topic, queue_id)),
            queue.delivered_count,
            progress.committed_offset(queue),
        )


@final
class OldestMessages:
    """Finds when the first of a group's messages was stored. Groups at the same place share a read.

    Args:
        store: The messages.
    """

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._places: dict[tuple[str, int, int], int] = {}
        self._times: dict[int, int] = {}

    def stored_ms(self, topic: str, queues: list[QueueBacklog]) -> int:
        """Return when the oldest message before a group was stored; -1 if none is or can be read.

        May wait for a disk.
        """
        # In the log an earlier place is an earlier time: one record is read, not one per queue.
        for place in sorted({self._place(topic, queue) for queue in queues if queue.lag}):
            stored_ms = self._time(place) if place >= 0 else NEVER_MS
            if stored_ms != NEVER_MS:
                return stored_ms
        return NEVER_MS

    def _place(self, topic: str, queue: QueueBacklog) -> int:
        key = topic, queue.queue_id, queue.committed_offset
        place = self._places.get(key)
        if place is None:
            place = physical_offset(self._store, topic, key[1], QueueOffset(key[2]))
            self._places[key] = place
        return place

    def _time(self, place: int) -> int:
        if place not in self._times:
            self._times[place] = timestamp_at(self._store, PhysicalOffset(place))
        return self._times[place]
