"""Having a group go on elsewhere: behind or before where it is, without a restart of anybody."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from commitbus.broker.admin.context import AdminContext
from commitbus.broker.admin.lag import queue_ids
from commitbus.broker.common.errors import BadRequestError, IllegalOffsetError
from commitbus.broker.common.worker_lines import run_in_worker

OffsetOf = Callable[[int], int]
"""Returns where to go on in a queue, by its id. May wait for a disk."""
_DISPATCH_S: Final = 1.0
"""For reput to reach a message that was just sent."""


async def reset_offsets(
    context: AdminContext,
    group: str,
    topic: str,
    offset_of: OffsetOf,
    *,
    queue_id: int | None = None,
    only_back: bool = False,
) -> Mapping[int, int]:
    """Have a group go on at other offsets, and return them by queue.

    What is in flight there is forgotten: a receipt handle of it is refused until its message is
    delivered again. Receivers that wait look again at once.

    Args:
        context: the broker.
        group: the group, which exists.
        topic: the topic, which exists.
        offset_of: where to go on.
        queue_id: the one queue to reset; None: all.
        only_back: leave a queue alone in which the group is not that far yet.

    Raises:
        BadRequestError: there is no such queue.
        IllegalOffsetError: a queue has no such offset.
        StateWriteError: the progress cannot be saved, or not durably where that is asked for; some
            queues may be reset.
    """
    queues = _chosen(queue_ids(context, topic), topic, queue_id)
    offsets = await run_in_worker(_look_up, context, topic, queues, offset_of)
    kept = dict[int, int]()
    for queue, offset in offsets.items():
        end = context.store.max_offset(topic, queue)
        if not 0 <= offset <= end:
            raise IllegalOffsetError(f"offset {offset} of queue {queue} is not in [0, {end}]")
        progress = context.progress.get(group, topic, queue)
        if only_back and progress is not None and progress.committed_offset < offset:
            kept[queue] = progress.committed_offset
    to_reset = {queue: offset for queue, offset in offsets.items() if queue not in kept}
    context.broker.reset_progress(group, topic, to_reset)
    await context.messaging.progress_durability.wait()
    return offsets | kept


def _look_up(
    context: AdminContext, topic: str, queues: Iterable[int], offset_of: OffsetOf
) -> dict[int, int]:
    """Return where to go on in each queue; messages whose sends were answered count."""
    store = context.store
    offsets = {queue: offset_of(queue) for queue in queues}
    if any(offset > store.max_offset(topic, queue) for queue, offset in offsets.items()):
        store.dispatched.wait(store.end_offset, _DISPATCH_S)
    return offsets


def _chosen(queues: range, topic: str, queue_id: int | None) -> Iterable[int]:
    if queue_id is None:
        return queues
    if queue_id not in queues:
        raise BadRequestError(f"topic {topic} has the queues 0 to {len(queues) - 1}")
    return (queue_id,)


def at_time(context: AdminContext, topic: str, timestamp_ms: int) -> OffsetOf:
    """Return the first offset whose message was stored at a time or later, else the end."""
    return lambda queue: context.store.offset_by_timestamp(topic, queue, timestamp_ms)


def at_end(context: AdminContext, topic: str) -> OffsetOf:
    """Return the end of a queue: what is stored by now is skipped."""
    return lambda queue: context.store.max_offset(topic, queue)


def at_offset(offset: int) -> OffsetOf:
    """Return the same offset for every queue."""
    return lambda _queue: offset
