"""Who has a store open for writing, and whether the last one who had closed it.

`lock` is held with a lock that excludes RocketMQ's, other processes, and a second open in this one.

`abort` says that the store is in use, or was when its process died. It is there before anything
else in the store changes, and goes last. Its content is the pid.
"""

from __future__ import annotations

import errno
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Final, final

from commitbus.broker.store.layout import ABORT, LOCK, NOTES, was_closed_cleanly
from commitbus.commitlog.errors import FlushFailedError, StoreLockedError
from commitbus.commitlog.file_system import FileSystem
from commitbus.commitlog.mapped_file import raise_refusal

_LOCK_CONTENT: Final = b"lock"
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


@final
class Ownership:
    """The right to write to a store, held until `release`."""

    __slots__ = ("_file_system", "_lock", "_store")

    def __init__(self, store: Path, file_system: FileSystem) -> None:
        """Take the right.

        Raises:
            StoreLockedError: Somebody else has it, in this process or another.
            DiskFullError: There is no room for the lock file.
            OSError: The lock file cannot be opened.
        """
        self._store, self._file_system = store, file_system
        path = store / LOCK
        try:
            lock = file_system.lock(path)
            if lock is None:
                raise StoreLockedError(store)
            self._lock = lock
            try:
                self._fill(LOCK, _LOCK_CONTENT, replaces=False)
            except BaseException:
                self.release()
                raise
        except OSError as error:
            raise_refusal(error, path, len(_LOCK_CONTENT))
            raise

    def mark_in_use(self) -> None:
        """Make the abort file, durably, with this process's pid.

        It needs no block on the disk: a full one may have a store opened, whose retention then
        makes room.

        Raises:
            DiskFullError: There is no room for the file's name.
            FlushFailedError: It could not be made durable.
            OSError: It cannot be made.
        """
        path = self._store / ABORT
        try:
            self._fill(ABORT, str(os.getpid()).encode(), replaces=True)
            self._file_system.sync_directory(self._store)
        except OSError as error:
            raise_refusal(error, path, 1)
            if error.filename is not None:
                raise
            raise FlushFailedError(path, error) from error

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
        self._lock.release()

    def _fill(self, name: str, content: bytes, *, replaces: bool) -> None:
        """Make a marker file, with its content as far as there is room."""
        file = self._file_system.open(self._store / name, create=True)
        try:
            if replaces or file.size() == 0:
                file.truncate(0)
                file.pwrite(content, 0)
                file.sync_data()
        except OSError as error:
            if error.errno not in _FULL:
                raise
        finally:
            file.close()


def take_over(directory: Path, file_system: FileSystem, undo: ExitStack) -> tuple[Ownership, bool]:
    """Own a store, marked as in use; return whether the last writer had closed it, too.

    `undo` gives it up should the start fail later. Raises as `Ownership` and its `mark_in_use`.
    """
    ownership = Ownership(directory, file_system)
    undo.callback(ownership.release)
    # The mark comes before any change, so that the next start sees if this one is killed.
    is_clean = was_closed_cleanly(directory, file_system)
    # The name of the notes' directory becomes durable with the mark.
    file_system.make_directories(directory / NOTES)
    ownership.mark_in_use()
    return ownership, is_clean
