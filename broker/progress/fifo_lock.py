"""The messages of a queue that a FIFO group may get now, by lock unit.

Messages of one lock unit are delivered in the order of their offsets, and none of them while a
batch of the unit is out. A unit is the whole queue, or one message group of it.

    offset     17   19   20   22   23      in flight; 18 and 21 are acknowledged and done
    unit        A    B    A    C    B
    visible    yes   no  yes  held yes     B is locked: 17, 20 and 22 may go, 23 waits for 19

`LockUnits` is an index beside a queue's progress, which tells it of every change. So the cost of a
look is proportional to its result and to the changes since the last look, however much a locked
unit holds back. The index is made at the first look after a start, and never saved.

Order is promised inside a unit only. A unit whose first message was delivered before is a retry,
any other unit is new. The caller names the kind it wants, so that neither kind starves the other.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final, final

from commitbus.broker.metadata.groups import LockUnit

if TYPE_CHECKING:
    from commitbus.broker.progress.queue_progress import InFlight, QueueProgress

UnitName = Hashable
"""The name of a lock unit: a message group, None for a whole queue."""

Receiver = tuple[str, str]
"""A client id, and the attempt to receive by which the client repeats a call; empty without one."""

_Note = tuple[int, int]
"""A unit that is not locked: the end of its first message's invisible time, and the offset."""
_Next = tuple[int, int, Iterator[int]]
"""The place of a unit among others: its time, the offset that is next, those that follow."""
_SLACK: Final = 64
"""Outdated heap entries that are not worth a rebuild."""


@final
@dataclass(slots=True, eq=False)
class _Unit:
    name: UnitName
    offsets: OrderedDict[int, None] = field(default_factory=OrderedDict)
    """In flight, ascending. Ordered, because a dict finds its first key slowly after deletions."""
    out: set[int] = field(default_factory=set)
    """Those that are invisible: while there are any the unit is locked."""

    @property
    def first(self) -> int:
        return next(iter(self.offsets))


