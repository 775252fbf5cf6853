"""Fairness between the messages of one group in one topic: which kind, and which queue, is first.

A receive takes messages that became visible again (retries) and messages that were never delivered
(new ones). Whichever kind is first may fill the batch, so neither may always be first. A receiver
counts instead of tossing a coin: of 100 receives that find both kinds, exactly `retry_percent`
begin with the retries, spread evenly.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final


@final
@dataclass(slots=True)
class Turns:
    """The next turns of one group in one topic."""

    _credit: int = 99
    """In percent: what the retries have saved up since it was their turn. The first turn is theirs,
    whatever their share is, unless that is 0."""
    _first_new: int = 0
    _first_retry: int = 0
    # A queue index for each kind: with a common one, five queues and one turn in five for the
    # retries, the retries of one queue alone would ever be first.

    _by_queue: dict[int, Turns] = field(default_factory=dict)

    def of_queue(self, queue_id: int) -> Turns:
        """Return the turns inside one queue, for a group whose batch is filled queue by queue."""
        turns = self._by_queue.get(queue_id)
        if turns is None:
            turns = self._by_queue[queue_id] = Turns()
        return turns

    def retries_begin(self, retry_percent: int) -> bool:
        """Return whether a receive that finds both kinds begins with the retries."""
        self._credit += retry_percent
        if self._credit < 100:
            return False
        self._credit -= 100
        return True

    def queues_for_new(self, count: int) -> list[int]:
        """Return queue ids 0 to `count` - 1, beginning one further than the last time."""
        first = self._first_new % count
        self._first_new = first + 1
        return [*range(first, count), *range(first)]

    def queues_for_retries(self, count: int) -> list[int]:
        """Return the same for retries, which have a rotation of their own."""
        first = self._first_retry % count
        self._first_retry = first + 1
        return [*range(first, count), *range(first)]
