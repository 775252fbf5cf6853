"""The figures of a run: rounds in turn, medians, ratios, the table, JSON."""

from __future__ import annotations

import json
import signal

import pytest

from bench.measure import (
    OURS,
    Benchmark,
    Figure,
    Row,
    clean_up_when_terminated,
    report,
    run_rounds,
)


def fixed(calls: list[str], name: str, *values: float, unit: str = "msg/s") -> Benchmark:
    """A benchmark that returns one value per call and notes that it was called."""
    rest = list(values)

    def benchmark() -> list[Row]:
        calls.append(name)
        return [("append", unit, rest.pop(0), f"note of {name}")]

    return benchmark


def test_the_contenders_take_turns_in_beginning() -> None:
    """Whatever comes second always would be measured with the other one's pages and heat."""
    calls: list[str] = []
    contest = {OURS: fixed(calls, "ours", 1, 2, 3), "Peer": fixed(calls, "peer", 4, 5, 6)}
    (figure,) = run_rounds([contest], 3)
    assert calls == ["ours", "peer", "peer", "ours", "ours", "peer"]
    assert figure.values == {OURS: [1, 2, 3], "Peer": [4, 5, 6]}
    assert figure.notes == {OURS: "note of ours", "Peer": "note of peer"}


def test_contests_are_interleaved_not_run_one_after_the_other() -> None:
    calls: list[str] = []
    run_rounds([{OURS: fixed(calls, "a", 1, 1)}, {OURS: fixed(calls, "b", 1, 1)}], 2)
    assert calls == ["a", "b", "a", "b"]


@pytest.mark.parametrize(("unit", "ahead"), [("msg/s", 0.5), ("us", 2.0), ("MB", 2.0), ("s", 2.0)])
def test_a_ratio_over_one_means_that_we_are_better(unit: str, ahead: float) -> None:
    figure = Figure("x", unit, {OURS: [10.0], "Peer": [20.0]})
    assert figure.ratio("Peer") == pytest.approx(ahead)


def test_the_ratio_is_the_median_of_the_rounds_own_ratios() -> None:
    """A round that was slow for both is a comparison like any other."""
    figure = Figure("x", "msg/s", {OURS: [100, 10, 90], "Peer": [50, 5, 30]})
    assert figure.ratio("Peer") == pytest.approx(2.0)


def test_twice_as_fast_in_one_round_and_half_in_the_other_is_equal() -> None:
    """The mean of 2 and 0.5 would favour whoever is on top of the fraction."""
    figure = Figure("x", "msg/s", {OURS: [20, 10], "Peer": [10, 20]})
    assert figure.ratio("Peer") == pytest.approx(1.0)


@pytest.mark.parametrize("values", [{OURS: [1.0]}, {"Peer": [1.0]}, {OURS: [1.0], "Peer": [0.0]}])
def test_without_two_values_there_is_no_ratio(values: dict[str, list[float]]) -> None:
    assert Figure("x", "msg/s", values).ratio("Peer") is None


def test_the_table_has_a_column_for_each_contender_and_one_for_each_ratio() -> None:
    figures = [
        Figure("append", "msg/s", {"Peer": [1000, 3000, 2000], OURS: [4000, 6000, 5000]},
               {OURS: "1 KB", "Peer": "warm"}),
        Figure("start", "s", {OURS: [0.51234]}),
    ]  # fmt: skip
    lines = report(figures, ["Peer 1.0"], as_json=False).splitlines()
    assert lines[1] == "Peer 1.0"
    assert lines[-4] == "| figure | unit | commitbus | Peer | ahead of Peer | note |"
    assert lines[-2] == (
        "| append | msg/s | 5,000 (4,000 to 6,000) | 2,000 (1,000 to 3,000) | 2.5x "
        "| 1 KB; Peer: warm |"
    )
    assert lines[-1] == "| start | s | 0.512 |  |  |  |"


def test_the_json_has_every_value() -> None:
    figures = [Figure("append", "msg/s", {OURS: [4.0, 6.0], "Peer": [2.0, 2.0]}, {OURS: "1 KB"})]
    found = json.loads(report(figures, ["Redis was skipped: no redis-server"], as_json=True))
    assert found["remarks"] == ["Redis was skipped: no redis-server"]
    assert found["machine"]["cores"] >= 1
    assert found["figures"] == [
        {
            "name": "append",
            "unit": "msg/s",
            "values": {OURS: [4.0, 6.0], "Peer": [2.0, 2.0]},
            "medians": {OURS: 5.0, "Peer": 2.0},
            "ahead_of": {"Peer": pytest.approx(6**0.5)},
            "notes": {OURS: "1 KB"},
        }
    ]


def test_a_terminated_run_ends_as_by_an_exception() -> None:
    """So that `with` blocks stop their servers and remove their directories."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        clean_up_when_terminated()
        with pytest.raises(SystemExit):
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
