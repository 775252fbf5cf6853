"""Who has a store open for writing, and whether the last one who had closed it.

`lock` is held with a POSIX record lock, as Java's FileLock, so RocketMQ and we exclude each other.
Such a lock belongs to the process: a second open in the same process would be granted it, and
closing any descriptor of the file drops it. Hence the registry of what this process holds, which
is asked before the file is touched.

`abort` says that the store is in use, or was when its process died. Its content is the pid.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Final, final

from commitbus.broker.store.layout import ABORT, LOCK
from commitbus.commitlog.errors import FlushFailedError, StoreLockedError
from commitbus.commitlog.file_system import FileSystem, Lock

_LOCK_CONTENT: Final = b"lock"

_held: set[Path] = set()
_held_guard = threading.Lock()


@final
class Ownership:
    """The right to write to a store, held until `release`."""

    __slots__ = ("_file_system", "_lock", "_real_path", "_store")

    def __init__(self, store: Path, file_system: FileSystem) -> None:
        """Take the right.

        Raises:
            StoreLockedError: Somebody else has it, in this process or another.
            OSError: The lock file cannot be opened.
        """
        self._store, self._file_system = store, file_system
        self._real_path = store.resolve()
        with _held_guard:
            if self._real_path in _held:
                raise StoreLockedError(store)
            self._lock = self._take_lock()
            _held.add(self._real_path)

    def _take_lock(self) -> Lock:
        path = self._store / LOCK
        # Before the lock is taken, because closing this descriptor would drop it.
        file = self._file_system.open(path, create=True)
        try:
            if file.size() == 0:
                file.pwrite(_LOCK_CONTENT, 0)
        finally:
            file.close()
        lock = self._file_system.lock(path)
        if lock is None:
            raise StoreLockedError(self._store)
        return lock

    def mark_in_use(self) -> None:
        """Make the abort file, durably, with this process's pid."""
        file = self._file_system.open(self._store / ABORT, create=True)
        try:
            pid = str(os.getpid()).encode()
            file.truncate(0)
            file.pwrite(pid, 0)
            file.sync_data()
        finally:
            file.close()
        self._file_system.sync_directory(self._store)

    def mark_closed(self) -> None:
        """Remove the abort file, durably: everything is flushed.

        Raises:
            FlushFailedError: It failed. The next start takes the store as it finds it.
        """
        try:
            self._file_system.remove(self._store / ABORT)
            self._file_system.sync_directory(self._store)
        except OSError as error:
            raise FlushFailedError(self._store, error) from error

    def release(self) -> None:
        """Give the right up."""
        with _held_guard:
            self._lock.release()
            _held.discard(self._real_path)
