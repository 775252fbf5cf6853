"""The load in short: a quarter of a minute in peace, and half a minute of kills."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path

import pytest

from commitbus.broker.config import Transport
from tests.soak.run import Options, run

SHORT = Options(seconds=15, rate=100, seed=0, log_file_bytes=2 << 20)


def seeded(options: Options) -> Options:
    """With pytest-randomly's seed, which a failure shows."""
    return replace(options, seed=random.randrange(1 << 32))  # noqa: S311 - repeatable, not secret


@pytest.mark.slow
@pytest.mark.parametrize("transport", list(Transport))
def test_a_mixed_load_in_peace(tmp_path: Path, transport: Transport) -> None:
    """Every call is answered, nothing is lost, nothing comes again, the store is sound."""
    summary = asyncio.run(run(tmp_path, transport, seeded(SHORT)))
    assert summary["failures"] == []
    counts = summary["counts"]
    for what in ("sent", "fetched", "given back", "forgotten", "introductions", "connections"):
        assert counts[what] > 0, what
    assert counts["delivered"] > counts["acked"] > counts["sent"]


@pytest.mark.slow
@pytest.mark.parametrize("transport", list(Transport))
def test_a_mixed_load_while_the_broker_is_killed(tmp_path: Path, transport: Transport) -> None:
    """What was answered stays true from process to process."""
    options = replace(SHORT, seconds=20, kill_every_s=3.0)
    summary = asyncio.run(run(tmp_path, transport, seeded(options)))
    assert summary["failures"] == []
    assert summary["counts"]["kills"] > 2
    assert summary["counts"]["acked"] > summary["counts"]["sent"] > 0
