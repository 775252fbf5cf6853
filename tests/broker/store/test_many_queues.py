"""Descriptors, mappings and memory have bounds, however many queues there are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from commitbus.broker.store.check import check_store

WORKER = Path(__file__).with_name("many_queues_worker.py")


@pytest.mark.parametrize(
    ("queues", "descriptors"),
    [(100, 64), pytest.param(2_000, 400, marks=pytest.mark.slow)],
)
def test_more_queues_than_descriptors(queues: int, descriptors: int, tmp_path: Path) -> None:
    """All take messages and give them back, before and after a start that reads little of them."""
    done = subprocess.run(
        [sys.executable, str(WORKER), str(tmp_path / "store"), str(queues), str(descriptors)],
        # The memory of a store, not of a compiler: what a process has until it reads a lot.
        env=os.environ | {"COMMITBUS_KERNELS": "python"},
        stdout=subprocess.PIPE,
        check=True,
    )
    report = json.loads(done.stdout)
    assert report["fetched"] == [4 * queues, 5 * queues]
    assert report["maps"] <= descriptors // 4
    assert report["descriptors"] <= descriptors // 4 + 32
    assert report["idle_kb"] < 60_000
    assert check_store(tmp_path / "store").problems == []
