"""Topics and consumer groups in SQLite, with a copy in memory for reading.

`config/topics.json` and `config/subscriptionGroup.json` follow a change within a second, at the
latest at the close.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, final

import trio
from sqlite_utils import Database

from commitbus.broker.metadata.groups import GroupConfig, decode_group, encode_group
from commitbus.broker.metadata.names import validate_stored_group, validate_stored_topic
from commitbus.broker.metadata.rocketmq_config import (
    CONFIG_DIRECTORY,
    ConfigFile,
    make_own_directory,
)
from commitbus.broker.metadata.setting_table import SettingTable
from commitbus.broker.metadata.sqlite_thread import Schema, SqliteThread
from commitbus.broker.metadata.topics import TopicConfig, decode_topic, encode_topic
from commitbus.commitlog.clock import Clock
from commitbus.commitlog.errors import StoreError
from commitbus.commitlog.file_system import FileSystem

MIRROR_INTERVAL_S: Final = 1.0
"""Written for every change, the mirror of 10,000 new topics would be 12 GB."""

SCHEMA: Final = Schema(
    application_id=int.from_bytes(b"CBmd"),
    version=1,
    statements="""
        CREATE TABLE topics (name TEXT PRIMARY KEY, config TEXT NOT NULL);
        CREATE TABLE groups (name TEXT PRIMARY KEY, config TEXT NOT NULL)
    """,
)


@final
class SqliteMetadata:
    """The `MetadataStore` of a store on this machine. Opening needs no trio.

    Opening imports what RocketMQ wrote to `config/` since we last did.

    Args:
        store_directory: The store; `commitbus/metadata.db` below it is made when missing.
        clock: For the time in the mirrors.
        file_system: What the mirrors are read and written through.

    Raises:
        StateFileError: The database or a file of `config/` is not what it should be.
        StateVersionError: The database was written by a newer commitbus.
        StateWriteError: The disk does not take what was imported.
    """

    def __init__(self, store_directory: Path, *, clock: Clock, file_system: FileSystem) -> None:
        config = store_directory / CONFIG_DIRECTORY
        self._topics = SettingTable[TopicConfig](
            "topics",
            ConfigFile(config / "topics.json", clock=clock, file_system=file_system),
            "topicConfigTable",
            validate=validate_stored_topic,
            decode=decode_topic,
            encode=encode_topic,
        )
        self._groups = SettingTable[GroupConfig](
            "groups",
            ConfigFile(config / "subscriptionGroup.json", clock=clock, file_system=file_system),
            "subscriptionGroupTable",
            validate=validate_stored_group,
            decode=decode_group,
            encode=encode_group,
        )
        # Memory must change in the order in which the database did.
        self._writing = trio.Lock()
        self._thread = SqliteThread(
            make_own_directory(store_directory, file_system) / "metadata.db",
            schema=SCHEMA,
            sync_commits=True,
            tick=self._write_mirrors,
            tick_interval_s=MIRROR_INTERVAL_S,
        )
        try:
            self._thread.run_sync(self._load)
        except BaseException:
            self._thread.close()
            raise

    def topic(self, name: str) -> TopicConfig | None:
        """See `MetadataStore.topic`."""
        return self._topics.configs.get(name)

    def topics(self) -> list[TopicConfig]:
        """See `MetadataStore.topics`."""
        return list(self._topics.configs.values())

    @property
    def topic_count(self) -> int:
        """See `MetadataStore.topic_count`."""
        return len(self._topics.configs)

    @property
    def group_count(self) -> int:
        """See `MetadataStore.group_count`."""
        return len(self._groups.configs)

    def group(self, name: str) -> GroupConfig | None:
        """See `MetadataStore.group`."""
        return self._groups.configs.get(name)

    def groups(self) -> list[GroupConfig]:
        """See `MetadataStore.groups`."""
        return list(self._groups.configs.values())

    async def put_topic(self, config: TopicConfig) -> None:
        """See `MetadataStore.put_topic`."""
        async with self._writing:
            await self._topics.put(config, self._thread)

    async def add_topic(self, config: TopicConfig) -> TopicConfig:
        """See `MetadataStore.add_topic`."""
        async with self._writing:
            return await self._topics.add(config, self._thread)

    @asynccontextmanager
    async def topic_deleted(self, name: str) -> AsyncIterator[None]:
        """See `MetadataStore.topic_deleted`."""
        async with self._writing:
            await self._topics.delete(name, thread=self._thread)
            yield

    async def put_group(self, config: GroupConfig) -> None:
        """See `MetadataStore.put_group`."""
        async with self._writing:
            await self._groups.put(config, self._thread)

    async def add_group(self, config: GroupConfig) -> GroupConfig:
        """See `MetadataStore.add_group`."""
        async with self._writing:
            return await self._groups.add(config, self._thread)

    async def delete_groups(self, names: Collection[str]) -> None:
        """See `MetadataStore.delete_groups`."""
        async with self._writing:
            await self._groups.delete(*names, thread=self._thread)

    def add_failure_listener(self, listener: Callable[[StoreError], None]) -> None:
        """See `MetadataStore.add_failure_listener`."""
        self._thread.add_failure_listener(listener)

    def close(self) -> None:
        """See `MetadataStore.close`."""
        self._thread.close(last=self._write_mirrors)

    def _load(self, database: Database) -> None:
        self._topics.load(database, self._thread.path)
        self._groups.load(database, self._thread.path)

    def _write_mirrors(self, _: Database) -> None:
        self._topics.write_mirror()
        self._groups.write_mirror()
