"""Topics that are made, filled and deleted all the time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.deleted_topics import TOPICS, run

SECONDS = 30.0


@pytest.mark.slow
def test_a_broker_whose_topics_come_and_go_stays_healthy(tmp_path: Path) -> None:
    """It ended after some hundred deletions; see the command for ten minutes of it."""
    summary = run(tmp_path, SECONDS)
    assert summary["failures"] == []
    assert summary["topics_deleted"] >= TOPICS
    assert summary["load_messages"] > 0
