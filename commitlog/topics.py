"""What the log keeps of each topic: its bytes in a record, and where its queues end."""

from __future__ import annotations

from typing import final

from commitbus.commitlog.errors import MessageRefusedError
from commitbus.commitlog.record_format import MAX_TOPIC_BYTES, encode_topic
from commitbus.commitlog.types import QueueOffset


@final
class Topic:
    """One topic."""

    __slots__ = ("magic_code", "prefixed", "queue_ends")

    def __init__(self, name: str) -> None:
        """Begin without queues. MessageRefusedError: the name is too long."""
        data = name.encode()
        assert data, "a topic has a name"
        if len(data) > MAX_TOPIC_BYTES:
            raise MessageRefusedError("the topic", len(data), MAX_TOPIC_BYTES)
        self.magic_code, self.prefixed = encode_topic(data)
        self.queue_ends: dict[int, int] = {}
        """The queue offset that the next message of each queue id gets. Changed under the log's
        writer lock only."""


@final
class Topics(dict[str, Topic]):
    """Topics by name; one that is missing is made when it is asked for by `[]`."""

    def __missing__(self, name: str) -> Topic:
        """Make a topic. MessageRefusedError: the name is too long."""
        # In one step: of two threads that meet it first, both must get the same one.
        return self.setdefault(name, Topic(name))

    def queue_ends(self) -> dict[tuple[str, int], QueueOffset]:
        """Return the next queue offset of each queue."""
        # A copy, made in one step: an append that meets a new topic adds it without the lock.
        return {
            (name, queue_id): QueueOffset(end)
            for name, topic in list(self.items())
            for queue_id, end in topic.queue_ends.items()
        }

    def queue_ends_of(self, name: str) -> dict[int, QueueOffset]:
        """Return the next queue offset of each queue id of a topic; none of an unknown topic."""
        topic = self.get(name)
        ends = topic.queue_ends.items() if topic else ()
        return {queue_id: QueueOffset(end) for queue_id, end in ends}
