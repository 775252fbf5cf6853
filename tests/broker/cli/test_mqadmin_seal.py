"""mqadmin sealSegment, and what it leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from commitbus.broker import Broker
from commitbus.broker.embedded.broker import SMALL_FILES
from commitbus.commitlog.file_system import RealFileSystem
from commitbus.flush.sealed import read_manifest

Mqadmin = Callable[..., str]


def test_the_file_that_is_written_is_sealed(
    broker: Broker, mqadmin: Mqadmin, mqadmin_json: Callable[..., Any]
) -> None:
    """With its manifest; a second time there is nothing to seal; what follows begins a file."""
    size = SMALL_FILES["log_file_bytes"]
    assert "nothing was sealed" in mqadmin("sealSegment")
    assert mqadmin_json("sealSegment") == []
    mqadmin("updateTopic", "-t", "sealed", "-w", "1")
    mqadmin("sendMessage", "-t", "sealed", "-p", "one")
    header, row = mqadmin("sealSegment", "-c", "DefaultCluster").splitlines()
    assert header.split()[:4] == ["#Base", "Offset", "#End", "Offset"]
    assert row.split()[:3] == ["0", str(size), "1"]
    manifest = read_manifest(broker.directory, 0, RealFileSystem())
    assert manifest is not None
    assert manifest.topics == {"sealed": 1}
    mqadmin("sendMessage", "-t", "sealed", "-p", "two")
    (segment,) = mqadmin_json("sealSegment")
    assert segment["base_offset"] == size
    assert segment["messages"] == 1
    assert size < segment["records_end"] < segment["end_offset"] == 2 * size


def test_another_cluster_is_left_alone(refused: Callable[..., str]) -> None:
    """As every command that may name one."""
    assert "belongs to cluster" in refused("sealSegment", "-c", "Other")
