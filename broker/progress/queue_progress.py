"""The progress of one group in one queue: a state machine without clock, thread or disk.

    offset   0 ............ 17 . 19 20 ........ 42
             acknowledged   |    in flight      next_offset: never delivered from here on
                            committed_offset: everything before it is done for good

Offsets between `committed_offset` and `next_offset` that are not in flight are acknowledged (or
were filtered out when their neighbours were delivered).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, final

from commitbus.broker.progress.expiries import Expiries
from commitbus.broker.progress.fifo_lock import LockUnits, Receiver

if TYPE_CHECKING:
    from commitbus.broker.progress.changes import Change
    from commitbus.broker.progress.holdings import Holding, Holdings

IN_FLIGHT_MAX_DEFAULT: Final = 200_000
"""RocketMQ has none unless it is told to. Far above what consumers work on at a time."""

RENEWED_OFFSETS_MAX: Final = 1024
"""Messages of one holding."""


@final
class Lease(NamedTuple):
    """The client that gets messages of one delivery, and until when no other client gets them."""

    pop_time_ms: int
    """The time of the delivery, which the receipt handles carry."""
    invisible_until_ms: int
    client_id: str
    auto_renew: bool
    attempt_id: str = ""
    """The name that the client gave its attempt to receive, in a FIFO group; empty without one."""


@final
@dataclass(slots=True)
class InFlight:
    """A message that was delivered and not acknowledged. Changed by its `QueueProgress` only."""

    offset: int
    pop_time_ms: int
    """The time of the last delivery or change of the invisible time, as in the receipt handle."""
    invisible_until_ms: int
    delivery_attempt: int
    """1 at the first delivery; 0 while it is held back for its turn and was never delivered."""
    client_id: str
    auto_renew: bool
    suspended: bool = False
    """The next delivery does not count as another attempt."""
    attempt_id: str = ""
    """As in the lease."""
    holding: Holding | None = field(default=None, compare=False, repr=False)
    """The messages that are renewed or released together with it, if it is renewed."""

    @property
    def receiver(self) -> Receiver:
        """The client and its attempt."""
        return self.client_id, self.attempt_id


# Shared by all queues with nothing in flight, and never changed: most have nothing.
_NOTHING: Final[OrderedDict[int, InFlight]] = OrderedDict()
_NO_EXPIRIES: Final = Expiries(_NOTHING)


def lag(max_offset: int, next_offset: int, in_flight: int) -> int:
    """Return how many messages a group has before it in a queue: never delivered, or in flight.

    Args:
        max_offset: One past the queue's last message. It may lie before `next_offset`: after a
            start the queues follow the log a moment later than the progress.
        next_offset: The first that was never delivered.
        in_flight: How many were delivered and not acknowledged, visible again or not.
    """
    return max(max_offset - next_offset, 0) + in_flight


@final
class QueueProgress:
    """The progress of one group in one queue.

    Not thread-safe: all changes are made through `ProgressTable`, by one thread.
    """

    __slots__ = (
        *("_expiries", "_holdings", "_in_flight", "_lock_units", "_next_offset", "_sequence"),
        "key_id",
    )

    def __init__(
        self,
        next_offset: int,
        *,
        key_id: int = 0,
        sequence: int = 0,
        holdings: Holdings | None = None,
    ) -> None:
        self.key_id: Final = key_id
        """The number of its row and of its journal entries."""
        self._sequence, self._next_offset = sequence, next_offset
        self._lock_units: LockUnits | None = None
        # Ordered by offset, because deliveries only ever append beyond next_offset. An
        # OrderedDict finds its first key in O(1) after any number of deletions, a dict does not.
        self._in_flight, self._expiries = _NOTHING, _NO_EXPIRIES
        self._holdings = holdings

    @property
    def sequence(self) -> int:
        """The number of the journal entry that changed it last."""
        return self._sequence

    def apply(self, change: Change, sequence: int) -> None:
        """Make a change, which is entry `sequence` of the journal."""
        change.apply(self)
        self._sequence = sequence

    @property
    def lock_units(self) -> LockUnits | None:
        """The lock units of a FIFO group that has received since the start or the last reset."""
        return self._lock_units

    def begin_lock_units(self, *, whole_queue: bool) -> LockUnits:
        """Return the index of lock units, made now if there is none of this kind."""
        if self._lock_units is None or self._lock_units.whole_queue is not whole_queue:
            self._lock_units = LockUnits(self, whole_queue=whole_queue)
        return self._lock_units

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
        """The messages in flight by offset, in the order of the offsets. A view, not a copy."""
        return self._in_flight

    def entries(self) -> list[InFlight]:
        """Return what is in flight in the order of the offsets: a million take 6 ms."""
        # Not by the OrderedDict's own iteration, which takes ten times as long.
        return list(dict.values(self._in_flight))

    def first_and_last(self) -> list[InFlight]:
        """Return what is in flight with the smallest and the largest offset."""
        if not self._in_flight:
            return []
        ends = next(iter(self._in_flight)), next(reversed(self._in_flight))
        return [self._in_flight[offset] for offset in ends]

    @property
    def in_flight_count(self) -> int:
        """The number of messages in flight."""
        return len(self._in_flight)

    @property
    def delivered_count(self) -> int:
        """The number of messages in flight that are not held back for their turn. For any thread.

        After a start, those that were held back before count until the group receives.
        """
        units = self._lock_units
        return len(self._in_flight) - (units.held_back if units and not units.whole_queue else 0)

    def lag(self, max_offset: int) -> int:
        """Return the group's lag, as the function says it. For any thread."""
        return lag(max_offset, self._next_offset, len(self._in_flight))

    @property
    def next_expiry_ms(self) -> int | None:
        """The time at which the next message becomes visible again; None when none is in flight."""
        return self._expiries.next_ms()

    def may_have_expired(self, now_ms: int) -> bool:
        """Return False where `expired` finds nothing; it is much quicker."""
        return self._expiries.may_have_come(now_ms)

    def expired(self, now_ms: int, limit: int) -> list[InFlight]:
        """Return up to `limit` messages that are visible again, the longest waiting first.

        They stay in flight, and are returned again until they are redelivered, acknowledged or
        made invisible.
        """
        return self._expiries.expired(now_ms, limit)

    def deliver(self, offsets: Sequence[int], lease: Lease, *, next_offset: int) -> None:
        """Put new offsets in flight and go on at `next_offset`.

        `offsets` ascend, none is below the present `next_offset` or at or beyond the new one.
        """
        if offsets:
            in_flight, noted = self._begun(), tuple(offsets)
            pop_time_ms, until_ms, client_id, auto_renew, attempt_id = lease
            holding, suspended = self._held(lease, noted), False
            for offset in noted:
                # By position: names take a tenth longer.
                in_flight[offset] = InFlight(
                    offset,
                    pop_time_ms,
                    until_ms,
                    1,
                    client_id,
                    auto_renew,
                    suspended,
                    attempt_id,
                    holding,
                )
            self._expiries.add(until_ms, noted)
            if self._lock_units is not None:
                self._lock_units.added(noted)
        self._next_offset = next_offset

    def hold(self, offsets: Sequence[int], *, next_offset: int) -> None:
        """Keep new offsets back for their turn and go on at `next_offset`.

        They are in flight and visible, with attempt 0: `redeliver` delivers them the first time.
        `offsets` are as those of `deliver`.
        """
        if offsets:
            in_flight, noted = self._begun(), tuple(offsets)
            for offset in noted:
                in_flight[offset] = InFlight(offset, 0, 0, 0, "", auto_renew=False)
            self._expiries.add(0, noted)
            if self._lock_units is not None:
                self._lock_units.added(noted)
        self._next_offset = next_offset

    def next_attempt(self, offset: int, *, counts: bool = True) -> int:
        """Return which attempt the next delivery of an offset in flight is.

        It is another one, unless it does not count or the offset is suspended.
        """
        entry = self._in_flight[offset]
        return entry.delivery_attempt + (counts and not entry.suspended)

    def redeliver(
        self, offset: int, lease: Lease, *, counts: bool = True, attempt: int | None = None
    ) -> int:
        """Deliver an offset that is in flight once more; return which attempt this is.

        It is `attempt`, or else `next_attempt`.
        """
        entry = self._in_flight[offset]
        if attempt is None:
            attempt = self.next_attempt(offset, counts=counts)
        entry.delivery_attempt, entry.suspended = attempt, False
        receiver = entry.receiver
        entry.pop_time_ms, entry.invisible_until_ms = lease.pop_time_ms, lease.invisible_until_ms
        entry.client_id, entry.attempt_id = lease.client_id, lease.attempt_id
        entry.auto_renew = lease.auto_renew
        self._hold_anew(entry, lease)
        self._expiries.add(lease.invisible_until_ms, (offset,))
        if self._lock_units is not None:
            self._lock_units.changed(entry, receiver)
        return attempt

    def acknowledge(self, offset: int) -> bool:
        """Take an offset out of flight for good; return whether it was in flight."""
        entry = self._in_flight.pop(offset, None)
        if entry is None:
            return False
        if entry.holding is not None:
            self._leave(entry)
        self._expiries.tidy()
        if self._lock_units is not None:
            self._lock_units.removed(entry)
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
        lease = Lease(pop_time_ms, invisible_until_ms, entry.client_id, entry.auto_renew)
        self._hold_anew(entry, lease)
        self._expiries.add(invisible_until_ms, (offset,))
        if self._lock_units is not None:
            self._lock_units.changed(entry, entry.receiver)

    def extend(self, offsets: Sequence[int], invisible_until_ms: int) -> None:
        """Set anew when messages in flight of one client become visible again, and nothing else.

        `offsets` are 1 to `RENEWED_OFFSETS_MAX`, each once. Those with automatic renewal are one
        holding afterwards.
        """
        noted = tuple(offsets)
        entries = [self._in_flight[offset] for offset in noted]
        renewed = [entry for entry in entries if entry.auto_renew]
        holding = None
        if renewed:
            lease = Lease(0, invisible_until_ms, renewed[0].client_id, auto_renew=True)
            holding = self._held(lease, tuple(entry.offset for entry in renewed))
        for entry in entries:
            entry.invisible_until_ms = invisible_until_ms
        for entry in renewed:
            if entry.holding is not None:
                self._leave(entry)
            entry.holding = holding
        self._expiries.add(invisible_until_ms, noted)
        if self._lock_units is not None:
            for entry in entries:
                self._lock_units.changed(entry, entry.receiver)

    def entries_to_free(self) -> MutableMapping[int, InFlight]:
        """Return what is in flight, for the caller to free piece by piece after a reset."""
        return self._in_flight

    def reset(self, next_offset: int) -> None:
        """Forget what is in flight and go on at `next_offset`, which may lie before or after."""
        self._next_offset = next_offset
        # What holdings still name is not in flight any more, which they find out when they are due.
        self._in_flight, self._expiries, self._lock_units = _NOTHING, _NO_EXPIRIES, None

    def clamp(self, end: int) -> None:
        """Forget everything at or beyond `end`: the log no longer has it."""
        self._next_offset = min(self._next_offset, end)
        while self._in_flight and next(reversed(self._in_flight)) >= end:
            _, entry = self._in_flight.popitem()
            if entry.holding is not None:
                self._leave(entry)
            self._expiries.tidy()
        self._lock_units = None

    def restore(self, entries: Iterable[InFlight]) -> None:
        """Put saved entries in flight again, ascending by offset, into a fresh value."""
        assert not self._in_flight
        restored = OrderedDict((entry.offset, entry) for entry in entries)
        if not restored:
            return
        self._begun().update(restored)
        self._expiries.restore()
        held: dict[tuple[str, int], list[InFlight]] = {}
        for entry in restored.values():
            if entry.auto_renew:
                held.setdefault((entry.client_id, entry.invisible_until_ms), []).append(entry)
        for (client_id, until_ms), together in held.items():
            lease = Lease(0, until_ms, client_id, auto_renew=True)
            for start in range(0, len(together), RENEWED_OFFSETS_MAX):
                part = together[start : start + RENEWED_OFFSETS_MAX]
                holding = self._held(lease, tuple(entry.offset for entry in part))
                for entry in part:
                    entry.holding = holding

    def _begun(self) -> OrderedDict[int, InFlight]:
        """Return what is in flight, to be added to."""
        if self._in_flight is _NOTHING:
            self._in_flight = OrderedDict()
            self._expiries = Expiries(self._in_flight)
        return self._in_flight

    def _held(self, lease: Lease, offsets: tuple[int, ...]) -> Holding | None:
        """Return a new holding of messages that are delivered or renewed together, if they are."""
        if not lease.auto_renew or self._holdings is None:
            return None
        return self._holdings.add(self, lease.client_id, offsets, lease.invisible_until_ms)

    def _hold_anew(self, entry: InFlight, lease: Lease) -> None:
        if entry.holding is not None:
            self._leave(entry)
        if lease.auto_renew:
            entry.holding = self._held(lease, (entry.offset,))

    def _leave(self, entry: InFlight) -> None:
        holding, entry.holding = entry.holding, None
        if holding is not None and self._holdings is not None:
            self._holdings.leave(holding)
