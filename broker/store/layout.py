"""What lies where in a store directory, and what its files tell about their own sizes."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from commitbus.broker.store.config import StoreConfig
from commitbus.commitlog.errors import NotAStoreError
from commitbus.commitlog.file_system import FileSystem
from commitbus.indexfile.index_format import index_file_bytes, is_file_name
from commitbus.indexfile.index_sizes import find_sizes, sizes_by_ratio

LOG: Final = "commitlog"
QUEUES: Final = "consumequeue"
INDEX: Final = "index"
CHECKPOINT: Final = "checkpoint"
ABORT: Final = "abort"
LOCK: Final = "lock"
NOTES: Final = "commitbus"
"""What RocketMQ knows nothing of."""
CUT: Final = Path(NOTES, "cut")
"""Where recovery puts aside what it cuts from the log."""
UNFINISHED: Final = "salvage-unfinished"
"""Where salvage makes a store. It moves up from there when it is whole, the log last, so that until
then nothing takes the directory for a store: no broker, no RocketMQ, no Spark."""

_MADE: Final = frozenset({UNFINISHED, QUEUES, INDEX, CHECKPOINT, LOCK, "config", "commitbus"})
"""Names that an unfinished salvage may leave in a directory."""
_DIRECTORIES: Final = (LOG, QUEUES, INDEX)
_FILES: Final = (CHECKPOINT, ABORT, LOCK)
_BEFORE_THE_LOG: Final = frozenset({*_DIRECTORIES, *_FILES, "config", "commitbus", "lost+found"})
"""What may lie in a directory that becomes a store: traces of a start that did not get far, state
that the broker opens first, and what a fresh file system has in its root."""


def check_directory(store: Path, file_system: FileSystem, *, may_be_new: bool) -> None:
    """Refuse a directory that is no store, before anything in it is touched.

    Raises:
        NotAStoreError: It is a file, holds other things, or is missing though it `may_be_new` not.
    """
    if not file_system.is_directory(store):
        if file_system.exists(store):
            raise NotAStoreError(store, "it is a file")
        if not may_be_new:
            raise NotAStoreError(store, "there is no such directory")
        return
    names = file_system.list_names(store)
    for name in names:
        is_directory = file_system.is_directory(store / name)
        if name in _DIRECTORIES and not is_directory:
            raise NotAStoreError(store, f"{name} is a file, not a directory")
        if name in _FILES and is_directory:
            raise NotAStoreError(store, f"{name} is a directory, not a file")
    if LOG not in names:
        _check_new(store, names, may_be_new=may_be_new)


def _check_new(store: Path, names: list[str], *, may_be_new: bool) -> None:
    """Refuse a directory without a log that may not become a store, or must not."""
    if UNFINISHED in names:
        raise NotAStoreError(store, "a salvage into it did not finish; run it again")
    if not may_be_new:
        raise NotAStoreError(store, f"it has no directory {LOG}")
    strangers = [name for name in names if name not in _BEFORE_THE_LOG]
    if strangers:
        raise NotAStoreError(
            store,
            f"it has no directory {LOG}, but holds {strangers[0]!r}; name an empty or a new "
            "directory to make a store there",
        )


def make_directory(store: Path, file_system: FileSystem) -> None:
    """Make the store's directory and its log's where they are missing, durably.

    A file is as durable as the names that lead to it.
    """
    path, missing = store / LOG, []
    while not file_system.exists(path):
        missing.append(path)
        path = path.parent
    # Somebody may have been killed after making `path` and before its name was durable. Who is not
    # allowed to look at what is above did not make it.
    with suppress(PermissionError):
        file_system.sync_directory(path.parent)
    # One by one: whenever this ends, only the last one may still lack its name.
    for made in reversed(missing):
        file_system.make_directories(made)
        file_system.sync_directory(made.parent)
    _check_case(store, file_system)


def _check_case(store: Path, file_system: FileSystem) -> None:
    """Refuse a file system on which names that differ in upper and lower case only are the same.

    Consume queues lie in directories named by their topics: those of `orders` and `Orders` would
    overwrite each other.

    Raises:
        NotAStoreError: The store lies on such a file system.
    """
    other = LOG.upper()
    if file_system.exists(store / other) and other not in file_system.list_names(store):
        raise NotAStoreError(
            store,
            "its file system takes upper and lower case for the same, so that topics whose names "
            "differ in that only would share their queues; use another file system",
        )


def was_closed_cleanly(store: Path, file_system: FileSystem) -> bool:
    """Return whether no process has the store open for writing, or was killed with it open."""
    return not file_system.exists(store / ABORT)


def sizes_on_disk(store: Path, config: StoreConfig, file_system: FileSystem) -> StoreConfig:
    """Return `config` with the sizes that the store's files have, where there are any.

    RocketMQ insists on being configured with them, and cuts the log at the first file that
    differs. Nothing is gained by letting a number in a file decide over files that exist.
    """
    index_slots, index_entries = _index_numbers(store / INDEX, config, file_system)
    return replace(
        config,
        log_file_bytes=_log_file_bytes(store / LOG, file_system, config.log_file_bytes),
        queue_file_bytes=_queue_file_bytes(store / QUEUES, file_system, config.queue_file_bytes),
        index_slots=index_slots,
        index_entries=index_entries,
    )


def _log_file_bytes(directory: Path, file_system: FileSystem, configured: int) -> int:
    """Return the size of the log's files.

    A first and only file that is short and without a record is one whose allocation was
    interrupted, and its size is ignored. A single file that is not the first is left by retention.
    """
    paths = _offset_files(directory, file_system)
    if not paths:
        return configured
    file = file_system.open(paths[0], writable=False)
    try:
        size = file.size()
        is_first = len(paths) == 1 and int(paths[0].name) == 0
        is_unused = is_first and not any(file.pread(4, 0))
    finally:
        file.close()
    return configured if size == 0 or (is_unused and size < configured) else size


def _queue_file_bytes(directory: Path, file_system: FileSystem, configured: int) -> int:
    """Return the size of the first queue file that has one."""
    for topic in file_system.list_names(directory):
        if not file_system.is_directory(directory / topic):
            continue
        for queue_id in file_system.list_names(directory / topic):
            for path in _offset_files(directory / topic / queue_id, file_system)[:1]:
                if size := _size(path, file_system):
                    return size
    return configured


def _offset_files(directory: Path, file_system: FileSystem) -> list[Path]:
    """Return the files that are named by their base offset, in order."""
    if not file_system.is_directory(directory):
        return []
    names = file_system.list_names(directory)
    paths = (directory / name for name in names if len(name) == 20 and name.isdecimal())
    return [path for path in paths if not file_system.is_directory(path)]


def _index_numbers(
    directory: Path, config: StoreConfig, file_system: FileSystem
) -> tuple[int, int]:
    """Return (slots, entries) of the index files, as the first that holds a key tells them.

    If none does, the configured ones; or, if these do not give the size that the files have, those
    with RocketMQ's ratio.
    """
    configured = (config.index_slots, config.index_entries)
    names = filter(is_file_name, file_system.list_names(directory))
    paths = [path for name in names if not file_system.is_directory(path := directory / name)]
    for path in paths:
        if sizes := find_sizes(path, file_system, configured):
            return sizes
    size = _size(paths[0], file_system) if paths else 0
    if size in (0, index_file_bytes(*configured)):
        return configured
    return sizes_by_ratio(size) or configured


def _size(path: Path, file_system: FileSystem) -> int:
    if file_system.is_directory(path):
        return 0
    file = file_system.open(path, writable=False)
    try:
        return file.size()
    finally:
        file.close()


def tree_bytes(directory: Path, file_system: FileSystem) -> int:
    """Return the summed sizes of the files in a directory and below."""
    total = 0
    for name in file_system.list_names(directory):
        path = directory / name
        try:
            is_directory = file_system.is_directory(path)
            total += tree_bytes(path, file_system) if is_directory else _size(path, file_system)
        except FileNotFoundError:
            continue  # Deleted while it was being counted.
    return total


def remove_tree(path: Path, file_system: FileSystem) -> None:
    """Remove a file, or a directory with all that is in it."""
    if file_system.is_directory(path):
        for name in file_system.list_names(path):
            remove_tree(path / name, file_system)
    file_system.remove(path)


def publish(store: Path, file_system: FileSystem) -> None:
    """Move what salvage has made in `store` / UNFINISHED to where a store has it, durably.

    Killed before the log has moved, it leaves no store, and behind that a whole one.
    """
    source = store / UNFINISHED
    for name in file_system.list_names(source):
        if name != LOG:
            file_system.rename(source / name, store / name)
    file_system.sync_directory(store)
    file_system.rename(source / LOG, store / LOG)
    file_system.sync_directory(store)
    file_system.sync_directory(source)
    file_system.remove(source)
    file_system.sync_directory(store)


def is_unpublished(store: Path, file_system: FileSystem) -> bool:
    """Return whether all that lies in `store` is what an unfinished salvage into it left."""
    names = file_system.list_names(store)
    return UNFINISHED in names and LOG not in names and _MADE.issuperset(names)


def remove_unpublished(store: Path, file_system: FileSystem) -> None:
    """Remove what an unfinished salvage left, if there is any."""
    if is_unpublished(store, file_system):
        names = file_system.list_names(store)
        # UNFINISHED last: without it, what is left could pass for a new store.
        for name in sorted(names, key=lambda name: name == UNFINISHED):
            remove_tree(store / name, file_system)
