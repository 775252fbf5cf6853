"""Following the chain of a key through an index file, newest entry first.

A chain may be long: a tag that every second message has makes one of millions of entries, and who
asks for old messages would pass over all newer ones. So

- links that lie near each other are read and followed by the block, with numpy;
- after some that are too new, a bisection finds where the wanted ones end, and the blocks before
  that are searched for the chain;
- the work of a query is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple, final

import numpy as np
import numpy.typing as npt

from commitbus.commitlog.errors import QueryTooWideError, ReadFailedError
from commitbus.commitlog.types import PhysicalOffset
from commitbus.indexfile.index_reader import IndexReader

WORK_MAX: Final = 1 << 17
"""Reads of one entry, of 1 to 2 us each when the file is in memory: a quarter of a second."""
_BLOCK_ENTRIES: Final = 3276
"""64 KiB."""
_BLOCK_WORK: Final = 16
"""Cost of reading and searching a block, in reads of one entry."""
_NEAR: Final = _BLOCK_ENTRIES // 16
"""Links closer to each other than this are cheaper by the block,"""
_NEAR_LINKS: Final = 4
"""if that is not by chance: so many in a row."""
_TOO_NEW_WORK: Final = 512
"""Spent on entries that are too new before a bisection, of 25 reads or so, is tried."""


@final
class Wanted(NamedTuple):
    """Conditions of a query."""

    key_hash: int
    begin_ms: int
    end_ms: int
    before: int
    """Physical offset at and behind which messages do not count."""


@final
class Work:
    """How much a query may still do."""

    def __init__(self, work_max: int = WORK_MAX) -> None:
        self._left = work_max

    def spend(self, work: int) -> None:
        """Count some work. Raises `QueryTooWideError` if it is too much."""
        self._left -= work
        if self._left < 0:
            raise QueryTooWideError


def candidates(
    file: IndexReader, wanted: Wanted, head: int | None, work: Work
) -> Iterator[PhysicalOffset]:
    """Yield the messages whose key has a hash, newest first.

    Entries keep whole seconds, so a message up to a second outside the wanted times may be among
    them. Ends on a damaged chain: a sound one leads to ever lower indexes.

    Args:
        file: The file to search. Entries that its header does not count yet may be followed too:
            if another process writes the file, its slots may be newer than its header.
        wanted: Conditions of the query.
        head: The newest entry of the chain; None to read it from the file.
        work: Bounds the number of reads.

    Raises:
        QueryTooWideError: The bound is reached.
        ReadFailedError: The disk does not give an entry back.
        OSError: The file cannot be opened.
    """
    header = file.header
    if header.begin_timestamp > wanted.end_ms or header.end_timestamp < wanted.begin_ms:
        return
    if header.begin_physical_offset >= wanted.before:
        return
    if head is None:
        work.spend(1)
        head = file.slot(wanted.key_hash % file.slot_count)
    yield from _Walk(file, wanted, work).run(head)


@final
class _Walk:
    """A chain that is followed."""

    def __init__(self, file: IndexReader, wanted: Wanted, work: Work) -> None:
        self._file, self._wanted, self._work = file, wanted, work
        self._begin_ms = file.header.begin_timestamp
        self._index, self._above = 0, file.entry_count
        self._too_new_work = 0

    def run(self, head: int) -> Iterator[PhysicalOffset]:
        self._index = head
        near_links = 0
        file, wanted, begin_ms = self._file, self._wanted, self._begin_ms
        while 0 < self._index < self._above:
            if self._too_new_work > _TOO_NEW_WORK and not self._pass_over_too_new():
                return
            index = self._index
            near_links = near_links + 1 if self._above - index < _NEAR else 0
            if near_links > _NEAR_LINKS and (block := self._block()) is not None:
                yield from block
                continue
            self._work.spend(1)
            key_hash, offset, seconds, previous = file.entry(index)
            self._above, self._index = index, previous
            earliest_ms = begin_ms + (seconds * 1000 if index > 1 else 0)
            if earliest_ms + 999 < wanted.begin_ms:
                return
            if earliest_ms > wanted.end_ms or offset >= wanted.before:
                self._too_new_work += 1
            elif key_hash == wanted.key_hash and offset >= 0:
                yield PhysicalOffset(offset)

    def _block(self) -> list[PhysicalOffset] | None:
        """Examine the next entry and those of the chain in the block that it ends.

        None if the disk does not give the block back: the chain may not need what is missing.
        """
        self._work.spend(_BLOCK_WORK)
        wanted = self._wanted
        start = max(1, self._index + 1 - _BLOCK_ENTRIES)
        try:
            block = self._file.entries(start, self._index + 1)
        except ReadFailedError:
            return None
        found = self._of_chain(block)
        members, earliest_ms = block[found], self._stored_ms(block[found], start + found)
        # The last one is where the chain came from, at least in a sound file.
        self._above = start + int(found[0]) if len(found) else start
        self._index = int(members["previous"][0]) if len(found) else 0
        offsets = members["physical_offset"]
        is_old_enough = (earliest_ms <= wanted.end_ms) & (offsets < wanted.before)
        is_new_enough = earliest_ms + 999 >= wanted.begin_ms
        if not is_old_enough.any():
            self._too_new_work += _BLOCK_WORK
        if not is_new_enough.all():
            self._index = 0
        matches = is_old_enough & is_new_enough & (members["key_hash"] == wanted.key_hash)
        return [PhysicalOffset(one) for one in offsets[matches & (offsets >= 0)][::-1].tolist()]

    def _pass_over_too_new(self) -> bool:
        """Go on with the newest entry of the chain that is old enough; return whether there is one.

        Entries lie in the order of the log, and so of time.
        """
        self._too_new_work = 0
        file, wanted = self._file, self._wanted
        end = min(file.first_index_after(wanted.end_ms), file.first_index_at(wanted.before))
        while end > 1 and end <= self._index:
            self._work.spend(_BLOCK_WORK)
            start = max(1, end - _BLOCK_ENTRIES)
            block = file.entries(start, end)
            found = self._of_chain(block)
            if len(found):
                self._index, self._above = start + int(found[-1]), end
                return True
            newest = file.stored_ms(end - 1, file.entry(end - 1))
            if newest + 999 < wanted.begin_ms:
                return False
            end = start
        return end > 1

    def _of_chain(self, block: npt.NDArray[np.void]) -> npt.NDArray[np.intp]:
        """Return the positions of the entries that belong to the chain."""
        slot_count = self._file.slot_count
        hashes = block["key_hash"].astype(np.int32)
        return np.flatnonzero(hashes % slot_count == self._wanted.key_hash % slot_count)

    def _stored_ms(
        self, entries: npt.NDArray[np.void], indexes: npt.NDArray[np.intp]
    ) -> npt.NDArray[np.int64]:
        """Return the earliest times at which the messages may have been stored."""
        seconds = np.where(indexes > 1, entries["seconds"], 0).astype(np.int64)
        return self._begin_ms + seconds * 1000
