"""What happens when a group has as many messages of a queue in flight as it may: nobody is silent.

A group that never acknowledges gets nothing more from the queue. Its receivers see that in the
answer's status, operators in a metric and in the log.
"""

from __future__ import annotations

import logging
from typing import Final, final

from commitbus.broker.metadata.metadata_store import MetadataStore
from commitbus.broker.progress.progress_table import ProgressTable
from commitbus.broker.store.message_store import MessageStore
from commitbus.commitlog.clock import Clock

LOGGED_EVERY_S: Final = 60.0
"""For each queue of a group."""

_log: Final = logging.getLogger(__name__)


@final
class InFlightCap:
    """Counts and logs the looks that took nothing new because of `in_flight_max`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.looks: dict[tuple[str, str], int] = {}
        """By (group, topic): how many looks at a queue it has ended."""
        self._logged_s: dict[tuple[str, str, int], float] = {}

    def reached(self, group: str, topic: str, queue_id: int, in_flight: int) -> None:
        """Note a look that took nothing new, although there is something."""
        self.looks[group, topic] = self.looks.get((group, topic), 0) + 1
        key, now_s = (group, topic, queue_id), self._clock.monotonic_s()
        if now_s - self._logged_s.get(key, -LOGGED_EVERY_S) < LOGGED_EVERY_S:
            return
        self._logged_s[key] = now_s
        _log.warning(
            "in_flight_max reached: the group gets nothing new from this queue",
            extra={"group": group, "topic": topic, "queue_id": queue_id, "in_flight": in_flight},
        )

    def forget(self, *, group: str | None = None, topic: str | None = None) -> None:
        """Drop what is kept about a group or a topic that was deleted."""
        for looks in [key for key in self.looks if group == key[0] or topic == key[1]]:
            del self.looks[looks]
        for logged in [key for key in self._logged_s if group == key[0] or topic == key[1]]:
            del self._logged_s[logged]


def explanation(
    store: MessageStore, metadata: MetadataStore, table: ProgressTable, group: str, topic: str
) -> str:
    """Return why a group gets nothing new from a topic; empty unless `in_flight_max` is why."""
    config = metadata.topic(topic)
    for queue_id in range(config.read_queue_nums if config else 0):
        progress = table.get(group, topic, queue_id)
        if progress is None or progress.in_flight_count < table.in_flight_max:
            continue
        count = progress.delivered_count
        if count >= table.in_flight_max and progress.next_offset < store.max_offset(
            topic, queue_id
        ):
            return (
                f"group {group} has {count} messages of queue {queue_id} in flight, "
                f"and in_flight_max allows {table.in_flight_max}"
            )
    return ""
