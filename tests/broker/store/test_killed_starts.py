"""A start may be killed anywhere, any number of times: the next one ends with the same bytes."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.broker.store.killed_starts import (
    fill,
    killed,
    live,
    settled,
    stay_open,
    without,
)
from tests.simulation.disk import Disk
from tests.simulation.process import derived_files

KILLS_IN_A_ROW = 3


def clean() -> Disk:
    """A store that was closed."""
    disk = Disk()
    live(disk, fill)
    return disk


def unclean() -> Disk:
    """A store whose process was killed."""
    disk = Disk()
    live(disk, lambda process: fill(process, closes=False))
    return disk


STORES: dict[str, Callable[[], Disk]] = {
    "queues removed": lambda: without(clean(), "consumequeue"),
    "a queue removed": lambda: without(clean(), "U"),
    "all derived removed": lambda: without(clean(), "consumequeue", "index"),
    "index removed": lambda: without(clean(), "index"),
    "killed": unclean,
}


@pytest.mark.parametrize("name", STORES)
@pytest.mark.parametrize("traced", [False, True], ids=["operations", "lines"])
def test_a_start_that_is_killed_leaves_nothing_to_the_next(name: str, *, traced: bool) -> None:
    """At any file operation or line, then a second and a third time at some other."""
    disk = STORES[name]()
    expected = settled(disk)
    if name != "killed":
        assert expected == derived_files(clean())
    choice = random.Random(name)  # noqa: S311 - repeatable, not secret
    step = 97 if traced else 7
    for point, left in killed(
        disk, stay_open, traced=traced, step=step, first=choice.randrange(step)
    ):
        for _ in range(KILLS_IN_A_ROW - 1):
            dies_at = choice.randrange(1, 2000 if traced else 250)
            live(left, stay_open, dies_at=dies_at, traced=traced)
        assert settled(left) == expected, f"killed at point {point}"


@pytest.mark.parametrize("name", [name for name in STORES if name != "killed"])
def test_a_power_cut_in_a_start_leaves_nothing_to_the_next(name: str) -> None:
    """Derived files may or may not be on the disk, whatever the checkpoint said before."""
    disk = STORES[name]()
    expected = settled(disk)
    choice = random.Random(name)  # noqa: S311 - repeatable, not secret
    for point, left in killed(disk, stay_open, step=11, first=choice.randrange(1, 12)):
        for again in left.state().disks(choice, 4):
            live(again, stay_open, dies_at=choice.randrange(1, 250))
            assert settled(again) == expected, f"power cut at point {point}"
