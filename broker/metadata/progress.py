"""How far a group has come in a queue: a state machine without clock, thread or disk.

    offset   0 ............ 17 . 19 20 ........ 42
             acknowledged   |    in flight      next_offset: never delivered from here on
                            committed_offset: everything before it is done for good

Offsets between `committed_offset` and `next_offset` that are not in flight are acknowledged (or
were filtered out when their neighbours were delivered).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import NamedTuple, final


@final
class Lease(NamedTuple):
    """Who has messages that are delivered together, and for how long nobody else gets them."""

    pop_time_ms: int
    """The time of the delivery: the receipt handles'."""
    invisible_until_ms: int
    client_id: str
    """In a FIFO group together with the attempt, as `receiver_id` writes both."""
    auto_renew: bool


@final
@dataclass(slots=True)
class InFlight:
    """A message that was delivered and not acknowledged. Changed by its `QueueProgress` only."""

    offset: int
    pop_time_ms: int
    """When it was last delivered or its invisible time last changed: the receipt handle's."""
    invisible_until_ms: int
    delivery_attempt: int
    """1 at the first delivery; 0 while it is held back for its turn and was never delivered."""
    client_id: str
    """Who received it; in a FIFO group together with the attempt, as `receiver_id` writes both."""
    auto_renew: bool
    suspended: bool = False
    """The next delivery does not count as another attempt."""


