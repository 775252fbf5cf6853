"""The times at which the messages in flight of one queue become visible again.

A delivery or change notes one time for all its offsets. A note counts for an offset only while the
offset is in flight with exactly this time; the rest is stale. Stale notes are thrown away when they
come up. When they are the larger part, every further change moves a few notes to a new heap and
drops the stale ones among them, so that no single change pays for all.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from commitbus.broker.progress.queue_progress import InFlight

MOVED_OFFSETS: Final = 16
"""Looked at with each change while stale notes are dropped, beside twice what the change adds."""

REPLACED_OFFSETS_MAX: Final = 1_024
"""With fewer offsets noted, all are noted anew at once: 100 us."""

_Note = tuple[int, int, tuple[int, ...]]
"""Invisible until, first offset, offsets."""


@final
class Expiries:
    """The times of one queue's messages in flight.

    Args:
        in_flight: The messages, by offset. Only read.
    """

    __slots__ = ("_heap", "_in_flight", "_noted", "_old")

    def __init__(self, in_flight: Mapping[int, InFlight]) -> None:
        self._in_flight = in_flight
        self._heap: list[_Note] = []
        self._old: list[_Note] = []
        """The heap before stale notes were the larger part, as far as it was not moved yet."""
        self._noted = 0

    def __len__(self) -> int:
        """Return how many offsets are noted, stale ones and repeated ones included."""
        return self._noted

    def add(self, until_ms: int, offsets: tuple[int, ...]) -> None:
        """Note the time of offsets, at least one, which are in flight with it already."""
        heappush(self._heap, (until_ms, offsets[0], offsets))
        self._noted += len(offsets)
        self.tidy(2 * len(offsets))

    def tidy(self, further: int = 0) -> None:
        """Drop a few stale notes if they are the larger part; called after each change."""
        if self._old:
            self._move(MOVED_OFFSETS + further)
        elif self._noted > 2 * len(self._in_flight) + 64:
            # With an invisible time of hours, stale ones would otherwise pile up for hours.
            if self._noted <= REPLACED_OFFSETS_MAX:
                self.restore()
            else:
                self._old, self._heap = self._heap, []
                self._move(MOVED_OFFSETS + further)

    def restore(self) -> None:
        """Note everything in flight anew."""
        times: dict[int, list[int]] = {}
        for offset, entry in self._in_flight.items():
            times.setdefault(entry.invisible_until_ms, []).append(offset)
        self._old, self._noted = [], len(self._in_flight)
        self._heap = [(until_ms, offsets[0], tuple(offsets)) for until_ms, offsets in times.items()]
        heapify(self._heap)

    def next_ms(self) -> int | None:
        """Return the earliest time; None when nothing is in flight."""
        times = [self._top_ms(heap) for heap in (self._heap, self._old)]
        return min((at_ms for at_ms in times if at_ms is not None), default=None)

    def may_have_come(self, now_ms: int) -> bool:
        """Return False where `expired` finds nothing; it is much quicker."""
        heap, old = self._heap, self._old
        return bool(heap and heap[0][0] <= now_ms) or bool(old and old[0][0] <= now_ms)

    def expired(self, now_ms: int, limit: int) -> list[InFlight]:
        """Return up to `limit` messages whose time has come, the longest waiting first."""
        found: dict[int, InFlight] = {}
        seen: list[_Note] = []
        while len(found) < limit:
            heap = self._earlier()
            if not heap or heap[0][0] > now_ms:
                break
            until, _, offsets = heappop(heap)
            # The same offset twice: made invisible until the very time it already had.
            alive = tuple(o for o in offsets if o not in found and self._counts(o, until))
            self._noted += len(alive) - len(offsets)
            if alive:
                seen.append((until, alive[0], alive))
                found |= {o: self._in_flight[o] for o in alive[: limit - len(found)]}
        for note in seen:
            heappush(self._heap, note)
        return list(found.values())

    def _earlier(self) -> list[_Note]:
        """Return the heap with the earlier top."""
        heap, old = self._heap, self._old
        return old if old and (not heap or old[0] < heap[0]) else heap

    def _top_ms(self, heap: list[_Note]) -> int | None:
        while heap:
            until, first, offsets = heap[0]
            if self._counts(first, until) or any(self._counts(o, until) for o in offsets):
                return until
            heappop(heap)
            self._noted -= len(offsets)
        return None

    def _move(self, looks: int) -> None:
        old = self._old
        while old and looks > 0:
            # The last one: what is left is a heap.
            until, _, offsets = old.pop()
            looks -= len(offsets)
            alive = tuple(o for o in offsets if self._counts(o, until))
            self._noted += len(alive) - len(offsets)
            if alive:
                heappush(self._heap, (until, alive[0], alive))

    def _counts(self, offset: int, until_ms: int) -> bool:
        entry = self._in_flight.get(offset)
        return entry is not None and entry.invisible_until_ms == until_ms
