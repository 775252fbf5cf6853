"""Rates and totals from counters."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import pytest

from commitbus.broker.core.counters import Counters
from commitbus.broker.observe.rates import WINDOW_S, DayTotals, Rates


@dataclass
class SetClock:
    """A clock that stands until it is moved."""

    ms: int = int(datetime(2026, 3, 10, 23, 0).astimezone().timestamp() * 1000)

    def now_ms(self) -> int:
        return self.ms

    def monotonic_s(self) -> float:
        return self.ms / 1000


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def counters() -> Counters:
    return Counters()


@pytest.fixture
def rates(counters: Counters, clock: SetClock) -> Rates:
    return Rates(counters, clock)


def test_a_rate_is_the_mean_since_the_start_at_first(
    rates: Rates, counters: Counters, clock: SetClock
) -> None:
    """Nobody waits a minute for the first figure."""
    assert rates.put_tps() == 0
    clock.ms += 10_000
    counters.count_sent("a", 30, 300)
    counters.count_sent("b", 10, 100)
    counters.count_received("g", "a", 20, 200)
    assert rates.put_tps("a") == 3
    assert rates.put_tps("nothing") == 0
    assert rates.put_tps() == 4
    assert rates.consume_tps("g") == 2
    assert rates.consume_tps("other") == 0


def test_what_is_older_than_the_window_no_longer_counts(
    rates: Rates, counters: Counters, clock: SetClock
) -> None:
    """A burst an hour ago is no rate now."""
    counters.count_sent("a", 6000, 0)
    for _ in range(100):
        clock.ms += 5_000
        rates.sample()
    assert rates.put_tps("a") == 0
    counters.count_sent("a", 60, 0)
    assert rates.put_tps("a") == pytest.approx(60 / WINDOW_S)


def test_totals_begin_anew_at_midnight(rates: Rates, counters: Counters, clock: SetClock) -> None:
    """What today had becomes yesterday's."""
    counters.count_sent("a", 5, 0)
    counters.count_received("g", "a", 3, 0)
    assert rates.today == DayTotals(5, 3)
    assert rates.yesterday == DayTotals()
    clock.ms += 2 * 3600 * 1000
    rates.sample()
    counters.count_sent("a", 2, 0)
    assert rates.today == DayTotals(2, 0)
    assert rates.yesterday == DayTotals(5, 3)


def test_a_topic_that_is_deleted_and_made_anew_never_counts_backwards(
    rates: Rates, counters: Counters, clock: SetClock
) -> None:
    """Its counters begin at 0 again; the day's totals keep what it had."""
    counters.count_sent("a", 50, 500)
    counters.count_received("g", "a", 50, 500)
    counters.count_acknowledged("g", "a", 50)
    rates.sample()
    clock.ms += 60_000
    rates.sample()
    counters.forget(topic="a")
    assert (counters.sent, counters.received, counters.acknowledged) == ({}, {}, {})
    counters.count_sent("a", 6, 60)
    assert rates.put_tps("a") == 0.1
    assert rates.today == DayTotals(56, 50)
    counters.count_received("g", "b", 1, 1)
    counters.count_dead_letter("g", "b")
    counters.forget(group="g")
    assert (counters.received, counters.dead_letters) == ({}, {})
