"""What the Java program answers becomes rows that stand beside ours."""

from __future__ import annotations

from typing import Any

import pytest

from bench import read, store, store_process
from bench.measure import Row
from bench.peers import rocketmq_store
from bench.peers.rocketmq_store import RocketmqStore, with_pool

ANSWERS: dict[str, dict[str, float]] = {
    "append": {"appended": 200_000.0, "dispatched": 100_000.0, "cpu": 3e-6},
    "sync": {str(waiters): float(waiters * 100) for waiters in store.WAITERS},
    "recovery": {
        "bytes": read.GIB / 4,
        "scan_cpu": 0.1,
        "crash_wall": 0.5,
        "rebuild_cpu": 0.6,
        "rebuild_wall": 0.9,
    },
    "lookup": {"lookup": 2e-6, "fetch": 5e-6},
    "visible": {"p50": 0.0005, "p99": 0.002},
}


@pytest.fixture
def peer(monkeypatch: pytest.MonkeyPatch) -> RocketmqStore:
    """The peer with canned answers in place of a JVM."""
    monkeypatch.setattr(rocketmq_store, "class_path", lambda project: project)
    monkeypatch.setattr(
        RocketmqStore, "_ask", lambda _self, _program, command, **_: ANSWERS[command]
    )
    peer = RocketmqStore()
    monkeypatch.setattr(peer, "_program", None, raising=False)
    return peer


def values(rows: list[Row]) -> dict[str, Any]:
    return {name: (unit, pytest.approx(value)) for name, unit, value, _ in rows}


def test_times_are_in_the_units_of_our_rows(peer: RocketmqStore) -> None:
    assert values(peer.look_up()) == {"key lookup": ("us", 2.0), "fetch of 32": ("us", 5.0)}
    assert values(peer.append_to_visible()) == {
        "append to visible, p50": ("ms", 0.5),
        "append to visible, p99": ("ms", 2.0),
    }


def test_a_rebuild_is_what_a_start_costs_beyond_its_scan(peer: RocketmqStore) -> None:
    """RocketMQ scans and dispatches in one pass; our two rows are apart."""
    assert values(peer.recover_and_rebuild()) == {
        "recovery scan with checksums": ("s/GiB", 0.4),
        "full rebuild of queues and index": ("s/GiB", 2.0),
        store_process.RESTART: ("s", 0.5),
        store_process.REBUILD: ("s", 0.9),
    }


def test_each_number_of_waiters_has_its_row(peer: RocketmqStore) -> None:
    rows = values(peer.sync_flush())
    assert rows["SYNC_FLUSH, 256 waiting"] == ("msg/s", 25_600.0)
    assert len(rows) == len(store.WAITERS)


def test_the_runs_through_the_pool_have_rows_of_their_own(peer: RocketmqStore) -> None:
    plain = peer.append_one_by_one()
    assert not {row[0] for row in plain} & {row[0] for row in with_pool(plain)}
    assert [row[2] for row in with_pool(plain)] == pytest.approx([200_000.0, 100_000.0, 3.0])
