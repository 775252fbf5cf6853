"""Whether the simulation would find a bug, found out by making some."""

from __future__ import annotations

import pytest

from tests.simulation.bugs import Bug, all_bugs, find


def test_there_are_enough() -> None:
    """Each with a name of its own."""
    assert len({bug.name for bug in all_bugs()}) == len(all_bugs()) >= 25


@pytest.mark.slow
@pytest.mark.parametrize("bug", all_bugs(), ids=lambda bug: bug.name)
def test_the_bug_is_found_and_its_absence_too(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a few seeds from where it was found when it was planted; without it they are fine."""
    with monkeypatch.context() as patch:
        seed = find(bug, patch)
    assert seed is not None, f"{bug.name} is not found: {bug.mistake}"
    bug.hunt(seed)
