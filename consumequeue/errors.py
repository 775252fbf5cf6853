"""What can go wrong between the log and its consume queues."""

from __future__ import annotations

from commitbus.commitlog.errors import StoreError


class DispatchError(StoreError):
    """A message of the log cannot be entered in its queue: the two contradict each other."""

    def __init__(self, topic: str, queue_id: int, physical_offset: int, reason: str) -> None:
        self.topic, self.queue_id = topic, queue_id
        self.physical_offset, self.reason = physical_offset, reason
        super().__init__(
            f"the message at physical offset {physical_offset} does not fit into queue {queue_id} "
            f"of topic {topic!r}: {reason}"
        )
