"""A bound on how many files are mapped at a time.

A mapping holds a descriptor of its own, and the kernel allows a process 65,530 mappings. A log has
few files, but 10,000 queues have tens of thousands.
"""

from __future__ import annotations

import threading
from typing import Protocol, final


class Unmappable(Protocol):
    """A file that maps itself when it is needed, and can be unmapped meanwhile."""

    recently_used: bool
    """Set with each use. It is not cleared by the file."""

    def unmap(self) -> None:
        """Let go of the mapping. Views that somebody holds keep theirs alive until they end."""


@final
class MappingCache:
    """Unmaps a file that was not used lately whenever there would be more than `files_max`.

    Second chance: files are looked at in the order in which they were mapped; one that was used
    since it was looked at last goes to the end. A use costs the setting of a mark, not a lock.
    """

    __slots__ = ("_mapped", "files_max", "lock")

    def __init__(self, files_max: int) -> None:
        assert files_max > 0
        self.files_max = files_max
        self.lock = threading.Lock()
        """Held by the caller of the methods below, and while a file is mapped."""
        self._mapped: dict[Unmappable, None] = {}

    def __len__(self) -> int:
        """Return how many files are mapped."""
        return len(self._mapped)

    def add(self, file: Unmappable) -> None:
        """Note that a file was mapped, and unmap another if that is one too many."""
        while len(self._mapped) >= self.files_max:
            oldest = next(iter(self._mapped))
            del self._mapped[oldest]
            if oldest.recently_used:
                oldest.recently_used = False
                self._mapped[oldest] = None
            else:
                oldest.unmap()
        self._mapped[file] = None

    def forget(self, file: Unmappable) -> None:
        """Note that a file is mapped no more."""
        self._mapped.pop(file, None)
