"""One kind of setting (topics, or groups): its SQLite table, its copy in memory, its mirror."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar, final

from sqlite_utils import Database

from commitbus.broker.metadata.documents import (
    DocumentError,
    Json,
    JsonObject,
    format_document,
    parse_document,
    table,
)
from commitbus.broker.metadata.errors import StateFileError, StateWriteError
from commitbus.broker.metadata.groups import GroupConfig
from commitbus.broker.metadata.names import IllegalNameError
from commitbus.broker.metadata.rocketmq_config import ConfigFile, Tables
from commitbus.broker.metadata.sqlite_thread import SqliteThread
from commitbus.broker.metadata.topics import TopicConfig

Config = TypeVar("Config", TopicConfig, GroupConfig)

_log = logging.getLogger(__name__)


@final
class SettingTable(Generic[Config]):
    """Settings by name. Read and changed by the trio thread, stored by the SQLite thread.

    A setting is kept as the JSON object that RocketMQ has for it: a field that a later version
    adds needs no new column, and one that only RocketMQ knows is not lost.

    Args:
        name: The SQLite table, with the columns `name` and `config`.
        mirror: RocketMQ's file.
        mirror_key: Where in the file the settings are.
        validate: Raises `IllegalNameError` for a name that a store cannot hold.
        decode: Makes a setting of its name and its JSON object, or raises `DocumentError`.
        encode: The other way round.
    """

    def __init__(
        self,
        name: str,
        mirror: ConfigFile,
        mirror_key: str,
        *,
        validate: Callable[[str], None],
        decode: Callable[[str, Json], Config],
        encode: Callable[[Config], JsonObject],
    ) -> None:
        self._name, self._mirror, self._mirror_key = name, mirror, mirror_key
        self._validate = validate
        self._decode: Callable[[str, Json], Config] = decode
        self._encode: Callable[[Config], JsonObject] = encode
        self.configs: dict[str, Config] = {}
        # An entry is replaced, never changed, because the SQLite thread reads it for the mirror.
        self._entries: dict[str, JsonObject] = {}
        self._mirror_is_behind = False

    def load(self, database: Database, path: Path) -> None:
        """Fill the memory from the database, or both from a file that RocketMQ wrote.

        Raises:
            StateFileError: A row or the file is not as it should be.
            StateWriteError: What was imported cannot be marked as such.
        """
        try:
            rows = list(database.table(self._name).rows_where(order_by="name"))
        except sqlite3.Error as error:
            raise StateFileError(path, f"it is damaged: {error}") from error
        imported = self._mirror.load(backup_too=not rows)
        self._mirror_is_behind = True
        if imported is None:
            for row in rows:
                self._fill(path, row["name"], _parse(path, row["config"]))
            return
        for name, entry in _entries(self._mirror.path, imported, self._mirror_key).items():
            self._fill(self._mirror.path, str(name), entry)
        with database.atomic():
            database.table(self._name).delete_where()
            database.table(self._name).insert_all(map(_row, self._entries, self._entries.values()))
        # At once, or not at all: found without our mark again, the file would undo later changes.
        try:
            self._mirror.save(self._mirrored(), len(self._entries))
        except OSError as error:
            raise StateWriteError(self._mirror.path, str(error)) from error
        _log.info(
            "settings imported", extra={"file": str(self._mirror.path), "count": len(self.configs)}
        )

    async def put(self, config: Config, thread: SqliteThread) -> None:
        """Store a setting, then show it. Not to be called again before it returns."""
        self._validate(config.name)
        if self.configs.get(config.name) == config:
            return
        entry = {**self._entries.get(config.name, {}), **self._encode(config)}
        row = _row(config.name, entry)
        await thread.run(lambda database: database.table(self._name).upsert(row, pk="name"))
        self.configs[config.name], self._entries[config.name] = config, entry
        self._mirror_is_behind = True

    async def add(self, config: Config, thread: SqliteThread) -> Config:
        """Store a setting unless there is one of its name; return the one that there is then."""
        if (known := self.configs.get(config.name)) is not None:
            return known
        await self.put(config, thread)
        return config

    async def delete(self, *names: str, thread: SqliteThread) -> None:
        """Remove settings for good, all or none. Not to be called again before it returns."""
        known = [name for name in names if name in self.configs]
        if not known:
            return

        def delete(database: Database) -> None:
            for name in known:
                database.table(self._name).delete(name)

        await thread.run(delete)
        for name in known:
            del self.configs[name], self._entries[name]
        self._mirror_is_behind = True

    def write_mirror(self) -> None:
        """Bring RocketMQ's file up to date, on the SQLite thread. A failure is tried again."""
        if self._mirror_is_behind and self._mirror.takes(len(self._entries)):
            saved = self._mirror.try_save(self._mirrored, len(self._entries))
            self._mirror_is_behind = self._mirror_is_behind or not saved

    def _mirrored(self) -> Tables:
        self._mirror_is_behind = False  # before the copy: a change after it sets it again
        return {self._mirror_key: dict[str | int, Json](self._entries.copy().items())}

    def _fill(self, path: Path, name: str, entry: Json) -> None:
        try:
            self._validate(name)
            self.configs[name] = self._decode(name, entry)
        except (DocumentError, IllegalNameError) as error:
            raise StateFileError(path, f"{self._name}: {error}") from error
        assert isinstance(entry, dict), "decode refuses anything else"
        self._entries[name] = entry


def _row(name: str, entry: JsonObject) -> dict[str, str]:
    return {"name": name, "config": format_document(entry).decode()}


def _parse(path: Path, text: str) -> JsonObject:
    try:
        return parse_document(str(text).encode())
    except DocumentError as error:
        raise StateFileError(path, f"a row is damaged: {error}") from error


def _entries(path: Path, document: JsonObject, key: str) -> JsonObject:
    try:
        return table(document, key)
    except DocumentError as error:
        raise StateFileError(path, str(error)) from error
