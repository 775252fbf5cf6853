"""What a run has shown is judged by every bound."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.attacks.processor import Moment, Share, share
from tests.attacks.report import CALLS_MIN, Latencies, Report, latencies

FAST, SLOW = Latencies(CALLS_MIN, 1.0, 2.0, 3.0), Latencies(CALLS_MIN, 1.0, 6.1, 9.0)
GOOD = Report(
    peak_mb=399.0,
    undisturbed_mb=50.0,
    afterwards_mb=60.0,
    undisturbed={"all": FAST, "send": FAST},
    attacked={"all": FAST, "send": FAST},
    failures=[],
    sent=10,
    lost=[],
    probes={"health": (10, 0.1, [])},
    outcomes={"bombs": {"code 40000": 3}},
    alarms=[],
    log_kb=1.0,
    processor=(Share(0.1, 0.2), Share(0.5, 1.1)),
    exit_status=0,
)


def test_a_run_within_all_bounds_is_well() -> None:
    assert GOOD.broken() == []
    assert GOOD.ratio() == 1.0


@pytest.mark.parametrize(
    ("report", "said"),
    [
        (replace(GOOD, peak_mb=400.0), "400 MB"),
        (replace(GOOD, attacked={"all": SLOW}), "p99 3.0 times the"),
        (replace(GOOD, failures=[("send: grpc 8", 2)]), "2 times: send: grpc 8"),
        (replace(GOOD, lost=[7]), "never came: [7]"),
        (replace(GOOD, probes={"admin": (9, 5.0, ["grpc 8"])}), "admin: 1 not answered"),
        (replace(GOOD, alarms=["Traceback"]), "1 errors in the log"),
        (replace(GOOD, exit_status=-9), "ended with -9"),
    ],
)
def test_each_broken_bound_is_said(report: Report, said: str) -> None:
    (broken,) = report.broken()
    assert said in broken


def test_too_few_calls_have_no_percentile() -> None:
    few = Latencies(CALLS_MIN - 1, 1.0, 100.0, 100.0)
    report = replace(GOOD, attacked={"all": few})
    assert report.ratio() is None
    assert report.broken() == []
    assert "too few calls" in report.text()


def test_the_ratio_may_be_left_to_the_reader() -> None:
    report = replace(GOOD, attacked={"all": SLOW})
    assert report.broken(with_ratio=False) == []


def test_calls_belong_to_the_interval_in_which_they_were_to_begin() -> None:
    calls = [("send", 1.0, 5.0), ("send", 2.0, 0.1), ("ack", 2.5, 0.2), ("send", 3.0, 9.0)]
    of = latencies(calls, 2.0, 3.0)
    assert {kind: each.number for kind, each in of.items()} == {"all": 2, "send": 1, "ack": 1}
    assert of["all"].longest_ms == 200.0


def test_the_report_shows_everything() -> None:
    text = GOOD.text()
    for said in (
        "peak 399",
        "10 messages, 0 lost",
        "health",
        "bombs",
        "code 40000: 3",
        "1.00",
        "0.50 + 1.10",
    ):
        assert said in text


def test_what_the_server_did_not_use_others_did() -> None:
    used = share(Moment(10.0, 100.0, 5.0), Moment(20.0, 115.0, 10.0))
    assert (used.server, used.others) == (0.5, 1.0)
