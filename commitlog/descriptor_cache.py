"""A bound on how many files are open at a time.

A process may have about a thousand open files unless the limit was raised. A terabyte of log has
as many segments, and 10,000 queues have tens of thousands of files.
"""

from __future__ import annotations

import resource
from typing import Protocol, final

from commitbus.commitlog.threads import SYSTEM_THREADS, Threads


class Closable(Protocol):
    """A file that opens itself when it is needed, and can be closed meanwhile."""

    recently_used: bool
    """Set with each use. The file never clears it."""
    must_stay_open: bool
    """Whether it has bytes that are not durable yet: only a descriptor that was open during a
    failed write-back is certain to report it."""

    def release_descriptor(self) -> None:
        """Give up the descriptor. Reads that are under way keep it until they end."""


def quarter_of_descriptors(most: int) -> int:
    """Return a quarter of the files that this process may open, at least 1 and no more than `most`.

    Sockets, and other files, need descriptors, too.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if limit == resource.RLIM_INFINITY else max(1, min(limit // 4, most))


@final
class DescriptorCache:
    """Closes a file that was not used lately whenever more than `files_max` would be open.

    Second chance: files are looked at in the order in which they were opened; one that was used
    since it was last looked at goes to the end. A use sets a mark and takes no lock.
    """

    __slots__ = ("_open", "files_max", "lock")

    def __init__(self, files_max: int, threads: Threads = SYSTEM_THREADS) -> None:
        assert files_max > 0
        self.files_max = files_max
        self.lock = threads.lock()
        """Held by callers of the methods below, and while a file is opened or closed."""
        self._open: dict[Closable, None] = {}

    def __len__(self) -> int:
        """Return how many files are open."""
        return len(self._open)

    def add(self, file: Closable) -> None:
        """Note that a file was opened, and close another if that is one too many.

        With `files_max` files that must stay open, there is one more.
        """
        for _ in range(2 * len(self._open)):
            if len(self._open) < self.files_max:
                break
            oldest = next(iter(self._open))
            del self._open[oldest]
            if oldest.recently_used or oldest.must_stay_open:
                oldest.recently_used = False
                self._open[oldest] = None
            else:
                oldest.release_descriptor()
        self._open[file] = None

    def forget(self, file: Closable) -> None:
        """Note that a file is open no more."""
        self._open.pop(file, None)
