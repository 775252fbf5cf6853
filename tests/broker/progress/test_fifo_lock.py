"""What of a queue a FIFO group may have, beside a statement of the rule that is plain and slow."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from commitbus.broker.metadata.groups import LockUnit
from commitbus.broker.progress.fifo_lock import (
    LockUnits,
    Receiver,
    UnitName,
    lock_units,
)
from commitbus.broker.progress.queue_progress import InFlight, Lease, QueueProgress
from tests.work import lines_executed

RECEIVERS: list[Receiver] = [("client", "A"), ("client", ""), ("client", "B")]
START_MS = 1_000


def free_entries(
    progress: QueueProgress,
    now_ms: int,
    taken: Collection[int],
    unit_of: dict[int, UnitName],
    *,
    retries: bool,
) -> list[int]:
    """Say plainly what is free: nothing of its unit is out, unless this batch has it."""
    rest = [e for e in progress.in_flight.values() if e.offset not in taken]
    locked = {unit_of[e.offset] for e in rest if e.invisible_until_ms > now_ms}
    mine = {unit_of[offset] for offset in taken}
    firsts = {unit_of[e.offset]: e for e in [*progress.in_flight.values()][::-1]}
    found: list[tuple[int, int]] = []
    for entry in rest:
        unit, first = unit_of[entry.offset], firsts[unit_of[entry.offset]]
        if unit not in locked and (unit in mine or (first.delivery_attempt > 0) is retries):
            found.append((first.invisible_until_ms if retries else 0, entry.offset))
    return [offset for _, offset in sorted(found)]


def repeated_entries(
    progress: QueueProgress, now_ms: int, receiver: Receiver, unit_of: dict[int, UnitName]
) -> list[int]:
    """Say plainly what an attempt gets again."""
    entries = list(progress.in_flight.values())
    others = [e for e in entries if e.receiver != receiver]
    return [
        e.offset
        for e in entries
        if e.receiver == receiver
        and not any(
            unit_of[o.offset] == unit_of[e.offset]
            and (o.invisible_until_ms > now_ms or o.offset < e.offset)
            for o in others
        )
    ]


class Locking(RuleBasedStateMachine):
    """Any changes in any order, the clock set back among them; the index never disagrees."""

    def __init__(self) -> None:
        super().__init__()
        self.progress = QueueProgress(0)
        self.now_ms = START_MS
        self.unit_of: dict[int, UnitName] = {}
        self.whole = False

    def units(self) -> LockUnits:
        return lock_units(self.progress, LockUnit.QUEUE if self.whole else LockUnit.MESSAGE_GROUP)

    def lease(self, data: st.DataObject) -> Lease:
        until_ms = self.now_ms + data.draw(st.sampled_from([-5, 0, 1, 5, 40]))
        client_id, attempt_id = data.draw(st.sampled_from(RECEIVERS))
        return Lease(self.now_ms, until_ms, client_id, auto_renew=False, attempt_id=attempt_id)

    def offset(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.progress.in_flight)))

    @rule(names=st.lists(st.sampled_from("xyz"), max_size=5), held=st.booleans(), data=st.data())
    def add(self, names: list[str], held: bool, data: st.DataObject) -> None:  # noqa: FBT001 - drawn
        first = self.progress.next_offset
        offsets = range(first, first + len(names))
        self.unit_of |= dict(zip(offsets, names, strict=True))
        if held:
            self.progress.hold(offsets, next_offset=first + len(names) + 1)
        else:
            self.progress.deliver(offsets, self.lease(data), next_offset=first + len(names) + 1)

    @precondition(lambda self: self.progress.in_flight)
    @rule(data=st.data())
    def redeliver(self, data: st.DataObject) -> None:
        self.progress.redeliver(self.offset(data), self.lease(data))

    @precondition(lambda self: self.progress.in_flight)
    @rule(data=st.data(), after_ms=st.sampled_from([0, 1, 40]))
    def change(self, data: st.DataObject, after_ms: int) -> None:
        self.progress.change_invisible(
            self.offset(data),
            pop_time_ms=self.now_ms,
            invisible_until_ms=self.now_ms + after_ms,
            suspend=True,
        )

    @precondition(lambda self: self.progress.in_flight)
    @rule(data=st.data(), for_ms=st.sampled_from([1, 40]))
    def extend(self, data: st.DataObject, for_ms: int) -> None:
        self.progress.extend([self.offset(data)], self.now_ms + for_ms)

    @precondition(lambda self: self.progress.in_flight)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        self.progress.acknowledge(self.offset(data))

    @rule(by_ms=st.sampled_from([-20, 1, 5, 50]))
    def pass_time(self, by_ms: int) -> None:
        self.now_ms += by_ms

    @rule()
    def reset(self) -> None:
        self.progress.reset(self.progress.next_offset)

    @rule()
    def change_the_unit(self) -> None:
        self.whole = not self.whole

    @precondition(lambda self: self.progress.in_flight and not self.whole)
    @rule(data=st.data())
    def become_readable(self, data: st.DataObject) -> None:
        """One that was a unit of its own is found to be of a group, after later ones were."""
        offset = self.offset(data)
        self.units().forget(offset)
        self.units().assign({offset: offset})
        assert self.units().name_of(offset) == offset
        self.units().forget(offset)
        assert self.units().name_of(offset) is None

    @rule(data=st.data(), limit=st.integers(1, 6))
    def ask(self, data: st.DataObject, limit: int) -> None:
        units, in_flight = self.units(), sorted(self.progress.in_flight)
        unknown = units.unknown(1_000)
        assert sorted(unknown) == [o for o in in_flight if units.name_of(o) is None and unknown]
        units.assign({offset: self.unit_of[offset] for offset in unknown})
        unit_of = dict.fromkeys(self.unit_of) if self.whole else self.unit_of
        taken = set(data.draw(st.lists(st.sampled_from(in_flight)))) if in_flight else set()
        passed = set(data.draw(st.lists(st.sampled_from("xyz"), max_size=1)))
        for retries in (False, True, False, True):  # a question changes nothing
            free = free_entries(self.progress, self.now_ms, taken, unit_of, retries=retries)
            wanted = [offset for offset in free if unit_of[offset] not in passed]
            found = units.free(self.now_ms, taken, passed, limit, retries=retries)
            assert [entry.offset for entry in found] == wanted[:limit]
            there = free_entries(self.progress, self.now_ms, (), unit_of, retries=retries)
            assert units.has_free(self.now_ms, retries=retries) == bool(there)
        receiver = data.draw(st.sampled_from([RECEIVERS[0], RECEIVERS[2]]))
        repeated = repeated_entries(self.progress, self.now_ms, receiver, unit_of)
        assert [e.offset for e in units.repeated(self.now_ms, receiver)] == repeated

    @invariant()
    def time_sets_free_what_is_out_next(self) -> None:
        """What is visible already is nothing that time will change."""
        untils = [e.invisible_until_ms for e in self.progress.in_flight.values()]
        expected = min((until for until in untils if until > self.now_ms), default=None)
        assert self.units().next_free_ms(self.now_ms) == expected


test_the_index_says_what_the_rule_says = Locking.TestCase
test_the_index_says_what_the_rule_says.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None
)


def stuck_queue(held: int) -> tuple[QueueProgress, LockUnits]:
    """Make a queue with a stuck message of group a, others of a behind it, and one of b."""
    progress = QueueProgress(0)
    progress.hold(range(held), next_offset=held)
    units = lock_units(progress, LockUnit.MESSAGE_GROUP)
    units.assign(dict.fromkeys(units.unknown(held), "a"))
    assert units.unknown(1) == []
    lease = Lease(START_MS, 10**15, "client", auto_renew=True, attempt_id="A")
    progress.redeliver(0, lease)
    return progress, units


def neighbour(progress: QueueProgress, units: LockUnits, now_ms: int) -> None:
    """Let a message of group b be held back, found, delivered, changed and acknowledged."""
    offset = progress.next_offset
    progress.hold([offset], next_offset=offset + 1)
    assert units.unknown(1_000) == [offset]
    units.assign({offset: "b"})
    (entry,) = units.free(now_ms, (), (), 32, retries=False)
    assert entry.offset == offset
    assert progress.redeliver(offset, Lease(now_ms, now_ms + 9, "b", auto_renew=False)) == 1
    assert units.free(now_ms, (), (), 32, retries=True) == []
    assert [e.offset for e in units.repeated(now_ms, RECEIVERS[0])] == [0]
    assert [e.offset for e in units.free(now_ms + 9, (), (), 32, retries=True)] == [offset]
    assert units.next_free_ms(now_ms + 10) == 10**15
    assert progress.acknowledge(offset)


def test_a_look_costs_nothing_of_what_is_held_back() -> None:
    """Lines of Python that run, with ten and with ten thousand behind the stuck message."""
    counts: list[int] = []
    for held in 10, 10_000:
        progress, units = stuck_queue(held)
        with lines_executed("/metadata/") as work:
            for turn in range(3):
                neighbour(progress, units, START_MS + 20 * turn)
        counts.append(work.lines)
    assert counts[1] <= counts[0] * 1.1


@pytest.mark.parametrize("release", [True, False])
def test_what_a_group_acknowledged_costs_it_nothing_later(release: bool) -> None:  # noqa: FBT001 - drawn
    """Neither at its front, nor behind a message that is tried again and again."""
    counts: list[int] = []
    for done in 10, 5_000:
        progress, units = stuck_queue(2 * done)
        for offset in range(0 if release else 1, done):
            progress.acknowledge(offset)
        if not release:
            progress.change_invisible(0, pop_time_ms=1, invisible_until_ms=0, suspend=True)
        units.free(START_MS, (), (), 3, retries=not release)
        with lines_executed("/metadata/") as work:
            found = units.free(START_MS, (), (), 3, retries=not release)
        counts.append(work.lines)
        assert [e.offset for e in found][1:] == [done + release, done + 1 + release]
    assert counts[1] <= counts[0] * 1.1


def test_outdated_times_do_not_pile_up() -> None:
    """A message whose invisible time is changed again and again takes the memory of one."""
    progress, units = stuck_queue(10)
    for number in range(5_000):
        progress.change_invisible(
            0, pop_time_ms=number, invisible_until_ms=10**15 + number, suspend=False
        )
        progress.change_invisible(1, pop_time_ms=number, invisible_until_ms=0, suspend=False)
    heaps: Any = (units._outs, *units._ready)
    assert max(map(len, heaps)) < 200


def test_units_are_read_in_parts() -> None:
    """What is known is not asked for again; what is gone is not either."""
    progress = QueueProgress(0)
    progress.hold(range(10), next_offset=10)
    units = lock_units(progress, LockUnit.MESSAGE_GROUP)
    assert units.unknown(4) == [0, 1, 2, 3]
    units.assign(dict.fromkeys(range(4), "a"))
    progress.acknowledge(5)
    assert units.unknown(4) == [4, 6, 7, 8]
    # Another reader was quicker.
    units.assign({1: "b", 4: "b", 5: "b"})
    assert [units.name_of(offset) for offset in (1, 4, 5)] == ["a", "b", None]


def test_an_entry_without_a_change_is_shared() -> None:
    """The index returns the progress's own entries, not copies."""
    progress, units = stuck_queue(1)
    progress.change_invisible(0, pop_time_ms=1, invisible_until_ms=0, suspend=True)
    (entry,) = units.free(START_MS, (), (), 1, retries=True)
    assert isinstance(entry, InFlight)
    assert entry is progress.in_flight[0]
