"""What the handlers share."""

from __future__ import annotations

from typing import Final, final

import trio

from commitbus.broker.config import BrokerConfig
from commitbus.broker.core.errors import (
    GroupNotFoundError,
    NotPermittedError,
    TooManyRequestsError,
    TopicNotFoundError,
)
from commitbus.broker.messaging.client_groups import ClientGroups
from commitbus.broker.messaging.clients import ClientRegistry
from commitbus.broker.messaging.counters import Counters
from commitbus.broker.messaging.delivering import Delivering
from commitbus.broker.messaging.durability import Durability
from commitbus.broker.messaging.in_flight_cap import InFlightCap
from commitbus.broker.messaging.leavers import Leavers
from commitbus.broker.messaging.long_polling import LongPolling
from commitbus.broker.messaging.progress_durability import ProgressDurability
from commitbus.broker.messaging.questions import Questions
from commitbus.broker.messaging.queue_watch import QueueWatch
from commitbus.broker.messaging.turns import Turns
from commitbus.broker.metadata.groups import GroupConfig
from commitbus.broker.metadata.metadata_store import MetadataStore
from commitbus.broker.metadata.names import dead_letter_topic, group_of_topic
from commitbus.broker.metadata.progress_table import ProgressTable
from commitbus.broker.metadata.topics import QUEUES_MAX, TopicConfig
from commitbus.broker.store.message_store import MessageStore
from commitbus.broker.worker_lines import address_served
from commitbus.commitlog.clock import Clock
from commitbus.flush.policy import FlushMode

CREATED_BY_CLIENTS_MAX: Final = 10_000
"""Topics, and groups, of one broker. Each takes memory, disk and a share of every save, and to
create one a client only has to name it. Operators may go beyond."""
LETTERS_MAX: Final = 16
"""Dead letters being made, 4 MiB each: thousands of calls may wait for the disk to take them."""