@final
class LockUnits:
    """Index of what is in flight in one queue. Used on the trio thread only.

    Args:
        progress: Says what is in flight. Only read.
        whole_queue: Whether the queue is one unit. If not, the units must be read from the log:
            `unknown` returns of which messages, and `assign` takes the result.
    """

    def __init__(self, progress: QueueProgress, *, whole_queue: bool) -> None:
        self.whole_queue: Final = whole_queue
        self._was_full = False
        self._progress = progress
        self._units: dict[UnitName, _Unit] = {}
        self._unit_of: dict[int, _Unit] = {}
        self._unknown: deque[int] = deque()
        self._delivered: set[int] = set()
        # The offsets that each receiver has, of receivers which name an attempt.
        self._received: dict[Receiver, set[int]] = {}
        # Heap of (invisible until, offset). An outdated pair has not the offset's present time.
        self._outs: list[tuple[int, int]] = []
        # Heaps of the units that are not locked: the new ones, and the retries. A note is outdated
        # once the unit is locked, of the other kind, or has another first message or time.
        self._ready: tuple[list[_Note], list[_Note]] = ([], [])
        # Lengths from which the heaps are cleared of what is outdated. An invisible time of hours
        # would let it pile up for hours.
        self._outs_max, self._ready_max = _SLACK, [_SLACK, _SLACK]
        self._now_ms = 0
        self.added(progress.in_flight)

    # Changes, told by the progress

    def added(self, offsets: Iterable[int]) -> None:
        """Note messages that were put in flight."""
        in_flight = self._progress.in_flight
        for offset in offsets:
            entry = in_flight[offset]
            self._note_receiver(entry)
            if entry.delivery_attempt:
                self._delivered.add(offset)
            if entry.invisible_until_ms > self._now_ms:
                self._note_out(entry)
            if self.whole_queue:
                self._assign(offset, None)
            else:
                self._unknown.append(offset)

    def changed(self, entry: InFlight, previous_receiver: Receiver) -> None:
        """Note that a message in flight has another receiver, or is invisible for another time."""
        if entry.delivery_attempt:
            self._delivered.add(entry.offset)
        if entry.receiver != previous_receiver:
            self._forget_receiver(entry.offset, previous_receiver)
            self._note_receiver(entry)
        offset, unit = entry.offset, self._unit_of.get(entry.offset)
        is_out = entry.invisible_until_ms > self._now_ms
        if is_out:
            self._note_out(entry)
        if unit is not None:
            if is_out:
                unit.out.add(offset)
            else:
                unit.out.discard(offset)
                self._note_ready(unit)

    def removed(self, entry: InFlight) -> None:
        """Note that a message is not in flight any more."""
        self._delivered.discard(entry.offset)
        self._forget_receiver(entry.offset, entry.receiver)
        self._unassign(entry.offset)

    @property
    def held_back(self) -> int:
        """The number of messages that wait for their turn and were never delivered."""
        return self._progress.in_flight_count - len(self._delivered)

    def is_newly_full(self, limit: int) -> bool:
        """Return True once when `limit` messages are held back, and again after half of it left."""
        is_full, was_full = self.held_back >= limit, self._was_full
        self._was_full = is_full or (was_full and self.held_back > limit // 2)
        return is_full and not was_full

    # Which message belongs to which unit

    def unknown(self, limit: int) -> list[int]:
        """Return up to `limit` offsets whose unit is unknown, those that came first."""
        unknown, found = self._unknown, dict[int, None]()
        while unknown and not self._is_unknown(unknown[0]):
            unknown.popleft()
        for offset in unknown:
            if len(found) == limit:
                break
            if self._is_unknown(offset):
                found[offset] = None
        return list(found)

    def assign(self, names: Mapping[int, UnitName]) -> None:
        """Take the units of messages, by offset; those that are known already stay as they are."""
        for offset, name in names.items():
            if self._is_unknown(offset):
                self._assign(offset, name)

    def name_of(self, offset: int) -> UnitName:
        """Return the unit of a message; None where it is not in flight or unknown."""
        unit = self._unit_of.get(offset)
        return None if unit is None else unit.name

    def forget(self, offset: int) -> None:
        """Let the unit of a message be unknown again."""
        if offset in self._unit_of:
            self._unassign(offset)
            self._unknown.append(offset)

    # Questions

    def free(
        self,
        now_ms: int,
        taken: Collection[int],
        passed: Collection[UnitName],
        limit: int,
        *,
        retries: bool,
    ) -> list[InFlight]:
        """Return what may be delivered: all of every unit of one kind of which nothing is out.

        Each unit is in order. New ones come by their offsets, of retries the one that has waited
        longest is first.

        Args:
            now_ms: The time.
            taken: Offsets that are part of this very batch; they lock nothing and are not returned.
                What follows them in their units is, whatever the kind.
            passed: Units of which nothing is wanted.
            limit: How many are returned at most.
            retries: Whether units are wanted whose first message was delivered before. Else the
                others are.
        """
        self._advance(now_ms)
        in_flight, ready = self._progress.in_flight, self._ready[retries]
        mine = self._units_of(taken)
        nexts: list[_Next] = []
        for unit, offsets in mine.items():
            if unit.out <= offsets:
                since_ms = in_flight[unit.first].invisible_until_ms if retries else 0
                _add_next(nexts, unit, since_ms, taken, passed)
        found: list[InFlight] = []
        popped: list[_Note] = []
        while len(found) < limit:
            while ready and (not nexts or ready[0] < nexts[0][:2]):
                note = heappop(ready)
                if not self._is_ready(note, retries=retries) or (popped and popped[-1] == note):
                    continue
                popped.append(note)
                since_ms, offset = note
                unit = self._unit_of[offset]
                if unit not in mine:
                    _add_next(nexts, unit, since_ms if retries else 0, taken, passed)
            if not nexts:
                break
            since_ms, offset, following = heappop(nexts)
            found.append(in_flight[offset])
            _add(nexts, since_ms, following)
        for note in popped:
            heappush(ready, note)
        return found

    def has_free(self, now_ms: int, *, retries: bool) -> bool:
        """Return whether there is a unit of one kind of which nothing is out."""
        self._advance(now_ms)
        ready = self._ready[retries]
        while ready and not self._is_ready(ready[0], retries=retries):
            heappop(ready)
        return bool(ready)

    def repeated(self, now_ms: int, receiver: Receiver) -> list[InFlight]:
        """Return what the same attempt has received before and is still in flight, in order.

        Not of a unit that somebody else has a part of meanwhile, and nothing that would overtake a
        message before it.

        Args:
            now_ms: The time.
            receiver: The client, with an attempt.
        """
        self._advance(now_ms)
        found: list[int] = []
        for unit, offsets in self._units_of(self._received.get(receiver, ())).items():
            if unit.out <= offsets:
                for offset in unit.offsets:
                    if offset not in offsets:
                        break
                    found.append(offset)
        return [self._progress.in_flight[offset] for offset in sorted(found)]

    def next_free_ms(self, now_ms: int) -> int | None:
        """Return when something that is out becomes visible next; None when nothing is out."""
        self._advance(now_ms)
        while self._outs:
            until_ms, offset = self._outs[0]
            if self._is_present(until_ms, offset):
                return until_ms
            heappop(self._outs)
        return None

    def _advance(self, now_ms: int) -> None:
        """Unlock what has become visible."""
        if now_ms < self._now_ms:
            # The wall clock was set back: what had become visible is not any more.
            self._now_ms = now_ms
            self._rebuild_outs()
            return
        self._now_ms = now_ms
        outs = self._outs
        while outs and outs[0][0] <= now_ms:
            until_ms, offset = heappop(outs)
            unit = self._unit_of.get(offset)
            if unit is not None and self._is_present(until_ms, offset):
                unit.out.discard(offset)
                self._note_ready(unit)

    def _rebuild_outs(self) -> None:
        """Find out anew what is out, by a look at everything in flight."""
        in_flight, now_ms = self._progress.in_flight, self._now_ms
        outs = [(entry.invisible_until_ms, offset) for offset, entry in in_flight.items()]
        self._outs = [out for out in outs if out[0] > now_ms]
        heapify(self._outs)
        for unit in self._units.values():
            unit.out = {o for o in unit.offsets if in_flight[o].invisible_until_ms > now_ms}
        self._ready, self._ready_max = ([], []), [_SLACK, _SLACK]
        for unit in self._units.values():
            self._note_ready(unit)

    def _note_out(self, entry: InFlight) -> None:
        heappush(self._outs, (entry.invisible_until_ms, entry.offset))
        if len(self._outs) > self._outs_max:
            self._outs = [out for out in set(self._outs) if self._is_present(*out)]
            heapify(self._outs)
            self._outs_max = 2 * len(self._outs) + _SLACK

    def _note_ready(self, unit: _Unit) -> None:
        if unit.out:
            return
        first = unit.first
        retries = first in self._delivered
        ready = self._ready[retries]
        heappush(ready, (self._progress.in_flight[first].invisible_until_ms, first))
        if len(ready) > self._ready_max[retries]:
            ready[:] = [note for note in set(ready) if self._is_ready(note, retries=retries)]
            heapify(ready)
            self._ready_max[retries] = 2 * len(ready) + _SLACK

    def _is_ready(self, note: _Note, *, retries: bool) -> bool:
        until_ms, offset = note
        unit = self._unit_of.get(offset)
        return (
            unit is not None
            and not unit.out
            and unit.first == offset
            and (offset in self._delivered) is retries
            and self._is_present(until_ms, offset)
        )

    def _is_present(self, until_ms: int, offset: int) -> bool:
        entry = self._progress.in_flight.get(offset)
        return entry is not None and entry.invisible_until_ms == until_ms

    def _is_unknown(self, offset: int) -> bool:
        return offset in self._progress.in_flight and offset not in self._unit_of

    def _assign(self, offset: int, name: UnitName) -> None:
        unit = self._units.get(name)
        if unit is None:
            unit = self._units[name] = _Unit(name)
        is_last = not unit.offsets or next(reversed(unit.offsets)) < offset
        unit.offsets[offset] = None
        if not is_last:
            # Only a message that could not be read before becomes known after later ones.
            unit.offsets = OrderedDict.fromkeys(sorted(unit.offsets))
        self._unit_of[offset] = unit
        if self._progress.in_flight[offset].invisible_until_ms > self._now_ms:
            unit.out.add(offset)
        elif unit.first == offset:
            self._note_ready(unit)

    def _unassign(self, offset: int) -> None:
        unit = self._unit_of.pop(offset, None)
        if unit is None:
            return
        del unit.offsets[offset]
        unit.out.discard(offset)
        if unit.offsets:
            self._note_ready(unit)
        else:
            del self._units[unit.name]

    def _note_receiver(self, entry: InFlight) -> None:
        if entry.attempt_id:
            self._received.setdefault(entry.receiver, set()).add(entry.offset)

    def _forget_receiver(self, offset: int, receiver: Receiver) -> None:
        offsets = self._received.get(receiver)
        if offsets is not None:
            offsets.discard(offset)
            if not offsets:
                del self._received[receiver]

    def _units_of(self, offsets: Iterable[int]) -> dict[_Unit, set[int]]:
        """Return the units of those that are in flight, each with its part of them."""
        units: dict[_Unit, set[int]] = {}
        for offset in offsets:
            unit = self._unit_of.get(offset)
            if unit is not None:
                units.setdefault(unit, set()).add(offset)
        return units


def lock_units(progress: QueueProgress, unit: LockUnit) -> LockUnits:
    """Return the index of a queue's lock units, made now if there is none of this kind."""
    return progress.begin_lock_units(whole_queue=unit is LockUnit.QUEUE)


def _add_next(
    nexts: list[_Next],
    unit: _Unit,
    since_ms: int,
    taken: Collection[int],
    passed: Collection[UnitName],
) -> None:
    if unit.name not in passed:
        _add(nexts, since_ms, (offset for offset in unit.offsets if offset not in taken))


def _add(nexts: list[_Next], since_ms: int, offsets: Iterator[int]) -> None:
    first = next(offsets, None)
    if first is not None:
        heappush(nexts, (since_ms, first, offsets))
