"""How far a group is behind, queue by queue: what every answer about lag is made of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

from commitbus.broker.admin.context import AdminContext
from commitbus.broker.observe.queue_times import store_timestamp
from commitbus.broker.progress.queue_progress import QueueProgress, lag
from commitbus.commitlog.types import QueueOffset


@final
@dataclass(frozen=True, slots=True)
class QueueLag:
    """One group in one queue, as it was when it was looked at."""

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    """First offset that no message has yet."""
    committed_offset: int
    """First offset that is not acknowledged."""
    lag: int
    """Messages before the group: never delivered, or delivered and not acknowledged."""
    inflight: int
    """Delivered and neither acknowledged nor visible again."""
    ready: int
    """Visible: never delivered, or visible again."""
    first_ready: int | None
    """Offset of the first of these."""
    client_ids: tuple[str, ...]
    """Clients that hold messages of this queue."""


def queue_lags(context: AdminContext, group: str, topics: Iterable[str]) -> list[QueueLag]:
    """Return the lag in every queue of these topics, those that the group has not begun too.

    It looks at each message in flight, so it is not for the trio thread.
    """
    return [
        _queue_lag(context, group, topic, queue_id)
        for topic in topics
        for queue_id in queue_ids(context, topic)
    ]


def queue_ids(context: AdminContext, topic: str) -> range:
    """Return the queues of a topic that can be read; none if there is no such topic."""
    config = context.metadata.topic(topic)
    return range(config.read_queue_nums if config else 0)


def _queue_lag(context: AdminContext, group: str, topic: str, queue_id: int) -> QueueLag:
    progress = context.progress.get(group, topic, queue_id)
    min_offset = context.store.min_offset(topic, queue_id)
    # Nothing of this queue was delivered yet: all that is stored lies ahead.
    progress = progress or QueueProgress(min_offset)
    next_offset, entries = context.progress.snapshot(progress)
    # After a start the queues follow the log a moment later than the progress.
    max_offset = max(context.store.max_offset(topic, queue_id), next_offset)
    now_ms = context.messaging.clock.now_ms()
    held = [entry for entry in entries if entry.invisible_until_ms > now_ms]
    visible = [entry.offset for entry in entries if entry.invisible_until_ms <= now_ms]
    never_delivered = range(next_offset, max_offset)
    ready = [*visible[:1], *never_delivered[:1]]
    return QueueLag(
        topic=topic,
        queue_id=queue_id,
        min_offset=min_offset,
        max_offset=max_offset,
        committed_offset=entries[0].offset if entries else next_offset,
        lag=lag(max_offset, next_offset, len(entries)),
        inflight=len(held),
        ready=len(visible) + len(never_delivered),
        first_ready=min(ready, default=None),
        # An unreadable message is in flight without a client.
        client_ids=tuple(sorted({entry.client_id for entry in held} - {""})),
    )


def stored_at_ms(context: AdminContext, lag: QueueLag, offset: int | None) -> int:
    """Return when a message of the queue was stored, -1 where there is none. For own threads."""
    if offset is None:
        return -1
    return store_timestamp(context.store, lag.topic, lag.queue_id, QueueOffset(offset))
