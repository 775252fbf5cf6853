"""Taken messages that are not handed over: tried again later, given up, or made dead letters."""

from __future__ import annotations

import logging
from typing import Final

from commitbus.broker.consuming.store_reads import Place, read_or_wait, read_record
from commitbus.broker.receiving.taken import Run, Taken
from commitbus.broker.settling import dead_letters
from commitbus.commitlog.errors import (
    CorruptRecordError,
    MessageRefusedError,
    OffsetOutOfRangeError,
    ReadFailedError,
    StoreError,
)

UNREADABLE_ATTEMPTS_MAX: Final = 16
"""For a message that cannot be read, in a group that tries without end."""

_log: Final = logging.getLogger(__name__)


def put_off(taken: Taken, run: Run, place: Place, error: StoreError) -> None:
    """Leave a message that cannot be read in flight, to be tried again when it is visible."""
    _log.error("message unreadable", extra=_about(taken, run, place, error))
    group = taken.core.metadata.group(taken.demand.group)
    tries_for_ever = group is not None and group.retry_max_times < 0
    if tries_for_ever and run.delivery_attempt >= UNREADABLE_ATTEMPTS_MAX:
        _give_up(taken, run, place, error)
    else:
        taken.leave_for_retry(run, place)


async def bury(taken: Taken, run: Run) -> None:
    """Move a message that was delivered too often to the dead letter queue."""
    async with taken.core.letter_places:
        await _bury(taken, run)


async def _bury(taken: Taken, run: Run) -> None:
    core, group, (place,) = taken.core, taken.demand.group, run.places
    try:
        record = await read_or_wait(read_record, core.store, place)
    except OffsetOutOfRangeError:
        taken.drop(run, place)
        return
    except (CorruptRecordError, ReadFailedError) as error:
        _give_up(taken, run, place, error)
        return
    try:
        await dead_letters.prepare(core, group)
        if taken.in_flight(run, place) is None:
            return  # Settled while a disk was waited for.
        # The run counted one attempt more, which will not happen.
        await dead_letters.bury(core, group, record, run.delivery_attempt - 1)
    except MessageRefusedError as error:
        # Every attempt would fail, so the message is dropped.
        _log.exception("dead letter refused", extra=_about(taken, run, place, error))
    except StoreError as error:
        # It stays in flight, and is tried again when it becomes visible.
        _log.exception("dead letter not stored", extra=_about(taken, run, place, error))
        taken.leave_for_retry(run, place)
        return
    taken.drop(run, place)


def _give_up(taken: Taken, run: Run, place: Place, error: StoreError) -> None:
    """End a message that can be neither delivered nor become a dead letter."""
    # Every attempt would fail, and a FIFO group would never go on.
    _log.error("message given up", extra=_about(taken, run, place, error))
    taken.drop(run, place)


def _about(taken: Taken, run: Run, place: Place, error: StoreError) -> dict[str, object]:
    return {
        "group": taken.demand.group,
        "topic": taken.demand.topic,
        "queue_id": run.queue_id,
        "queue_offset": place.queue_offset,
        "reason": str(error),
    }
