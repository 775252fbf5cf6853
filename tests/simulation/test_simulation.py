"""The production store under a simulated scheduler, clock and disk, with everything going wrong.

`COMMITBUS_SIM_SEED=17 pytest tests/simulation -k one_seed` runs a seed again;
`python -m tests.simulation.long --seed 17` does so with its log.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from commitbus.broker.store.salvage import salvage_store
from commitbus.commitlog.threads import SystemThreads
from commitbus.flush.policy import FlushMode
from tests.simulation.disk import Disk
from tests.simulation.files import Faults
from tests.simulation.hunts import cut_units_stay_cut, deletions_that_fail, topics_come_and_go
from tests.simulation.process import STORE, Process, message, store_config
from tests.simulation.scheduler import START_MS, Scheduler, SimulationError
from tests.simulation.themes import Theme
from tests.simulation.threads import SimulatedThreads
from tests.simulation.workload import Simulation, simulate

SEEDS_PER_TEST = 8


@pytest.mark.parametrize("first", range(0, 2 * SEEDS_PER_TEST, SEEDS_PER_TEST))
def test_every_promise_is_kept(first: int) -> None:
    """Kills, power cuts, full disks, failed syncs and a clock that is set back notwithstanding."""
    outcomes = [simulate(seed) for seed in range(first, first + SEEDS_PER_TEST)]
    assert sum(outcome.messages for outcome in outcomes) > 100


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 1000 + 5 * SEEDS_PER_TEST, SEEDS_PER_TEST))
def test_every_promise_is_kept_in_more_seeds(first: int) -> None:
    """As above."""
    for seed in range(first, first + SEEDS_PER_TEST):
        simulate(seed)


@pytest.mark.parametrize("theme", Theme, ids=lambda theme: theme.name.lower())
def test_every_theme_is_survived(theme: Theme) -> None:
    """Alone."""
    assert theme.name in simulate(0, frozenset({theme})).themes


@pytest.mark.slow
@pytest.mark.parametrize("theme", Theme, ids=lambda theme: theme.name.lower())
def test_every_theme_is_survived_in_more_seeds(theme: Theme) -> None:
    """Also with what a seed draws besides."""
    for seed in range(2000, 2000 + SEEDS_PER_TEST // 2):
        simulate(seed, frozenset({theme}))
        simulate(seed, frozenset({theme, *Simulation(seed).themes}))


@pytest.mark.parametrize(
    "hunt", [cut_units_stay_cut, deletions_that_fail], ids=lambda f: f.__name__
)
def test_what_was_found_once_is_looked_for_at_once(hunt: Callable[[int], None]) -> None:
    """Each needs several things to go wrong in one order, which seeds seldom draw."""
    for seed in range(2):
        hunt(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_topics_that_come_and_go_fail_no_flush(seed: int) -> None:
    """Names vanish while a checkpoint is about to sync them."""
    topics_come_and_go(seed)


def test_one_seed() -> None:
    """The one that the environment names, otherwise 0."""
    simulate(int(os.environ.get("COMMITBUS_SIM_SEED", "0")))


def test_a_seed_does_the_same_in_another_process() -> None:
    """Whatever the hashes of strings are there: the same points in the same order."""
    script = "from tests.simulation.workload import simulate\nprint(simulate(5), simulate(7))"
    outputs = [
        subprocess.run(
            [sys.executable, "-c", script],
            cwd=Path(__file__).resolve().parents[2],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1]
    assert "digest" in outputs[0]


def test_a_seed_does_the_same_whatever_was_before() -> None:
    """Nothing of a seed is left in the process."""
    first = [simulate(seed, frozenset(Theme)) for seed in range(2)]
    for seed in range(1, -1, -1):
        assert simulate(seed, frozenset(Theme)) == first[seed]


# The scheduler itself


def test_time_passes_only_when_nobody_can_run() -> None:
    """An hour is over at once."""
    scheduler = Scheduler(0)
    scheduler.run(lambda: scheduler.sleep(3600.0))
    assert scheduler.now_s == 3600.0


def test_a_deadlock_is_a_failure() -> None:
    """Nobody can run, and nobody waits for a time."""
    scheduler = Scheduler(0)
    event = SimulatedThreads(scheduler).event()

    def wait() -> None:
        event.wait()

    with pytest.raises(SimulationError, match="everybody waits for ever: main for an event"):
        scheduler.run(wait)


def test_an_unlucky_schedule_is_found_and_found_again() -> None:
    """Two threads that add without a lock lose an addition in some seeds, always in the same."""

    def lost(seed: int) -> bool:
        scheduler = Scheduler(seed, switch_probability=0.5)
        simulated = SimulatedThreads(scheduler)
        total = [0]

        def add() -> None:
            for _ in range(3):
                before = total[0]
                scheduler.point("between reading and writing")
                total[0] = before + 1

        def both() -> None:
            threads = [simulated.thread(add, "adder") for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        scheduler.run(both)
        return total[0] < 6

    first = [lost(seed) for seed in range(10)]
    assert any(first)
    assert first == [lost(seed) for seed in range(10)]


def test_a_store_takes_its_threads_and_locks_from_the_scheduler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A part that was given none would use the machine's, and no seed would find its races."""

    def refuse(*_: object) -> NoReturn:
        raise SimulationError("a thread or lock of the machine's")

    for name in ("lock", "condition", "event", "thread", "sleep"):
        monkeypatch.setattr(SystemThreads, name, refuse)
    process = Process(Disk(), Scheduler(1), Faults(), START_MS)

    def live() -> None:
        store = process.open(store_config(FlushMode.SYNC_FLUSH, log_file_bytes=1 << 13))
        for _ in range(20):
            store.put(message(("T", 0), bytes(2000), "k"))
        store.dispatched.wait(store.end_offset)
        store.keep_house()
        store.close()
        salvage_store(
            STORE,
            STORE.parent / "salvaged",
            config=store_config(FlushMode.SYNC_FLUSH, log_file_bytes=1 << 13),
            clock=process.clock,
            file_system=process.files,
            threads=process.threads,
        )

    assert process.run(live)
