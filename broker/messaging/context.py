"""What the handlers share."""

from __future__ import annotations

from typing import final

import trio

from commitbus.broker.config import BrokerConfig
from commitbus.broker.messaging.clients import ClientRegistry
from commitbus.broker.messaging.counters import Counters
from commitbus.broker.messaging.durability import Durability
from commitbus.broker.messaging.errors import TopicNotFoundError
from commitbus.broker.messaging.long_polling import LongPolling
from commitbus.broker.metadata.groups import GroupConfig
from commitbus.broker.metadata.metadata_store import MetadataStore
from commitbus.broker.metadata.progress_table import ProgressTable
from commitbus.broker.metadata.topics import TopicConfig
from commitbus.broker.store.message_store import MessageStore
from commitbus.commitlog.clock import Clock
from commitbus.flush.policy import FlushMode


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
        self.counters = Counters()
        self.polls = LongPolling(clock)
        self.durability = Durability(
            lambda: store.durable_watermark,
            needed=store.flush_mode is FlushMode.SYNC_FLUSH,
        )
        self.next_queue: dict[str, int] = {}
        """By topic: whose turn it is among the writable queues."""
        self.first_queue: dict[tuple[str, str], int] = {}
        """By (group, topic): at which queue the next receive begins to look."""
        store.add_arrival_listener(self.polls.on_arrival)
        store.add_durable_listener(self.durability.on_durable)
        store.add_failure_listener(self.durability.on_failure)

    def attach(self) -> None:
        """Let the store's threads wake the tasks of the present trio run."""
        token = trio.lowlevel.current_trio_token()
        self.polls.attach(token)
        self.durability.attach(token)

    def detach(self) -> None:
        """Undo `attach`, before the trio run ends."""
        self.polls.detach()
        self.durability.detach()

    async def topic(self, name: str) -> TopicConfig:
        """Return a topic, created now if that is allowed.

        Raises:
            TopicNotFoundError: there is no such topic and it may not be created.
            StateWriteError: it could not be created.
        """
        topic = self.metadata.topic(name)
        if topic is None:
            if not self.config.auto_create_topics:
                raise TopicNotFoundError(name)
            topic = TopicConfig(name)
            await self.metadata.put_topic(topic)
        return topic

    async def group(self, name: str) -> GroupConfig:
        """Return a consumer group, created at its first use.

        Clients of the 5.x protocol have no way to create one, and RocketMQ does the same.

        Raises:
            StateWriteError: it could not be created.
        """
        group = self.metadata.group(name)
        if group is None:
            group = GroupConfig(name)
            await self.metadata.put_group(group)
        return group
