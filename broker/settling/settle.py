"""Settling of delivered messages: acknowledged, or visible again at another time.

A delivery is named by its receipt handle. Both may have to know where a message lies, which may
have to come from a disk: they take the places that were read for them, see `with_places`.
"""

from __future__ import annotations

from collections.abc import Sequence

from commitbus.broker.common.errors import InvalidReceiptHandleError
from commitbus.broker.consuming.state import ConsumingCore
from commitbus.broker.consuming.store_reads import ColdPlacesError
from commitbus.broker.metadata.groups import LockUnit
from commitbus.broker.progress.fifo_lock import lock_units
from commitbus.broker.progress.queue_progress import QueueProgress
from commitbus.broker.settling.deliveries import Places, find_delivery
from commitbus.commitlog.errors import ReadFailedError


def acknowledge(
    core: ConsumingCore, group: str, topic: str, handles: Sequence[str], places: Places
) -> dict[int, Exception]:
    """Take messages out of flight for good; one that is already counts as taken.

    Returns:
        By index, why a handle was refused.

    Raises:
        ColdPlacesError: places must be read first; nothing has changed.
        StateWriteError: it cannot be saved; some may be acknowledged.
    """
    errors: dict[int, Exception] = {}
    in_flight: dict[QueueProgress, list[int]] = {}
    cold: set[tuple[int, int]] = set()
    for index, text in enumerate(handles):
        try:
            handle, progress, entry = find_delivery(core, group, topic, text, places)
        except (InvalidReceiptHandleError, ReadFailedError) as error:
            errors[index] = error
        except ColdPlacesError as error:
            cold.update(error.places)
        else:
            if entry is not None:
                in_flight.setdefault(progress, []).append(handle.queue_offset)
    if cold:
        raise ColdPlacesError(cold)
    for progress, offsets in in_flight.items():
        count = settle(core, group, topic, progress, offsets)
        core.counters.count_acknowledged(group, topic, count)
    return errors


def settle(
    core: ConsumingCore,
    group: str,
    topic: str,
    progress: QueueProgress,
    offsets: Sequence[int],
) -> int:
    """Take messages out of flight for good; return how many were in flight.

    Wakes a receiver if it may have waited for that: no arrival may come to do so.
    """
    was_full = progress.in_flight_count >= core.progress.in_flight_max
    count = core.progress.acknowledge(progress, *offsets)
    config = core.metadata.group(group)
    if was_full:
        core.polls.wake(group, topic)
    elif config is not None and config.consume_message_orderly:
        # Where message groups are locked, the next of this one may be free whatever else is out.
        free_at_ms = (
            lock_units(progress, LockUnit.QUEUE).next_free_ms(core.clock.now_ms())
            if config.lock_unit is LockUnit.QUEUE
            else None
        )
        if free_at_ms is None:
            core.polls.wake(group, topic)
        else:
            # If the wall clock was set back, that may be before the expiry that waiters noted.
            core.polls.note_expiry(group, topic, free_at_ms)
    return count


def change_invisible(
    core: ConsumingCore,
    group: str,
    topic: str,
    text: str,
    places: Places,
    *,
    duration_ms: int,
    suspend: bool,
) -> str:
    """Set anew when a message becomes visible again, counted from now; return its new handle.

    Args:
        core: the broker.
        group: the group that received the message.
        topic: where it was received from.
        text: the handle of the delivery.
        places: the places that were read for it.
        duration_ms: 0 gives the message back at once.
        suspend: whether the next delivery does not count as another attempt.

    Raises:
        InvalidReceiptHandleError: the handle is refused, or its message is acknowledged.
        ReadFailedError: an older handle cannot be checked.
        ColdPlacesError: a place must be read first; nothing has changed.
        StateWriteError: it cannot be saved; nothing changed.
    """
    handle, progress, entry = find_delivery(core, group, topic, text, places)
    if entry is None:
        raise InvalidReceiptHandleError("the message is acknowledged")
    now_ms = core.clock.now_ms()
    # Never the time that it had: the new handle must differ, and it ends the automatic renewal.
    pop_time_ms = max(now_ms, entry.pop_time_ms + 1)
    core.progress.change_invisible(
        progress,
        handle.queue_offset,
        pop_time_ms=pop_time_ms,
        invisible_until_ms=now_ms + duration_ms,
        suspend=suspend,
    )
    core.polls.note_expiry(group, topic, now_ms + duration_ms)
    changed = handle._replace(pop_time_ms=pop_time_ms, invisible_ms=duration_ms)
    config = core.metadata.group(group)
    return changed.encode(fifo=config is not None and config.consume_message_orderly)
