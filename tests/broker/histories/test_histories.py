"""Random histories of sending, receiving, answering, waiting, restarting and killing.

`python -m tests.broker.histories --seed 17` runs a seed again, with all its steps.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.broker.histories.outcome import Outcome
from tests.broker.histories.seeds import consume

SEEDS_PER_TEST = 4


def consume_all(directory: Path, first: int) -> Outcome:
    """Make the histories of some seeds, and count what was in them."""
    total = Outcome()
    for seed in range(first, first + SEEDS_PER_TEST):
        total.add(consume(seed, directory / str(seed)))
    return total


@pytest.mark.parametrize("first", range(0, 3 * SEEDS_PER_TEST, SEEDS_PER_TEST))
def test_every_promise_to_consumers_is_kept(first: int, tmp_path: Path) -> None:
    """And there is enough in a history that one could be broken."""
    total = consume_all(tmp_path, first)
    assert all(count > 5 for count in vars(total).values()), total


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 1000 + 10 * SEEDS_PER_TEST, SEEDS_PER_TEST))
def test_every_promise_to_consumers_is_kept_in_more_seeds(first: int, tmp_path: Path) -> None:
    """As above."""
    consume_all(tmp_path, first)


def test_a_seed_is_the_same_history_each_time(tmp_path: Path) -> None:
    """A failure can be looked at again."""
    first, second = (consume(7, tmp_path / name) for name in ("first", "second"))
    assert first == second