@final
class QueueProgress:
    """The progress of one group in one queue.

    Not thread-safe: all changes are made through `ProgressTable`, by one thread.
    """

    __slots__ = (
        *("_expiries", "_expiring", "_in_flight", "_next_offset"),
        *("key_id", "message_groups", "sequence"),
    )

    def __init__(self, next_offset: int, *, key_id: int = 0) -> None:
        self.key_id = key_id
        """Which row and journal entries are its."""
        self.sequence = 0
        """The journal entry that changed it last."""
        self.message_groups: dict[int, Hashable] | None = None
        """Of what is in flight, by offset, as far as anybody had to read them. Never saved."""
        self._next_offset = next_offset
        # Ordered by offset, because deliveries only ever append beyond next_offset. An
        # OrderedDict finds its first key in O(1) after any number of deletions, a dict does not.
        self._in_flight: OrderedDict[int, InFlight] = OrderedDict()
        # A heap of (invisible until, first offset, offsets), one for each delivery or change.
        # An offset counts only while it is in flight with exactly this time; the rest is stale
        # and thrown away when it comes up, or all at once when it is the larger part.
        self._expiries: list[tuple[int, int, tuple[int, ...]]] = []
        self._expiring = 0

    @property
    def next_offset(self) -> int:
        """The first offset that was never delivered."""
        return self._next_offset

    @property
    def committed_offset(self) -> int:
        """The smallest offset in flight, or `next_offset`: all before it is acknowledged."""
        return next(iter(self._in_flight), self._next_offset)

    @property
    def in_flight(self) -> Mapping[int, InFlight]:
        """What is in flight, by offset, in the order of the offsets. A view, not a copy."""
        return self._in_flight

    @property
    def in_flight_count(self) -> int:
        """How many messages are in flight."""
        return len(self._in_flight)

    @property
    def next_expiry_ms(self) -> int | None:
        """When the next message in flight becomes visible again; None when none is in flight."""
        expiries = self._expiries
        while expiries:
            until, first, offsets = expiries[0]
            if self._counts(first, until) or any(self._counts(o, until) for o in offsets):
                return until
            heappop(expiries)
            self._expiring -= len(offsets)
        return None

    def may_have_expired(self, now_ms: int) -> bool:
        """Return False where `expired` finds nothing; it is much quicker."""
        return bool(self._expiries) and self._expiries[0][0] <= now_ms

    def expired(self, now_ms: int, limit: int) -> list[InFlight]:
        """Return up to `limit` messages that are visible again, the longest waiting first.

        They stay in flight, and are returned again until they are redelivered, acknowledged or
        made invisible.
        """
        expiries, found = self._expiries, dict[int, InFlight]()
        seen: list[tuple[int, int, tuple[int, ...]]] = []
        while expiries and len(found) < limit and expiries[0][0] <= now_ms:
            until, _, offsets = heappop(expiries)
            # The same offset twice: made invisible until the very time it already had.
            alive = tuple(o for o in offsets if o not in found and self._counts(o, until))
            self._expiring += len(alive) - len(offsets)
            if alive:
                seen.append((until, alive[0], alive))
                found |= {o: self._in_flight[o] for o in alive[: limit - len(found)]}
        for expiry in seen:
            heappush(expiries, expiry)
        return list(found.values())

    def deliver(self, offsets: Sequence[int], lease: Lease, *, next_offset: int) -> None:
        """Put new offsets in flight and go on at `next_offset`.

        `offsets` ascend, none is below the present `next_offset` or at or beyond the new one.
        """
        in_flight = self._in_flight
        pop_time_ms, until_ms, client_id, auto_renew = lease
        for offset in offsets:
            in_flight[offset] = InFlight(offset, pop_time_ms, until_ms, 1, client_id, auto_renew)
        self._next_offset = next_offset
        if offsets:
            self._expire_at(until_ms, tuple(offsets))

    def hold(self, offsets: Sequence[int], *, next_offset: int) -> None:
        """Keep new offsets back for their turn and go on at `next_offset`.

        They are in flight and visible, with attempt 0: `redeliver` delivers them the first time.
        `offsets` are as those of `deliver`.
        """
        for offset in offsets:
            self._in_flight[offset] = InFlight(offset, 0, 0, 0, "", auto_renew=False)
        self._next_offset = next_offset
        if offsets:
            self._expire_at(0, tuple(offsets))

    def redeliver(self, offset: int, lease: Lease, *, counts: bool = True) -> int:
        """Deliver an offset that is in flight once more; return which attempt this is.

        It is another one, unless it does not count or the offset is suspended.
        """
        entry = self._in_flight[offset]
        entry.delivery_attempt += counts and not entry.suspended
        entry.suspended = False
        entry.pop_time_ms, entry.invisible_until_ms, entry.client_id, entry.auto_renew = lease
        self._expire_at(lease.invisible_until_ms, (offset,))
        return entry.delivery_attempt

    def acknowledge(self, offset: int) -> bool:
        """Take an offset out of flight for good; return whether it was in flight."""
        if self._in_flight.pop(offset, None) is None:
            return False
        self._drop_stale_expiries()
        return True

    def change_invisible(
        self, offset: int, *, pop_time_ms: int, invisible_until_ms: int, suspend: bool
    ) -> None:
        """Set anew when an offset that is in flight becomes visible again.

        A new pop time is a consumer's own choice of the time, which ends the automatic renewal.
        """
        entry = self._in_flight[offset]
        entry.auto_renew = entry.auto_renew and entry.pop_time_ms == pop_time_ms
        entry.pop_time_ms, entry.invisible_until_ms = pop_time_ms, invisible_until_ms
        entry.suspended = suspend
        self._expire_at(invisible_until_ms, (offset,))

    def reset(self, next_offset: int) -> None:
        """Forget what is in flight and go on at `next_offset`, which may lie before or after."""
        self._next_offset = next_offset
        self._in_flight.clear()
        self._expiries.clear()
        self._expiring = 0

    def clamp(self, end: int) -> None:
        """Forget everything at or beyond `end`: the log no longer has it."""
        self._next_offset = min(self._next_offset, end)
        while self._in_flight and next(reversed(self._in_flight)) >= end:
            self._in_flight.popitem()
        self._drop_stale_expiries()

    def restore(self, entries: Iterable[InFlight]) -> None:
        """Put saved entries in flight again, ascending by offset, into a fresh value."""
        assert not self._in_flight
        self._in_flight.update((entry.offset, entry) for entry in entries)
        self._rebuild_expiries()

    def _counts(self, offset: int, until_ms: int) -> bool:
        entry = self._in_flight.get(offset)
        return entry is not None and entry.invisible_until_ms == until_ms

    def _expire_at(self, until_ms: int, offsets: tuple[int, ...]) -> None:
        heappush(self._expiries, (until_ms, offsets[0], offsets))
        self._expiring += len(offsets)
        self._drop_stale_expiries()

    def _drop_stale_expiries(self) -> None:
        # With an invisible time of hours, stale ones would otherwise pile up for hours.
        if self._expiring > 2 * len(self._in_flight) + 64:
            self._rebuild_expiries()

    def _rebuild_expiries(self) -> None:
        self._expiries = [(e.invisible_until_ms, o, (o,)) for o, e in self._in_flight.items()]
        heapify(self._expiries)
        self._expiring = len(self._expiries)
