"""Looking through a queue for what a filter lets pass, a bounded step at a time.

Nothing is taken here: a message that is not wanted is never put in flight. Who asks moves its own
place on to the step's `next_offset`, and lets others have a turn before the next step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, final

import trio

from commitbus.broker.filters.message_filter import MessageFilter
from commitbus.broker.messaging.context import MessagingContext
from commitbus.broker.store.store_reader import FetchedUnit, FetchResult
from commitbus.commitlog.errors import CorruptRecordError, OffsetOutOfRangeError
from commitbus.commitlog.page_cache import is_cached
from commitbus.commitlog.record_format import check_record
from commitbus.commitlog.types import QueueOffset

STEP_UNITS: Final = 256
STEP_S: Final = 0.002
"""Of a step on the trio thread. An ordinary SQL expression is asked 256 times in 1 ms."""
SPAN_BYTES_MAX: Final = 64 * 1024 * 1024
"""To ask whether so much is in memory takes 0.1 ms."""


def never() -> bool:
    """Say so of a step on another thread: there it holds nobody up."""
    return False


@final
@dataclass(frozen=True, slots=True)
class Scan:
    """Looks through one queue for what a filter wants."""

    context: MessagingContext
    topic: str
    queue_id: int
    wanted: MessageFilter

    async def step(self, start: QueueOffset, max_count: int) -> FetchResult:
        """Return up to `max_count` messages from `start` on that are wanted, after one step.

        Among them is what only has the hash of a wanted tag, and what cannot be read: whoever takes
        that finds it out. Where properties are looked at others run before: the caller's place in
        the queue may have changed.
        """
        if not self.wanted.reads_properties:
            return self.context.store.fetch(
                self.topic, self.queue_id, start, max_count, self.wanted.tags_codes
            )
        async with self.context.scan_turn:
            found = self._by_properties(start, max_count, only_cached=True)
        if found is None:
            step = partial(self._by_properties, start, max_count, only_cached=False)
            found = await trio.to_thread.run_sync(step, limiter=self.context.scan_threads)
            assert found is not None, "only what is not cached can be missing"
        return found

    def _by_properties(
        self, start: QueueOffset, max_count: int, *, only_cached: bool
    ) -> FetchResult | None:
        """Read the records; with `only_cached` return None instead of waiting for a disk."""
        is_over = self._timer() if only_cached else never
        store = self.context.store
        looked_at = store.fetch(self.topic, self.queue_id, start, STEP_UNITS)
        units: Sequence[FetchedUnit] = looked_at.units
        while units:
            begin = units[0].physical_offset
            size_bytes = units[-1].physical_offset + units[-1].size_bytes - begin
            try:
                # Nearly always they lie in one file, which then is looked up and pinned only once.
                with store.pin(begin, size_bytes) as view:
                    if only_cached and not (size_bytes <= SPAN_BYTES_MAX and is_cached(view)):
                        return None
                    return self._choose(view, units, max_count, is_over)
            except OffsetOutOfRangeError:
                if len(units) == 1:
                    return looked_at._replace(
                        units=[units[0]], next_offset=QueueOffset(units[0].queue_offset + 1)
                    )
                units = units[: len(units) // 2]
        return looked_at

    def _timer(self) -> Callable[[], bool]:
        """Return what says that a step on the trio thread has taken its time."""
        now_s = self.context.clock.monotonic_s
        until_s = now_s() + STEP_S
        return lambda: now_s() > until_s

    def _choose(
        self,
        view: memoryview,
        units: Sequence[FetchedUnit],
        max_count: int,
        is_over: Callable[[], bool],
    ) -> FetchResult:
        """Return what is wanted of the records in `view`, which begins with the first of them."""
        found: list[FetchedUnit] = []
        base = units[0].physical_offset
        accepts = self.wanted.accepts_encoded
        next_offset = units[0].queue_offset
        for unit in units:
            queue_offset, physical_offset, _ = unit
            next_offset = QueueOffset(queue_offset + 1)
            try:
                *_, properties_start, end = check_record(
                    view, physical_offset - base, physical_offset, verify_crc=False
                )
                is_wanted = accepts(view[properties_start:end])
            except CorruptRecordError:
                is_wanted = True
            if is_wanted:
                found.append(unit)
            if len(found) == max_count or is_over():
                break
        return FetchResult(found, next_offset)
