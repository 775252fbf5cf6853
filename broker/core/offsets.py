"""The offsets of groups: the committed one of a queue, set by a consumer that pulls."""

from __future__ import annotations

from commitbus.broker.common.errors import IllegalOffsetError, OffsetNotFoundError
from commitbus.broker.core.broker import BrokerCore


def set_offset(broker: BrokerCore, group: str, topic: str, queue_id: int, offset: int) -> None:
    """Set where a group goes on in a queue; what is in flight for it there is forgotten.

    Raises:
        GroupNotFoundError: there is no such group; receiving or pulling makes one.
        IllegalOffsetError: the queue has no such offset and will not give it to its next message.
        StateWriteError: the progress could not be saved.
    """
    broker.existing_group(group)
    broker.client_groups.note_use(group)
    end = broker.store.max_offset(topic, queue_id)
    if not 0 <= offset <= end:
        raise IllegalOffsetError(f"offset {offset} is not in [0, {end}]")
    progress = broker.progress.get(group, topic, queue_id)
    if progress is None or progress.in_flight_count or progress.next_offset != offset:
        broker.reset_progress(group, topic, {queue_id: offset})


def committed_offset(broker: BrokerCore, group: str, topic: str, queue_id: int) -> int:
    """Return the offset before which a group has consumed everything in a queue.

    Raises:
        OffsetNotFoundError: the group has not begun there.
    """
    progress = broker.progress.get(group, topic, queue_id)
    if progress is None:
        raise OffsetNotFoundError(f"group {group} has no offset in queue {queue_id} of {topic}")
    return progress.committed_offset
