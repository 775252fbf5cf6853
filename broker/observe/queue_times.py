"""When messages were stored, for operators: nothing on the path of a message asks this."""

from __future__ import annotations

from typing import Final

from commitbus.broker.store.message_store import MessageStore
from commitbus.commitlog.errors import (
    CorruptRecordError,
    OffsetOutOfRangeError,
    ReadFailedError,
)
from commitbus.commitlog.types import PhysicalOffset, QueueOffset

NEVER_MS: Final = -1


def store_timestamp(
    store: MessageStore, topic: str, queue_id: int, queue_offset: QueueOffset
) -> int:
    """Return when the message at a queue offset was stored; -1 where none is or none can be read.

    May wait for a disk, so it is not for the trio thread.
    """
    place = physical_offset(store, topic, queue_id, queue_offset)
    return timestamp_at(store, PhysicalOffset(place)) if place >= 0 else NEVER_MS


def physical_offset(
    store: MessageStore, topic: str, queue_id: int, queue_offset: QueueOffset
) -> int:
    """Return where the message at a queue offset lies; -1 as above. May wait for a disk."""
    if queue_offset < 0:
        return -1
    try:
        fetched = store.fetch(topic, queue_id, queue_offset, 1)
    except ReadFailedError:
        return -1
    if not fetched.units or fetched.units[0].queue_offset != queue_offset:
        return -1
    return fetched.units[0].physical_offset


def earliest_store_timestamp(store: MessageStore) -> int:
    """Return when the oldest message was stored; -1 as above. May wait for a disk."""
    return timestamp_at(store, store.min_physical_offset)


def timestamp_at(store: MessageStore, place: PhysicalOffset) -> int:
    """Return when the message at a physical offset was stored; -1 as above."""
    try:
        return store.store_timestamp(place)
    except (OffsetOutOfRangeError, CorruptRecordError, ReadFailedError):
        # Deleted meanwhile, or the end of an empty log. All that an operator looks at must not be
        # missing because of a bad block; a reader of the message gets the error.
        return NEVER_MS