@final
class MessagingContext:
    """The broker's state as the handlers see it. Used on the trio thread only."""

    def __init__(
        self,
        *,
        store: MessageStore,
        metadata: MetadataStore,
        progress: ProgressTable,
        config: BrokerConfig,
        clock: Clock,
    ) -> None:
        self.store, self.metadata, self.progress = store, metadata, progress
        self.config, self.clock = config, clock
        self.listen_port: int | None = None
        """Set once the transport has bound it: the last resort for the address clients are told."""
        self.clients = ClientRegistry(clock)
        self.leavers = Leavers()
        """Clients that are gone, of which the messages are to be released."""
        self.client_groups = ClientGroups()
        self.questions = Questions()
        self.counters = Counters()
        self.in_flight_cap = InFlightCap(clock)
        self.polls = LongPolling(clock)
        self.watch = QueueWatch()
        self.durability = Durability(
            lambda: store.durable_watermark,
            needed=store.flush_mode is FlushMode.SYNC_FLUSH,
        )
        self.progress_durability = ProgressDurability(progress.flush, lambda: progress.sequence)
        self.next_queue: dict[str, int] = {}
        """By topic: whose turn it is among the writable queues."""
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
        store.add_arrival_listener(self.polls.on_arrival)
        store.add_arrival_listener(self.watch.on_arrival)
        store.add_durable_listener(self.durability.on_durable)
        store.add_failure_listener(self.durability.on_failure)

    def attach(self) -> None:
        """Let the store's threads wake the tasks of the present trio run."""
        token = trio.lowlevel.current_trio_token()
        self.polls.attach(token)
        self.watch.attach(token)
        self.durability.attach(token)
        self.progress_durability.attach(token)

    def detach(self) -> None:
        """Undo `attach`, before the trio run ends."""
        self.polls.detach()
        self.watch.detach()
        self.durability.detach()
        self.progress_durability.detach()

    async def topic(self, name: str) -> TopicConfig:
        """Return a topic, created now if that is allowed.

        A group has a retry and a dead letter topic as soon as somebody asks for them, or a consumer
        could not begin to wait for dead letters before there is one.

        Raises:
            TopicNotFoundError: there is no such topic and it may not be created.
            TooManyRequestsError: there are too many for clients to create one more.
            StateWriteError: it could not be created.
        """
        topic = self.metadata.topic(name)
        if topic is None:
            config = self._new_topic(name)
            _check_room(self.metadata.topic_count, f"topic {name}")
            topic = await self.metadata.add_topic(config)
        return topic

    def _new_topic(self, name: str) -> TopicConfig:
        """Return the settings of a topic that is created because a client names it.

        Raises:
            TopicNotFoundError: it may not be created.
        """
        owner = group_of_topic(name)
        if owner is None and self.config.auto_create_topics:
            return TopicConfig(name)
        group = self.metadata.group(owner) if owner else None
        if group is None:
            raise TopicNotFoundError(name)
        queues = 1 if name == dead_letter_topic(group.name) else group.retry_queue_nums
        queues = min(max(queues, 1), QUEUES_MAX)
        return TopicConfig(name, read_queue_nums=queues, write_queue_nums=queues)

    async def group(self, name: str) -> GroupConfig:
        """Return a consumer group, created at its first use.

        Clients of the 5.x protocol have no way to create one, and RocketMQ does the same.

        Raises:
            TooManyRequestsError: there are too many for clients to create one more.
            StateWriteError: it could not be created.
        """
        group = self.metadata.group(name)
        if group is None:
            address = address_served()
            with self.client_groups.making(
                name, address, count=self.metadata.group_count, limit=CREATED_BY_CLIENTS_MAX
            ):
                group = await self.metadata.add_group(GroupConfig(name, created_by_client=True))
        self.client_groups.note_use(name)
        return group

    def readable_topic(self, name: str) -> TopicConfig:
        """Return a topic as it is now, to receive from.

        Raises:
            TopicNotFoundError: there is no such topic.
            NotPermittedError: nobody may read it.
        """
        topic = self.metadata.topic(name)
        if topic is None:
            raise TopicNotFoundError(name)
        if not topic.readable or topic.read_queue_nums == 0:
            raise NotPermittedError(f"topic {name} has no readable queue")
        return topic

    def consuming_group(self, name: str) -> GroupConfig:
        """Return a group as it is now, to receive for.

        Raises:
            GroupNotFoundError: there is no such group.
            NotPermittedError: it may not consume.
        """
        group = self.metadata.group(name)
        if group is None:
            raise GroupNotFoundError(name)
        self.client_groups.note_use(name)
        if not group.consume_enable:
            raise NotPermittedError(f"group {name} may not consume")
        return group

    def turns_of(self, group: str, topic: str) -> Turns:
        """Return what the next receive of a group from a topic begins with."""
        topics = self._turns.get(group)
        if topics is None:
            topics = self._turns[group] = {}
        turns = topics.get(topic)
        if turns is None:
            turns = topics[topic] = Turns()
        return turns

    def has_messages(self, topic: str) -> bool:
        """Return whether anything was ever stored in a topic, as far as its queues know."""
        config = self.metadata.topic(topic)
        count = max(config.read_queue_nums, config.write_queue_nums) if config else 0
        return any(self.store.max_offset(topic, queue_id) for queue_id in range(count))

    def forget_topic(self, name: str) -> None:
        """Drop what is kept in memory about a topic that was deleted, and tell who waits for it."""
        self.next_queue.pop(name, None)
        for topics in self._turns.values():
            topics.pop(name, None)
        self.counters.forget(topic=name)
        self.in_flight_cap.forget(topic=name)
        self.polls.forget_topic(name)
        self.watch.forget_topic(name)

    def forget_group(self, name: str) -> None:
        """Drop what is kept in memory about a group that was deleted, and tell who waits for it."""
        self._turns.pop(name, None)
        self.client_groups.forget(name)
        self.counters.forget(group=name)
        self.in_flight_cap.forget(group=name)
        self.polls.forget_group(name)
        self.watch.forget_group(name)


def _check_room(count: int, what: str) -> None:
    if count >= CREATED_BY_CLIENTS_MAX:
        raise TooManyRequestsError(
            f"{what} is not created, because there are {count} already: an operator may create it"
        )
