"""Counters: how many pairs of names they keep, and what a deletion costs."""

from __future__ import annotations

from time import thread_time

import pytest

from commitbus.broker.core import counters as module
from commitbus.broker.core.counters import OTHERS, Counters


def test_beyond_a_number_of_pairs_further_ones_are_counted_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Clients name groups; what is forgotten makes room."""
    monkeypatch.setattr(module, "COUNTED_MAX", 2)
    counters = Counters()
    for group in ("a", "b", "c", "a", "d"):
        counters.count_received(group, "T", 1, 10)
        counters.count_acknowledged(group, "T", 1)
        counters.count_dead_letter(group, "T")
    assert {key: traffic.messages for key, traffic in counters.received.items()} == {
        ("a", "T"): 2,
        ("b", "T"): 1,
        OTHERS: 2,
    }
    assert (
        counters.acknowledged == counters.dead_letters == {("a", "T"): 2, ("b", "T"): 1, OTHERS: 2}
    )
    assert counters.messages_out == 5
    counters.forget(group="a")
    counters.forget(group="b")
    counters.count_received("c", "T", 1, 10)
    assert counters.received["c", "T"].messages == 1
    counters.forget(topic="T")
    assert counters.received.keys() == {OTHERS}


def test_to_forget_a_group_takes_no_look_at_others() -> None:
    """Thousands may be forgotten one after the other."""
    counters = Counters()
    for number in range(50_000):
        counters.count_received(str(number), "T", 1, 10)
    begin = thread_time()
    for number in range(500):
        counters.forget(group=str(number))
    assert thread_time() - begin < 0.1
    assert len(counters.received) == 49_500
