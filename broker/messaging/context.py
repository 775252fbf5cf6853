"""The state of receivers and clients, which the handlers of the MessagingService share."""

from __future__ import annotations

from typing import Final, final

import trio

from commitbus.broker.core.broker import BrokerCore
from commitbus.broker.messaging.clients import ClientRegistry
from commitbus.broker.messaging.delivering import Delivering
from commitbus.broker.messaging.in_flight_cap import InFlightCap
from commitbus.broker.messaging.leavers import Leavers
from commitbus.broker.messaging.long_polling import LongPolling
from commitbus.broker.messaging.progress_durability import ProgressDurability
from commitbus.broker.messaging.questions import Questions
from commitbus.broker.messaging.queue_watch import QueueWatch
from commitbus.broker.messaging.turns import Turns

LETTERS_MAX: Final = 16
"""Dead letters being made, 4 MiB each: thousands of calls may wait for the disk to take them."""


@final
class MessagingContext:
    """The broker, its receivers and its clients. Used on the trio thread only."""

    def __init__(self, broker: BrokerCore) -> None:
        self.broker = broker
        self.store, self.metadata, self.progress = broker.store, broker.metadata, broker.progress
        self.config, self.clock, self.counters = broker.config, broker.clock, broker.counters
        self.durability, self.client_groups = broker.durability, broker.client_groups
        self.topic, self.readable_topic = broker.topic, broker.readable_topic
        self.group, self.consuming_group = broker.group, broker.consuming_group
        self.has_messages = broker.has_messages
        self.listen_port: int | None = None
        """Set once the transport has bound it: the last resort for the address clients are told."""
        self.clients = ClientRegistry(broker.clock)
        self.leavers = Leavers()
        """Clients that are gone, whose messages are to be released."""
        self.questions = Questions()
        self.in_flight_cap = InFlightCap(broker.clock)
        self.polls = LongPolling(broker.clock)
        self.watch = QueueWatch()
        progress = broker.progress
        self.progress_durability = ProgressDurability(progress.flush, lambda: progress.sequence)
        self._turns: dict[str, dict[str, Turns]] = {}
        """By group and topic: what the next receive begins with."""
        self.scanning: set[tuple[str, str, int]] = set()
        """(Group, topic, queue id) of which a receiver looks for messages just now."""
        self.scan_turn = trio.Lock()
        """Held for a step of a scan: of a thousand scans one goes on at a time."""
        self.waiting_settings_bytes = 0
        """Of answers to clients that do not listen yet."""
        self.letter_places = trio.CapacityLimiter(LETTERS_MAX)
        """Held while a message is in memory to be copied into a dead letter queue."""
        self.delivering = Delivering()
        """Bytes of messages that were taken and that their consumers have not read yet."""
        broker.store.add_arrival_listener(self.polls.on_arrival)
        broker.store.add_arrival_listener(self.watch.on_arrival)
        broker.topic_listeners.append(self._on_topic_deleted)
        broker.group_listeners.append(self._on_group_deleted)

    def attach(self) -> None:
        """Let the store's threads wake the tasks of the present trio run."""
        token = trio.lowlevel.current_trio_token()
        self.polls.attach(token)
        self.watch.attach(token)
        self.progress_durability.attach(token)
        self.broker.attach(token)

    def detach(self) -> None:
        """Undo `attach`, before the trio run ends."""
        self.polls.detach()
        self.watch.detach()
        self.progress_durability.detach()
        self.broker.detach()

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
