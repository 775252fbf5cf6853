"""Whether the histories would find a bug in delivering, found out by making some."""

from __future__ import annotations

import pytest

from tests.broker.histories.planted import BUGS, Bug, find, hunt


def test_there_are_enough() -> None:
    """Each with a name of its own."""
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 10


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_the_bug_is_found_and_its_absence_too(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a few seeds from where it was found when it was planted; without it they are fine."""
    with monkeypatch.context() as patch:
        seed = find(bug, patch)
    assert seed is not None, f"{bug.name} is not found: {bug.mistake}"
    hunt(seed)
