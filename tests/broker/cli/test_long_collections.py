"""Full collections: one that took long is not repeated for the same objects."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from commitbus.broker.cli.long_collections import ALLOCATED_BLOCKS_MIN, RESTS, LongCollections


@pytest.fixture(autouse=True)
def _unfrozen() -> Iterator[None]:
    """Leave the collector as it was."""
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


@pytest.mark.parametrize(
    ("generation", "took_s", "is_set_aside"), [(2, 0.03, True), (2, 0.01, False), (1, 0.03, False)]
)
def test_what_survived_a_long_full_collection_is_set_aside(
    *, generation: int, took_s: float, is_set_aside: bool
) -> None:
    """With a million messages in flight, each took a fifth of a second."""
    times = iter([100.0, 100.0 + took_s])
    collections = LongCollections(lambda: next(times))
    before = gc.get_freeze_count()
    collections("start", {"generation": generation})
    collections("stop", {"generation": generation})
    assert (gc.get_freeze_count() > before) == is_set_aside


def test_what_is_set_aside_is_freed_when_nothing_refers_to_it() -> None:
    objects = [[n] for n in range(100_000)]
    collections = LongCollections(iter([0.0, 1.0]).__next__)
    gc.callbacks.append(collections)
    try:
        gc.collect()
    finally:
        gc.callbacks.remove(collections)
    count = gc.get_freeze_count()
    assert count >= 100_000
    del objects
    assert gc.get_freeze_count() <= count - 100_000


class _Cycle:
    """Refers to itself."""

    def __init__(self) -> None:
        self.itself = self


def test_cycles_that_were_set_aside_do_not_add_up_for_ever() -> None:
    """Once the process holds twice as much, all is looked at again, and once only."""
    blocks, now_s = ALLOCATED_BLOCKS_MIN, 0.0

    def monotonic_s() -> float:
        nonlocal now_s
        now_s += 1
        return now_s

    collections = LongCollections(monotonic_s, lambda: blocks)
    gc.callbacks.append(collections)
    try:
        cycle = _Cycle()
        is_gone = weakref.ref(cycle)
        gc.collect()
        del cycle
        blocks = 2 * ALLOCATED_BLOCKS_MIN
        gc.collect()
        assert is_gone() is not None
        blocks += 1
        gc.collect()
        assert gc.get_freeze_count() == 0
        gc.collect()
        assert is_gone() is None
        while blocks < 4 * ALLOCATED_BLOCKS_MIN:
            blocks += 100_000
            gc.collect()
            assert gc.get_freeze_count() > 0
    finally:
        gc.callbacks.remove(collections)


def test_after_a_full_collection_the_collector_rests() -> None:
    """A client that opens streams without end made one follow the other, 50 ms each."""
    times = iter([100.0, 100.05, 100.05 + RESTS * 0.05 - 0.1, 100.05 + RESTS * 0.05 + 0.1])
    collections = LongCollections(lambda: next(times))
    before = gc.get_threshold()
    collections("start", {"generation": 2})
    collections("stop", {"generation": 2})
    assert gc.get_threshold()[:2] == before[:2]
    assert gc.get_threshold()[2] > 1_000_000
    collections("start", {"generation": 1})
    assert gc.get_threshold()[2] > 1_000_000
    collections("start", {"generation": 1})
    assert gc.get_threshold() == before
    collections("start", {"generation": 1})
    assert gc.get_threshold() == before
