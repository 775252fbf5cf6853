"""Topics and groups in memory: the smallest implementation of the Protocol."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from typing import final

import trio

from commitbus.broker.metadata.groups import GroupConfig
from commitbus.broker.metadata.names import validate_stored_group, validate_stored_topic
from commitbus.broker.metadata.topics import TopicConfig
from commitbus.commitlog.errors import StoreClosedError, StoreError


@final
class Saved:
    """What outlives a process."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicConfig] = {}
        self.groups: dict[str, GroupConfig] = {}


@final
class MetadataInMemory:
    """The store; a change takes one step of the event loop."""

    def __init__(self, saved: Saved) -> None:
        self._saved, self._writing, self._is_closed = saved, trio.Lock(), False

    @property
    def topic_count(self) -> int:
        return len(self._saved.topics)

    @property
    def group_count(self) -> int:
        return len(self._saved.groups)

    def topic(self, name: str) -> TopicConfig | None:
        return self._saved.topics.get(name)

    def topics(self) -> list[TopicConfig]:
        return list(self._saved.topics.values())

    def group(self, name: str) -> GroupConfig | None:
        return self._saved.groups.get(name)

    def groups(self) -> list[GroupConfig]:
        return list(self._saved.groups.values())

    async def put_topic(self, config: TopicConfig) -> None:
        validate_stored_topic(config.name)
        async with self._change():
            self._saved.topics[config.name] = config

    async def add_topic(self, config: TopicConfig) -> TopicConfig:
        validate_stored_topic(config.name)
        async with self._change():
            return self._saved.topics.setdefault(config.name, config)

    @asynccontextmanager
    async def topic_deleted(self, name: str) -> AsyncIterator[None]:
        async with self._change():
            self._saved.topics.pop(name, None)
            yield

    async def put_group(self, config: GroupConfig) -> None:
        validate_stored_group(config.name)
        async with self._change():
            self._saved.groups[config.name] = config

    async def add_group(self, config: GroupConfig) -> GroupConfig:
        validate_stored_group(config.name)
        async with self._change():
            return self._saved.groups.setdefault(config.name, config)

    async def delete_groups(self, names: Collection[str]) -> None:
        async with self._change():
            for name in names:
                self._saved.groups.pop(name, None)

    @asynccontextmanager
    async def _change(self) -> AsyncIterator[None]:
        async with self._writing:
            await trio.lowlevel.checkpoint()
            if self._is_closed:
                raise StoreClosedError
            yield

    def add_failure_listener(self, listener: Callable[[StoreError], None]) -> None:
        """Nothing here fails."""

    def close(self) -> None:
        self._is_closed = True
