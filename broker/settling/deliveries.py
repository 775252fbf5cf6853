"""Finding the delivery that a receipt handle names, without waiting for a disk on the trio thread.

A handle of an earlier delivery is compared with the message's place in the queue, which may have to
come from a disk. So a look-up of deliveries must be repeatable: it raises
`ColdPlacesError` before it changes anything, the places are read in a worker thread, and then it
runs again, on what is in flight by then.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import NamedTuple, TypeVar, final

from commitbus.broker.common.errors import InvalidReceiptHandleError
from commitbus.broker.common.shown import shown
from commitbus.broker.common.worker_lines import run_in_worker
from commitbus.broker.consuming.receipt_handle import ReceiptHandle
from commitbus.broker.consuming.state import ConsumingCore
from commitbus.broker.consuming.store_reads import (
    ColdPlacesError,
    Place,
    QueuePlace,
    Unreadable,
    read_places,
)
from commitbus.broker.progress.queue_progress import InFlight, QueueProgress

Places = Mapping[QueuePlace, Place | None]
_T = TypeVar("_T")


@final
class Delivery(NamedTuple):
    """The delivery that a receipt handle names."""

    handle: ReceiptHandle
    progress: QueueProgress
    entry: InFlight | None
    """None: the message is acknowledged already."""


def find_delivery(
    core: ConsumingCore, group: str, topic: str, text: str, places: Places
) -> Delivery:
    """Return the delivery that a receipt handle names, if the handle is still good for it.

    A handle is good for as long as its own invisible time lasts, even if a later one was issued
    meanwhile; the latest one is good until the message is visible again, renewals included.

    Args:
        core: the broker.
        group: the group that received the message.
        topic: where it was received from.
        text: the handle.
        places: places read from the queues for this handle, see `with_places`.

    Raises:
        InvalidReceiptHandleError: it is malformed, not ours, expired, or names nothing delivered.
        ReadFailedError: an older handle cannot be checked, as the disk does not give the unit back.
        ColdPlacesError: a disk would have to be waited for.
    """
    handle = ReceiptHandle.parse(text)
    progress = core.progress.get(group, topic, handle.queue_id)
    if handle.broker_name != core.config.broker_name or progress is None:
        raise InvalidReceiptHandleError(
            f"receipt handle {shown(text)} names no queue from which group {group} receives topic "
            f"{topic}"
        )
    if handle.queue_offset >= progress.next_offset:
        raise InvalidReceiptHandleError(
            f"receipt handle {shown(text)} names an undelivered message"
        )
    entry = progress.in_flight.get(handle.queue_offset)
    if entry is not None:
        if entry.delivery_attempt == 0:
            raise InvalidReceiptHandleError(
                f"receipt handle {shown(text)} names an undelivered message"
            )
        is_latest = entry.pop_time_ms == handle.pop_time_ms
        expires_at_ms = entry.invisible_until_ms if is_latest else handle.expires_at_ms
        if expires_at_ms <= core.clock.now_ms():
            raise InvalidReceiptHandleError("receipt handle is expired")
        if not is_latest:
            _check_place(core, topic, handle, places)
    return Delivery(handle, progress, entry)


def _check_place(core: ConsumingCore, topic: str, handle: ReceiptHandle, places: Places) -> None:
    """Check that an older handle still names the message that lies at its queue offset.

    It does not where the topic was deleted and made anew, or where a power cut took the message
    and another has its offset now: that one is not this client's to acknowledge.
    """
    key = handle.queue_id, handle.queue_offset
    if key not in places:
        offsets = (handle.queue_offset,)
        found = read_places(core.store, topic, handle.queue_id, offsets, only_cached=True)
        if found is None:
            raise ColdPlacesError((key,))
        places = {key: found[handle.queue_offset]}
    place = places[key]
    if isinstance(place, Unreadable):
        raise place.error
    if place is None or (
        handle.physical_offset >= 0 and place.physical_offset != handle.physical_offset
    ):
        raise InvalidReceiptHandleError("receipt handle names a message that is gone")


def with_places(
    core: ConsumingCore, topic: str, work: Callable[[Places], _T]
) -> _T | Awaitable[_T]:
    """Return what `work` returns, at once unless it needs a place that is not in memory.

    Args:
        core: the broker.
        topic: whose queues the places are of.
        work: gets the places that were read for it. It raises `ColdPlacesError` before it changes
            anything, and is called again then.
    """
    try:
        return work({})
    except ColdPlacesError as cold:
        return _once_read(core, topic, work, cold.places)


async def _once_read(
    core: ConsumingCore,
    topic: str,
    work: Callable[[Places], _T],
    cold: Collection[QueuePlace],
) -> _T:
    known: dict[QueuePlace, Place | None] = {}
    while True:
        known |= await run_in_worker(partial(_read, core, topic, cold))
        try:
            return work(known)
        except ColdPlacesError as error:
            # The messages in flight have changed since.
            cold = error.places


def _read(
    core: ConsumingCore, topic: str, cold: Collection[QueuePlace]
) -> dict[QueuePlace, Place | None]:
    """Read places from the disk."""
    by_queue: dict[int, list[int]] = {}
    for queue_id, queue_offset in cold:
        by_queue.setdefault(queue_id, []).append(queue_offset)
    known: dict[QueuePlace, Place | None] = {}
    for queue_id, offsets in by_queue.items():
        found = read_places(core.store, topic, queue_id, offsets, only_cached=False)
        assert found is not None, "only what is not cached can be missing"
        known |= {(queue_id, offset): place for offset, place in found.items()}
    return known
