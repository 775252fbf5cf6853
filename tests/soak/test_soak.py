"""The load in short, over both transports at once: in peace, and while the brokers are killed."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path

import pytest

from commitbus.broker.config import Transport
from tests.soak.reign import Options
from tests.soak.run import side_by_side

SHORT = Options(seconds=15, rate=100, seed=0, log_file_bytes=2 << 20)


def seeded(options: Options) -> Options:
    """With pytest-randomly's seed, which a failure shows."""
    return replace(options, seed=random.randrange(1 << 32))  # noqa: S311 - repeatable, not secret


@pytest.mark.slow
def test_a_mixed_load_in_peace(tmp_path: Path) -> None:
    """Every call is answered, nothing is lost, nothing comes again, the store is sound."""
    summaries = asyncio.run(side_by_side(tmp_path, list(Transport), seeded(SHORT)))
    assert [summary["failures"] for summary in summaries] == [[], []]
    for counts in (summary["counts"] for summary in summaries):
        for what in ("sent", "fetched", "given back", "forgotten", "introductions", "connections"):
            assert counts[what] > 0, what
        assert counts["delivered"] > counts["acked"] > counts["sent"]


@pytest.mark.slow
def test_a_mixed_load_while_the_broker_is_killed(tmp_path: Path) -> None:
    """What was answered stays true from process to process."""
    options = seeded(replace(SHORT, seconds=20, kill_every_s=3.0))
    summaries = asyncio.run(side_by_side(tmp_path, list(Transport), options))
    assert [summary["failures"] for summary in summaries] == [[], []]
    for counts in (summary["counts"] for summary in summaries):
        assert counts["kills"] > 2
        assert counts["acked"] > counts["sent"] > 0
