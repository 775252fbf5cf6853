"""The state that receives, pulls and acknowledgements share, whatever protocol they come by."""

from __future__ import annotations

from typing import Final, final

import trio

from commitbus.broker.common.errors import BadRequestError
from commitbus.broker.consuming.delivering import Delivering
from commitbus.broker.consuming.in_flight_cap import InFlightCap
from commitbus.broker.consuming.leavers import Leavers
from commitbus.broker.consuming.long_polling import LongPolling
from commitbus.broker.consuming.queue_watch import QueueWatch
from commitbus.broker.consuming.turns import Turns
from commitbus.broker.core.broker import BrokerCore
from commitbus.broker.store.message_store import MessageStore
from commitbus.commitlog.types import QueueOffset

LETTERS_MAX: Final = 16
"""Dead letters being made, 4 MiB each: thousands of calls may wait for the disk to take them."""


@final
class ConsumingCore:
    """The broker and its consumers. Used on the trio thread only."""

    def __init__(self, broker: BrokerCore) -> None:
        self.store, self.metadata, self.progress = broker.store, broker.metadata, broker.progress
        self.config, self.clock, self.counters = broker.config, broker.clock, broker.counters
        self.durability = broker.durability
        self.readable_topic, self.consuming_group = broker.readable_topic, broker.consuming_group
        self.leavers = Leavers()
        """Clients that are gone, whose messages are to be released."""
        self.in_flight_cap = InFlightCap(broker.clock)
        self.polls = LongPolling(broker.clock, broker.trio_thread)
        """The receive calls that wait."""
        self.watch = QueueWatch(broker.trio_thread)
        """The pull calls that wait."""
        self.scanning: set[tuple[str, str, int]] = set()
        """(Group, topic, queue id) of which a receiver looks for messages just now."""
        self.scan_turn = trio.Lock()
        """Held for a step of a scan: of a thousand scans one goes on at a time."""
        self.letter_places = trio.CapacityLimiter(LETTERS_MAX)
        """Held while a message is in memory to be copied into a dead letter queue."""
        self.delivering = Delivering()
        """Bytes of messages that were taken and that their consumers have not read yet."""
        self._turns: dict[str, dict[str, Turns]] = {}
        """By group and topic: what the next receive begins with."""
        broker.store.add_arrival_listener(self.polls.on_arrival)
        broker.store.add_arrival_listener(self.watch.on_arrival)
        broker.topic_listeners.append(self._on_topic_deleted)
        broker.group_listeners.append(self._on_group_deleted)
        broker.reset_listeners.append(self.polls.wake)

    def check_readable(self, topic: str, queue_id: int) -> None:
        """Check that a topic has a queue, and that it can be read.

        Raises:
            TopicNotFoundError: there is no such topic.
            NotPermittedError: nobody may read it.
            BadRequestError: it has no such queue.
        """
        count = self.readable_topic(topic).read_queue_nums
        if not 0 <= queue_id < count:
            raise BadRequestError(f"topic {topic} has no queue {queue_id}: {count} can be read")

    def turns_of(self, group: str, topic: str) -> Turns:
        """Return what the next receive of a group from a topic begins with."""
        topics = self._turns.get(group)
        if topics is None:
            topics = self._turns[group] = {}
        turns = topics.get(topic)
        if turns is None:
            turns = topics[topic] = Turns()
        return turns

    def _on_topic_deleted(self, name: str) -> None:
        """Drop what is kept about a topic, and wake the receivers that wait for its messages."""
        for topics in self._turns.values():
            topics.pop(name, None)
        self.in_flight_cap.forget(topic=name)
        self.polls.forget_topic(name)
        self.watch.forget_topic(name)

    def _on_group_deleted(self, name: str) -> None:
        """Drop what is kept about a group, and wake its receivers."""
        self._turns.pop(name, None)
        self.in_flight_cap.forget(group=name)
        self.polls.forget_group(name)
        self.watch.forget_group(name)


def beginning_of(store: MessageStore, topic: str, queue_id: int) -> QueueOffset:
    """Return where a new group begins in a queue.

    RocketMQ lets it see a young queue in full, and only the last message of one whose beginning is
    gone already. One of a topic that was deleted and made anew goes on counting, so a first offset
    above 0 alone does not say that anything is gone.
    """
    first = store.min_offset(topic, queue_id)
    if first == 0 or store.min_physical_offset == 0:
        return first
    return max(first, QueueOffset(store.max_offset(topic, queue_id) - 1))
