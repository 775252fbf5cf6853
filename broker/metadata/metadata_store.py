"""The topics and consumer groups that there are, wherever they are kept."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from commitbus.broker.metadata.groups import GroupConfig
from commitbus.broker.metadata.topics import TopicConfig
from commitbus.commitlog.errors import StoreError


class MetadataStore(Protocol):
    """Topics and groups. Reads come from memory and never wait.

    A change is durable before its call returns, and visible from then on; changes become visible
    in the order in which they became durable. Each raises StateWriteError when it could not be
    written, and then nothing has changed. For one trio thread; `close` needs no trio.
    """

    @property
    def topic_count(self) -> int:
        """The number of topics."""

    @property
    def group_count(self) -> int:
        """The number of groups."""

    def topic(self, name: str) -> TopicConfig | None:
        """Return a topic's settings, None when there is no such topic."""

    def topics(self) -> list[TopicConfig]:
        """Return the settings of all topics, RocketMQ's system topics among them."""

    def group(self, name: str) -> GroupConfig | None:
        """Return a group's settings, None when there is no such group."""

    def groups(self) -> list[GroupConfig]:
        """Return the settings of all groups, RocketMQ's system groups among them."""

    async def put_topic(self, config: TopicConfig) -> None:
        """Create a topic or change its settings.

        Raises:
            IllegalNameError: A store cannot hold a topic of this name.
        """

    async def add_topic(self, config: TopicConfig) -> TopicConfig:
        """Create a topic unless there is one of its name; return the one that there is then.

        Raises: As `put_topic`.
        """

    def topic_deleted(self, name: str) -> AbstractAsyncContextManager[None]:
        """Remove a topic's settings, if it has any, before the block begins.

        While the block runs no change is made, so that the topic is not created again before the
        block has removed everything else that belonged to it.
        """

    async def put_group(self, config: GroupConfig) -> None:
        """Create a group or change its settings.

        Raises:
            IllegalNameError: A store cannot hold a group of this name.
        """

    async def add_group(self, config: GroupConfig) -> GroupConfig:
        """Create a group unless there is one of its name; return the one that there is then.

        Raises: As `put_group`.
        """

    async def delete_groups(self, names: Collection[str]) -> None:
        """Remove the settings of groups, of all or of none, with one write."""

    def add_failure_listener(self, listener: Callable[[StoreError], None]) -> None:
        """Call `listener`, once, on another thread, should the store fail for good."""

    def close(self) -> None:
        """Keep what is there for reading, and take no more changes. A second call does nothing."""
