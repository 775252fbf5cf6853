"""Groups that commit at a rate, few of them."""

from __future__ import annotations

import pytest

from bench import progress
from bench.handlers import run


def test_saving_is_a_share_of_a_core_at_the_rate_that_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {"GROUPS": 3, "QUEUES": 4, "COMMITS_PER_S": 2_000, "SECONDS": 0.3}.items():
        monkeypatch.setattr(progress, name, value)
    ((name, unit, share, note),) = run(progress.measure_commits)
    assert (name, unit) == ("3 groups x 4 queues commit, saving", "% of a core")
    assert share > 0
    rate = float(note.partition(" commits/s")[0].replace(",", ""))
    assert 0 < rate <= 2_000
