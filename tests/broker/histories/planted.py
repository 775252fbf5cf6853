"""Bugs to plant in what delivers messages, each to be found by random histories.

A bug replaces a function of the production code. Whoever adds a promise to consumers adds the bug
that breaks it, and sees it found.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple, final

import pytest

from commitbus.broker.consuming.long_polling import LongPolling
from commitbus.broker.consuming.turns import Turns
from commitbus.broker.progress.changes import EntryKind
from commitbus.broker.progress.fifo_lock import LockUnits
from commitbus.broker.progress.progress_table import ProgressTable
from commitbus.broker.progress.queue_progress import InFlight, Lease, QueueProgress
from commitbus.broker.receiving import locked_queue, taken, unordered
from commitbus.broker.receiving.taken import Taken
from tests.broker.histories import history
from tests.broker.histories.oracle import OracleError
from tests.broker.histories.seeds import consume

SEEDS_MAX: Final = 40
Plant = Callable[[pytest.MonkeyPatch], None]


@final
class Bug(NamedTuple):
    """A mistake and how to make it."""

    name: str
    mistake: str
    seed: int
    """Where it was found, and where the search begins."""
    plant: Plant


BUGS: Final[list[Bug]] = []


def hunt(seed: int) -> None:
    """Make the history of a seed.

    Raises:
        OracleError: it found something.
    """
    with TemporaryDirectory(prefix="commitbus-consuming-") as directory:
        consume(seed, Path(directory))


def find(bug: Bug, patch: pytest.MonkeyPatch) -> int | None:
    """Plant a bug and return the seed that finds it, None if none of `SEEDS_MAX` does."""
    bug.plant(patch)
    # What never comes need not be waited for as long as on a slow machine.
    patch.setattr(history, "REAL_WAITS_MAX", 50)
    for seed in range(bug.seed, bug.seed + SEEDS_MAX):
        try:
            hunt(seed)
        except OracleError:
            return seed
    return None


def _bug(mistake: str, *, seed: int = 0) -> Callable[[Plant], Plant]:
    def register(plant: Plant) -> Plant:
        BUGS.append(Bug(plant.__name__.strip("_").replace("_", "-"), mistake, seed, plant))
        return plant

    return register


@_bug("an acknowledgement is answered, and a kill undoes it")
def _forgotten_acknowledgement(patch: pytest.MonkeyPatch) -> None:
    original = ProgressTable._record

    def record(self: ProgressTable, kind: EntryKind, key_id: int, payload: bytes) -> int:
        if kind is EntryKind.ACKNOWLEDGE:
            return self.sequence
        return original(self, kind, key_id, payload)

    patch.setattr(ProgressTable, "_record", record)


@_bug("what was kept back for its turn in a FIFO group is forgotten by a kill", seed=1)
def _forgotten_hold(patch: pytest.MonkeyPatch) -> None:
    original = ProgressTable.hold

    def hold(self: ProgressTable, progress: QueueProgress, offsets: Any, **more: Any) -> None:
        original(self, progress, offsets[:1], **more)
        progress.hold(offsets[1:], next_offset=progress.next_offset)

    patch.setattr(ProgressTable, "hold", hold)


@_bug("a redelivery is counted as the attempt that it repeats")
def _attempts_not_counted(patch: pytest.MonkeyPatch) -> None:
    original = QueueProgress.redeliver

    def redeliver(self: QueueProgress, offset: int, lease: Lease, **_: bool) -> int:
        return original(self, offset, lease, counts=False)

    patch.setattr(QueueProgress, "redeliver", redeliver)


@_bug("a nacked message comes again a little before its time", seed=2)
def _nacked_too_early(patch: pytest.MonkeyPatch) -> None:
    original = QueueProgress.change_invisible

    def change(self: QueueProgress, offset: int, *, invisible_until_ms: int, **more: Any) -> None:
        original(self, offset, invisible_until_ms=invisible_until_ms - 50, **more)

    patch.setattr(QueueProgress, "change_invisible", change)


@_bug("who waits is not woken when a message becomes visible again")
def _expiry_wakes_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LongPolling, "_wake_expired", lambda *_: None)


@_bug("who waits for a group is not told that it was deleted")
def _deletion_wakes_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LongPolling, "forget_group", lambda *_: None)


@_bug("a repeated attempt of a FIFO group waits as every other")
def _attempt_not_repeated(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LockUnits, "repeated", lambda *_: [])


@_bug("who waits for room in a full queue is not woken by an acknowledgement", seed=3)
def _room_wakes_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LongPolling, "wake", lambda *_: None)


@_bug("a message is delivered once more than its group says")
def _one_attempt_more(patch: pytest.MonkeyPatch) -> None:
    original = taken.is_exhausted
    for module in (unordered, locked_queue):
        patch.setattr(module, "is_exhausted", lambda group, attempt: original(group, attempt - 1))


@_bug("a dead letter stays in flight, and is one again")
def _buried_twice(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Taken, "drop", lambda *_: None)


@_bug("a handle of before passes for the one of the delivery after it")
def _equal_pop_times(patch: pytest.MonkeyPatch) -> None:
    original = ProgressTable.redeliver

    def redeliver(
        self: ProgressTable, progress: QueueProgress, offset: int, lease: Lease, **more: Any
    ) -> int:
        at_ms = progress.in_flight[offset].pop_time_ms or lease.pop_time_ms
        return original(self, progress, offset, lease._replace(pop_time_ms=at_ms), **more)

    patch.setattr(ProgressTable, "redeliver", redeliver)


@_bug("a FIFO group is given what comes behind a message that is out", seed=1)
def _unlocked(patch: pytest.MonkeyPatch) -> None:
    def free(
        self: Any, now_ms: int, taken: Any, _: object, limit: int, **__: object
    ) -> list[InFlight]:
        entries = self._progress.in_flight.values()
        found = [e for e in entries if e.offset not in taken and e.invisible_until_ms <= now_ms]
        return found[:limit]

    patch.setattr(LockUnits, "free", free)


@_bug("a FIFO group is given what is visible again in the order in which it became so", seed=10)
def _out_of_order(patch: pytest.MonkeyPatch) -> None:
    original = LockUnits.free

    def free(
        self: Any, now_ms: int, taken: Any, passed: Any, limit: int, *, retries: bool
    ) -> list[InFlight]:
        everything = original(self, now_ms, taken, passed, 1 << 30, retries=retries)
        return sorted(everything, key=lambda entry: entry.invisible_until_ms)[:limit]

    patch.setattr(LockUnits, "free", free)


@_bug("what is visible again always comes before what is new")
def _retries_always_first(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Turns, "retries_begin", lambda *_: True)


@_bug("what is new always comes before what is visible again")
def _retries_never_first(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Turns, "retries_begin", lambda *_: False)


@_bug("the first queue is always the first", seed=16)
def _queues_do_not_take_turns(patch: pytest.MonkeyPatch) -> None:
    for name in ("queues_for_new", "queues_for_retries"):
        patch.setattr(Turns, name, lambda _, count: list(range(count)))


@_bug("an answer that its client does not read to the end is an attempt")
def _unread_is_an_attempt(patch: pytest.MonkeyPatch) -> None:
    original = ProgressTable.change_invisible

    def change(self: ProgressTable, *args: Any, suspend: bool, **more: Any) -> None:
        by_release = sys._getframe(1).f_code.co_name == "make_visible"
        original(self, *args, suspend=suspend and not by_release, **more)

    patch.setattr(ProgressTable, "change_invisible", change)
