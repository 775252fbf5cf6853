"""Looking through a queue for what a filter lets pass, a bounded step at a time.

Nothing is taken here: a message that is not wanted is never put in flight. Who asks moves its own
place on to the step's `next_offset`, and lets others have a turn before the next step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, final

from commitbus.broker.common.worker_lines import compute_in_worker
from commitbus.broker.consuming.state import ConsumingCore
from commitbus.broker.consuming.store_reads import (
    Place,
    Unreadable,
    read_or_wait,
    read_properties,
)
from commitbus.broker.filters.message_filter import MessageFilter
from commitbus.commitlog.errors import ReadFailedError
from commitbus.commitlog.types import QueueOffset

STEP_UNITS: Final = 256
STEP_S: Final = 0.002
"""Duration of a step on the trio thread. An ordinary SQL expression is asked 256 times in 1 ms."""


def never() -> bool:
    """Return False: a step on another thread has no time limit."""
    return False


@final
class Found(NamedTuple):
    """Returned by a step."""

    places: Sequence[Place]
    next_offset: QueueOffset
    """First offset not examined: where the next step starts."""


@final
@dataclass(frozen=True, slots=True)
class Scan:
    """Looks through one queue for what a filter wants."""

    core: ConsumingCore
    topic: str
    queue_id: int
    wanted: MessageFilter

    async def step(self, start: QueueOffset, max_count: int) -> Found:
        """Return up to `max_count` messages from `start` on that are wanted, after one step.

        Among them is what only has the hash of a wanted tag, and what cannot be read: whoever takes
        that finds it out. Others may run before it returns: the caller's place in the queue may
        have changed.
        """
        if not self.wanted.reads_properties:
            return await read_or_wait(self._by_tags, start, max_count)
        async with self.core.scan_turn:
            found = self._by_properties(start, max_count, only_cached=True)
        if found is None:
            step = partial(self._by_properties, start, max_count, only_cached=False)
            found = await compute_in_worker(step)
            assert found is not None, "only what is not cached can be missing"
        return found

    def _by_tags(self, start: QueueOffset, max_count: int, *, only_cached: bool) -> Found | None:
        return self._fetch(start, max_count, self.wanted.tags_codes, only_cached=only_cached)

    def _fetch(
        self,
        start: QueueOffset,
        max_count: int,
        tags_codes: frozenset[int] | None,
        *,
        only_cached: bool,
    ) -> Found | None:
        """Return units of the queue; those before the first that cannot be read, or this alone."""
        store = self.core.store
        fetch = store.fetch_cached if only_cached else store.fetch
        count = max_count
        while True:
            try:
                found = fetch(self.topic, self.queue_id, start, count, tags_codes)
            except ReadFailedError as error:
                if tags_codes is not None:
                    # It looks at thousands. Tags are compared again when a message is taken.
                    tags_codes = None
                elif count > 1:
                    count //= 2
                else:
                    first = max(start, store.min_offset(self.topic, self.queue_id))
                    return Found([Unreadable(first, error)], QueueOffset(first + 1))
            else:
                return None if found is None else Found(*found)

    def _by_properties(
        self, start: QueueOffset, max_count: int, *, only_cached: bool
    ) -> Found | None:
        """Read the records; with `only_cached` return None instead of waiting for a disk."""
        is_over = self._timer() if only_cached else never
        looked_at = self._fetch(start, STEP_UNITS, None, only_cached=only_cached)
        if looked_at is None:
            return None
        found: list[Place] = []
        accepts = self.wanted.accepts_encoded
        next_offset = looked_at.next_offset
        records = read_properties(self.core.store, looked_at.places, only_cached=only_cached)
        for place, properties in zip(looked_at.places, records, strict=False):
            if properties is None:
                is_first = place is looked_at.places[0]
                return None if is_first else Found(found, place.queue_offset)
            # An unreadable message may match the filter.
            if not isinstance(properties, memoryview) or accepts(properties):
                found.append(place)
            next_offset = QueueOffset(place.queue_offset + 1)
            if len(found) == max_count or is_over():
                break
        else:
            next_offset = looked_at.next_offset
        return Found(found, next_offset)

    def _timer(self) -> Callable[[], bool]:
        """Return what says that a step on the trio thread has taken its time."""
        now_s = self.core.clock.monotonic_s
        until_s = now_s() + STEP_S
        return lambda: now_s() > until_s
