"""The benchmark of a broker with much state, with little of it."""

from __future__ import annotations

import pytest

from bench import large_state


@pytest.mark.slow
def test_every_figure_is_measured_with_and_without_the_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {
        "TOPICS": 10,
        "GROUPS": 20,
        "GROUPS_WITH_PROGRESS": 5,
        "DELETED": 30,
        "IN_FLIGHT": 500,
        "SECONDS": 1.0,
        "IDLE_S": 0.5,
    }.items():
        monkeypatch.setattr(large_state, name, value)
    rows = large_state.large_state()
    figures = {state: set[str]() for state in ("large state", "empty")}
    for name, _, value, _ in rows:
        figure, state = name.rsplit(", ", 1)
        figures[state].add(figure)
        assert value >= 0
    assert figures["large state"] == figures["empty"]
    assert len(figures["empty"]) == 9
