"""The broker without a protocol: its state, its topics and its groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, final

import trio

from commitbus.broker.common.errors import (
    GroupNotFoundError,
    NotPermittedError,
    TooManyRequestsError,
    TopicNotFoundError,
)
from commitbus.broker.common.trio_thread import TrioThread
from commitbus.broker.common.worker_lines import address_served
from commitbus.broker.config import BrokerConfig
from commitbus.broker.core.client_groups import ClientGroups
from commitbus.broker.core.counters import Counters
from commitbus.broker.core.durability import Durability
from commitbus.broker.metadata.groups import GroupConfig
from commitbus.broker.metadata.metadata_store import MetadataStore
from commitbus.broker.metadata.names import dead_letter_topic, group_of_topic
from commitbus.broker.metadata.topics import QUEUES_MAX, TopicConfig
from commitbus.broker.progress.progress_table import ProgressTable
from commitbus.broker.store.message_store import MessageStore
from commitbus.commitlog.clock import Clock

CREATED_BY_CLIENTS_MAX: Final = 10_000
"""Topics, and groups, of one broker. Each takes memory, disk and a share of every save, and to
create one a client only has to name it. Operators may go beyond."""


@final
class BrokerCore:
    """The state that all services share. Used on the trio thread only."""

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
        self.counters = Counters()
        self.client_groups = ClientGroups()
        self.trio_thread = TrioThread()
        """Woken by the threads of the store."""
        self.durability = Durability(store.confirm_point, self.trio_thread)
        self.topic_listeners: list[Callable[[str], None]] = []
        """Called with the name of a topic that was deleted."""
        self.group_listeners: list[Callable[[str], None]] = []
        """Called with the name of a group that was deleted."""
        self.reset_listeners: list[Callable[[str, str], None]] = []
        """Called with a group and a topic in which the group goes on at other offsets."""
        self._next_queue: dict[str, int] = {}
        """By topic: whose turn it is among the writable queues."""

    def existing_topic(self, name: str) -> TopicConfig:
        """Return a topic as it is now.

        Raises:
            TopicNotFoundError: there is no such topic.
        """
        topic = self.metadata.topic(name)
        if topic is None:
            raise TopicNotFoundError(name)
        return topic

    def existing_group(self, name: str) -> GroupConfig:
        """Return a group as it is now.

        Raises:
            GroupNotFoundError: there is no such group.
        """
        group = self.metadata.group(name)
        if group is None:
            raise GroupNotFoundError(name)
        return group

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
        topic = self.existing_topic(name)
        if not topic.readable or topic.read_queue_nums == 0:
            raise NotPermittedError(f"topic {name} has no readable queue")
        return topic

    def consuming_group(self, name: str) -> GroupConfig:
        """Return a group as it is now, to receive for.

        Raises:
            GroupNotFoundError: there is no such group.
            NotPermittedError: it may not consume.
        """
        group = self.existing_group(name)
        self.client_groups.note_use(name)
        if not group.consume_enable:
            raise NotPermittedError(f"group {name} may not consume")
        return group

    def has_messages(self, topic: str) -> bool:
        """Return whether anything was ever stored in a topic, as far as its queues know."""
        config = self.metadata.topic(topic)
        count = max(config.read_queue_nums, config.write_queue_nums) if config else 0
        return any(self.store.max_offset(topic, queue_id) for queue_id in range(count))

    def next_queue(self, topic: TopicConfig) -> int:
        """Return the writable queues of a topic in turn.

        Raises:
            NotPermittedError: it has none.
        """
        queue_id = self._next_queue.get(topic.name, 0) % writable_queues(topic)
        self._next_queue[topic.name] = queue_id + 1
        return queue_id

    def reset_progress(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Have a group go on at other offsets, by queue; what is in flight there is forgotten.

        Raises:
            StateWriteError: the progress of a queue could not be saved; some queues may be reset.
        """
        for queue_id, offset in offsets.items():
            self.progress.reset(group, topic, queue_id, offset)
        for listener in self.reset_listeners:
            listener(group, topic)

    async def delete_topic(self, name: str) -> None:
        """Delete an existing topic, its queues and the progress of all groups on it.

        Raises:
            StateWriteError: it could not be deleted, or only in part; it can be tried again.
            StoreError: its queues could not be deleted.
        """
        # A caller that hangs up must not leave half a topic behind.
        with trio.CancelScope(shield=True):
            # First the settings, which let clients in. What remains after a crash here is harmless
            # and can be deleted again once the topic is made anew.
            async with self.metadata.topic_deleted(name):
                self.forget_topic(name)
                for _ in self.progress.deleting_topic(name):
                    await trio.lowlevel.checkpoint()
                # In no line, which may be full: then half a topic would be left behind as well.
                await trio.to_thread.run_sync(self.store.delete_topic, name)

    async def delete_group(self, name: str) -> None:
        """Delete an existing group and its progress.

        Raises:
            StateWriteError: it could not be deleted.
        """
        await self.metadata.delete_groups((name,))
        self.forget_group(name)
        for _ in self.progress.deleting_group(name):
            await trio.lowlevel.checkpoint()

    def forget_topic(self, name: str) -> None:
        """Drop what is kept in memory about a topic that was deleted, and tell the listeners."""
        self._next_queue.pop(name, None)
        self.counters.forget(topic=name)
        for listener in self.topic_listeners:
            listener(name)

    def forget_group(self, name: str) -> None:
        """Drop what is kept in memory about a group that was deleted, and tell the listeners."""
        self.client_groups.forget(name)
        self.counters.forget(group=name)
        for listener in self.group_listeners:
            listener(name)


def writable_queues(topic: TopicConfig) -> int:
    """Return how many queues of a topic take messages, 1 or more.

    Raises:
        NotPermittedError: it has none.
    """
    count = topic.write_queue_nums if topic.writable else 0
    if count == 0:
        raise NotPermittedError(f"topic {topic.name} has no writable queue")
    return count


def _check_room(count: int, what: str) -> None:
    if count >= CREATED_BY_CLIENTS_MAX:
        raise TooManyRequestsError(
            f"{what} is not created, because there are {count} already: an operator may create it"
        )
