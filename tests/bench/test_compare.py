"""What a run of the comparison consists of, and what it says about what it leaves out."""

from __future__ import annotations

from typing import Final

import pytest

from bench import compare
from bench.measure import OURS
from bench.peers.jvm import PeerMissingError


class Missing:
    """A peer that is not there."""

    name: Final = "Peer"
    remark: Final = "never said"

    def __init__(self) -> None:
        raise PeerMissingError("a JDK and Maven are needed; missing: mvn")


class Present:
    """A peer that is."""

    name: Final = "Peer"
    remark: Final = "Peer 1.0 with its defaults."

    def bulk(self) -> list[object]:
        return []


def use(monkeypatch: pytest.MonkeyPatch, kind: type) -> None:
    for name in ("Rocketmq", "Kafka", "Redis"):
        monkeypatch.setattr(compare, name, kind)


def test_without_the_peers_ours_is_measured_alone_and_the_reason_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use(monkeypatch, Missing)
    remarks: list[str] = []
    contests = compare.all_contests(compare.PARTS, None, remarks)
    assert [list(contest) for contest in contests] == [[OURS]] * 4
    skipped = "Peer was skipped: a JDK and Maven are needed; missing: mvn"
    assert remarks.count(skipped) == 3


def test_the_peers_stand_beside_ours_and_say_how_they_are_set_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use(monkeypatch, Present)
    remarks: list[str] = []
    contests = compare.all_contests(["async", "sync", "bulk"], "trio", remarks)
    assert [list(contest) for contest in contests] == [[OURS, "Peer"]] * 3
    assert remarks == ["Peer 1.0 with its defaults."]


def test_a_peer_that_no_part_needs_is_not_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Missing)
    remarks: list[str] = []
    compare.all_contests(["python"], None, remarks)
    assert sum("was skipped" in line for line in remarks) == 2  # Kafka and Redis, not RocketMQ
