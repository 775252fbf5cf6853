"""The files of `config/`, which RocketMQ keeps its topics, groups and offsets in.

They are a mirror: the truth is in our databases, and the mirror lets the original open the
directory. It is also the way in. A file without our mark in it was written by RocketMQ (fastjson
neither minds a name it does not know nor writes it back), so it is newer than what we hold.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, final

from commitbus.broker.metadata.documents import (
    Formatted,
    Json,
    JsonObject,
    format_document,
    integer,
    parse_document,
    table,
)
from commitbus.broker.metadata.errors import StateFileError
from commitbus.commitlog.clock import Clock
from commitbus.commitlog.file_system import File, FileSystem, replace_file

CONFIG_DIRECTORY: Final = "config"
OWN_DIRECTORY: Final = "commitbus"
"""Where in a store everything lies that is not RocketMQ's."""

FILE_BYTES_MAX: Final = 256 * 1024 * 1024
"""Half a million topics take that much; a larger file is neither written nor read."""

MARK_KEY: Final = "writtenBy"
"""The mark that a file of `config/` was written by us."""
_MARK: Final = "commitbus"
_MARKED_END: Final = format_document({"": "", MARK_KEY: _MARK}).rpartition(b",")[2]
"""The last bytes of every file that we write."""

Tables = Mapping[str | int, Json | Formatted]

_log: Final = logging.getLogger(__name__)


@final
class ConfigTooLargeError(OSError):
    """The file would be larger than a start reads."""

    def __init__(self, path: Path, size_bytes: int) -> None:
        super().__init__(
            errno.EFBIG,
            f"left out, because it would have {size_bytes} bytes, and at most {FILE_BYTES_MAX} are "
            "read back",
            str(path),
        )


def make_own_directory(store_directory: Path, file_system: FileSystem) -> Path:
    """Return the directory for what is not RocketMQ's, made when it is missing.

    Raises:
        StateFileError: It cannot be made.
    """
    path = store_directory / OWN_DIRECTORY
    try:
        file_system.make_directories(path)
    except OSError as error:
        raise StateFileError(path, f"it cannot be made: {error.strerror}") from error
    return path


@final
class ConfigFile:
    """One of the files. Not thread-safe.

    Args:
        path: Where it lies; its directory is made when first written.
        clock: For the time in its `dataVersion`.
        file_system: What it is read and written through.
    """

    __slots__ = ("_clock", "_document", "_fails", "_file_system", "_too_many", "path")

    def __init__(self, path: Path, *, clock: Clock, file_system: FileSystem) -> None:
        self.path = path
        self._clock, self._file_system = clock, file_system
        self._document: JsonObject = {}
        self._too_many: int | None = None
        self._fails = False

    def load(self, *, backup_too: bool) -> JsonObject | None:
        """Read the file; return its content if RocketMQ wrote it, None if we did or it is absent.

        With `backup_too` RocketMQ's `.bak` counts where the file is missing or empty, as it does
        for RocketMQ itself: while it replaces the file, the backup is all there is.

        Raises:
            StateFileError: It is no such file.
        """
        document = self._read(self.path)
        if document is None and backup_too:
            document = self._read(self.path.with_name(self.path.name + ".bak"))
        self._document = document or {}
        return None if self._document.get(MARK_KEY) == _MARK else document

    def takes(self, entries: int) -> bool:
        """Return False while the file is known to be too large with so many entries.

        A document of 256 MiB takes seconds to make.
        """
        return self._too_many is None or entries < self._too_many

    def try_save(self, tables: Callable[[], Tables], entries: int) -> bool:
        """Save as `save` does and return whether that worked; log the first of several failures."""
        try:
            self.save(tables(), entries)
        except OSError as error:
            if not self._fails:
                extra = {"file": str(self.path), "reason": str(error)}
                _log.warning("mirror not written", extra=extra)
            self._fails = True
            return False
        self._fails = False
        return True

    def save(self, tables: Tables, entries: int) -> None:
        """Replace the tables of the file atomically, and keep everything else in it.

        Args:
            tables: The tables.
            entries: Their number of entries.

        Raises:
            ConfigTooLargeError: It would have more than `FILE_BYTES_MAX` bytes.
            OSError: The old file is still there, whole.
        """
        version = table(self._document, "dataVersion")
        version["counter"] = integer(version, "counter", 0) + 1
        version.setdefault("stateVersion", 0)
        version["timestamp"] = self._clock.now_ms()
        kept = {k: v for k, v in self._document.items() if k not in {"dataVersion", MARK_KEY}}
        # Of the tables only the places: their content is given each time, and may be large.
        places: JsonObject = dict.fromkeys(tables)
        self._document = {"dataVersion": version, **kept, **places, MARK_KEY: _MARK}
        data = format_document({**self._document, **tables})
        if len(data) > FILE_BYTES_MAX:
            self._too_many = entries
            raise ConfigTooLargeError(self.path, len(data))
        replace_file(self.path, data, self._file_system)
        self._too_many = None

    def _read(self, path: Path) -> JsonObject | None:
        if not self._file_system.exists(path):
            return None
        try:
            data = self._read_bytes(path)
            if data is None:
                return {MARK_KEY: _MARK}
            if not data:
                return None
            document = parse_document(data)
            integer(table(document, "dataVersion"), "counter", 0)
            format_document(document)  # infinities and half surrogates can be read, not written
        except ValueError as error:
            raise StateFileError(path, f"it is not as RocketMQ writes it: {error}") from error
        except OSError as error:
            raise StateFileError(path, f"it cannot be read: {error.strerror}") from error
        return document

    def _read_bytes(self, path: Path) -> bytes | None:
        """Return the file's bytes; None for one of ours that is too large to be read."""
        file = self._file_system.open(path, writable=False)
        try:
            if (size := file.size()) <= FILE_BYTES_MAX:
                return file.pread(size, 0)
            if not _is_ours(file, size):
                raise StateFileError(path, f"{size} bytes, at most {FILE_BYTES_MAX} are allowed")
        finally:
            file.close()
        # Earlier versions wrote it without a limit. It only repeats the database.
        _log.warning("mirror not read", extra={"file": str(path), "size_bytes": size})
        return None


def _is_ours(file: File, size_bytes: int) -> bool:
    length = len(_MARKED_END)
    return file.pread(length, size_bytes - length) == _MARKED_END
