"""A lock on a file that excludes other programs, and this one's other openings of the file."""

from __future__ import annotations

import fcntl
import os
import struct
from typing import Final, final

_FLOCK: Final = struct.Struct("@hhqqi0q")
"""C's `struct flock`: type, whence, start, length (0: to the end), pid (0 for these locks)."""


def flock(kind: int) -> bytes:
    """Return C's `struct flock` for all of a file, of a kind such as `fcntl.F_WRLCK`."""
    return _FLOCK.pack(kind, os.SEEK_SET, 0, 0, 0)


@final
class RealLock:
    """An open-file-description lock.

    It excludes POSIX locks, such as Java's FileLock, and the other way round. But it belongs to
    this one opening of the file: a POSIX lock belongs to the process, which would get it twice,
    and lose it as soon as it closed any other descriptor of the file, as a copy of the directory
    does.
    """

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd
        _locks.add(self)

    def release(self) -> None:
        """Give it up; the file stays, as RocketMQ leaves it. Nothing in a forked child."""
        if self in _locks:
            _locks.discard(self)
            # Not by closing alone: a child that is forked right now has the descriptor as well.
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, flock(fcntl.F_UNLCK))
            os.close(self._fd)

    def forget(self) -> None:
        """Close a forked child's descriptor, so that no lock outlives the process that took it."""
        _locks.discard(self)
        os.close(self._fd)


_locks: Final[set[RealLock]] = set()
"""The locks that this process holds."""


def _forget_locks() -> None:
    for lock in list(_locks):
        lock.forget()


os.register_at_fork(after_in_child=_forget_locks)
