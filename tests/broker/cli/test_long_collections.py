"""Full collections: one that took long is not repeated for the same objects."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from commitbus.broker.cli.long_collections import LongCollections


@pytest.fixture(autouse=True)
def _unfrozen() -> Iterator[None]:
    """Leave the collector as it was."""
    yield
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
