"""How RocketMQ is set up: topics that it knows, ports that are free, a heap that fits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.peers import rocketmq
from bench.peers.rocketmq import Rocketmq, free_ports, heap, topics_json


@pytest.fixture
def peer(monkeypatch: pytest.MonkeyPatch) -> Rocketmq:
    monkeypatch.setattr(rocketmq, "class_path", lambda project: project)
    return Rocketmq()


def test_ports_are_different_ones() -> None:
    assert len(set(free_ports(8))) == 8


@pytest.mark.parametrize(
    ("pages", "expected"), [(6 << 20, "4096m"), (2 << 20, "2048m"), (1 << 18, "256m")]
)
def test_a_small_machine_gets_a_quarter_of_its_memory_as_heap(
    pages: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"SC_PHYS_PAGES": pages, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr("os.sysconf", values.__getitem__)
    assert heap() == (f"-Xms{expected}", f"-Xmx{expected}")


def test_the_topics_are_there_before_the_broker_starts() -> None:
    """Its proxy refuses to send to one that it does not know."""
    table = topics_json(("A", "B"))["topicConfigTable"]
    assert isinstance(table, dict)
    assert sorted(table) == ["A", "B"]
    assert table["A"]["topicName"] == "A"
    assert table["A"]["perm"] == 6


@pytest.mark.parametrize(("flush", "disk_type"), [("sync", "SYNC_FLUSH"), ("async", "ASYNC_FLUSH")])
def test_the_broker_stays_on_the_loopback_and_flushes_as_told(
    peer: Rocketmq, tmp_path: Path, flush: str, disk_type: str
) -> None:
    peer._configure(tmp_path / "store", flush, ("A",))
    lines = (tmp_path / "broker.properties").read_text().splitlines()
    settings = dict(line.split("=", 1) for line in lines)
    assert settings["flushDiskType"] == disk_type
    assert settings["bindAddress"] == settings["brokerIP1"] == "127.0.0.1"
    assert settings["storePathRootDir"] == str(tmp_path / "store")
    assert (
        "A" in json.loads((tmp_path / "store/config/topics.json").read_text())["topicConfigTable"]
    )


def test_a_store_is_opened_again_at_the_same_ports(peer: Rocketmq, tmp_path: Path) -> None:
    peer._configure(tmp_path / "store", "async", ("A",))
    first = (tmp_path / "proxy.json").read_text()
    peer._configure(tmp_path / "store", "async", ("A",))
    assert (tmp_path / "proxy.json").read_text() == first
