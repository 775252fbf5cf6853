"""The slots of an index file that is appended to, held in memory.

Their pages are written in random order, thousands of them a second: each by itself would be a call,
and in a mapping a page that the disk does not give back would end the process.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, final

import numpy as np
import numpy.typing as npt

from commitbus.commitlog.file_system import File
from commitbus.indexfile.index_format import HEADER_BYTES, SLOT, SLOT_BYTES, SLOT_DTYPE

PAGE_BYTES: Final = 4096
_WRITE_PAGES: Final = 256
"""Written with one call: puts wait for no more than that, half a millisecond."""


@final
class Slots:
    """All slots of a file, and the pages of the file that have changed slots.

    Attributes:
        view: The slots as they are in the file, 4 bytes each.
        changed_pages: A byte for each page of the file, from its first one on: 1 if it is to be
            written.
    """

    def __init__(self, slot_count: int) -> None:
        """Make empty slots. They take memory only where they are used."""
        self._bytes = np.zeros(SLOT_BYTES * slot_count, np.uint8)
        self._pages = np.zeros(-(-(HEADER_BYTES + len(self._bytes)) // PAGE_BYTES), np.uint8)
        self.view: Final[memoryview] = self._bytes.data
        self.changed_pages: Final[memoryview] = self._pages.data
        self._slot_count = slot_count

    @classmethod
    def of(cls, values: npt.NDArray[np.int32]) -> Slots:
        """Return slots with these values, taken for those that are in the file."""
        slots = cls(len(values))
        slots._bytes.view(SLOT_DTYPE)[:] = values
        return slots

    def head(self, key_hash: int) -> int:
        """Return the newest entry of the chain that a hash belongs to, 0 for none."""
        index: int = SLOT.unpack_from(self.view, SLOT_BYTES * (key_hash % self._slot_count))[0]
        return index

    def set_head(self, key_hash: int, index: int) -> None:
        """Make an entry the newest of the chain that a hash belongs to."""
        position = SLOT_BYTES * (key_hash % self._slot_count)
        SLOT.pack_into(self.view, position, index)
        self.changed_pages[(HEADER_BYTES + position) // PAGE_BYTES] = 1

    def must_be_written(self, found: npt.NDArray[np.int32]) -> None:
        """Have all pages written but those that are zero and are found so in the file.

        A page may look right in memory and not have reached the disk: a failed sync leaves such.
        """
        used = (self._bytes.view(SLOT_DTYPE) != 0) | (found != 0)
        positions = HEADER_BYTES + SLOT_BYTES * np.flatnonzero(used)
        self._pages[positions // PAGE_BYTES] = 1

    @property
    def are_written(self) -> bool:
        """Whether the file has them as they are."""
        return not self._pages.any()

    def changed_runs(self) -> Iterator[range]:
        """Yield the pages that differ now, next to each other and not too many at a time."""
        changed = np.flatnonzero(self._pages)
        for run in np.split(changed, np.flatnonzero(np.diff(changed) != 1) + 1):
            for first in range(0, len(run), _WRITE_PAGES):
                part = run[first : first + _WRITE_PAGES]
                yield range(int(part[0]), int(part[-1]) + 1)

    def write(self, pages: range, file: File) -> None:
        """Write some pages as they are now."""
        start = max(pages.start * PAGE_BYTES, HEADER_BYTES)
        end = min(pages.stop * PAGE_BYTES, HEADER_BYTES + len(self._bytes))
        file.pwrite(self.view[start - HEADER_BYTES : end - HEADER_BYTES], start)
        self._pages[pages.start : pages.stop] = 0
