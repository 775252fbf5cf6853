"""Bugs to plant: each a mistake that a store could have, each to be found by the tests here.

A bug replaces a function of the production code. Whoever adds a promise to the store adds the bug
that breaks it, and sees it found. They are in `planted.py` and `planted_faults.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Final, NamedTuple, final

import pytest

from tests.simulation.scheduler import SimulationError
from tests.simulation.themes import Theme
from tests.simulation.workload import simulate

SEEDS_MAX: Final = 40
Plant = Callable[[pytest.MonkeyPatch], None]


@final
class Bug(NamedTuple):
    """A mistake and how to make it."""

    name: str
    mistake: str
    seed: int
    """Where it was found, and where the search begins."""
    hunt: Callable[[int], object]
    """What finds it, given a seed: the simulation, or something that comes to the point sooner."""
    plant: Plant


_BUGS: Final[list[Bug]] = []


def all_bugs() -> list[Bug]:
    """Return every planted bug."""
    for name in ("planted", "planted_faults"):
        import_module(f"tests.simulation.{name}")
    return _BUGS


def find(bug: Bug, patch: pytest.MonkeyPatch) -> int | None:
    """Plant a bug and return the seed that finds it, None if none of `SEEDS_MAX` does."""
    bug.plant(patch)
    for seed in range(bug.seed, bug.seed + SEEDS_MAX):
        try:
            bug.hunt(seed)
        except SimulationError:
            return seed
    return None


def without_themes(seed: int) -> None:
    """Run a seed with kills, power cuts, full disks and failed syncs only."""
    simulate(seed, frozenset())


def with_themes(*themes: Theme) -> Callable[[int], object]:
    """Return a hunt that runs a seed with these themes, and no others."""
    return partial(simulate, themes=frozenset(themes))


def bug(
    mistake: str, *, seed: int = 0, hunt: Callable[[int], object] = without_themes
) -> Callable[[Plant], Plant]:
    """Return a decorator for a function that plants a bug, named by it."""

    def register(plant: Plant) -> Plant:
        name = plant.__name__.strip("_").replace("_", "-")
        _BUGS.append(Bug(name, mistake, seed, hunt, plant))
        return plant

    return register
