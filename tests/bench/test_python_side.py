"""The Python side of the comparison: closed loops, modes, and servers that are not there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench import python_side
from bench.peers.jvm import PeerMissingError
from bench.peers.kafka import properties
from bench.peers.redis import Redis
from bench.python_side import Client, closed_loop, from_python


def test_a_closed_loop_keeps_as_many_sends_under_way_as_there_are_tasks() -> None:
    under_way, most = 0, 0

    async def send() -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.001)
        under_way -= 1

    rate = asyncio.run(closed_loop(send, 5, 0.05))
    assert most == 5
    assert rate > 0


class FakeClient:
    """Counts what it is asked for."""

    def __init__(self) -> None:
        self.produced = self.consumed = 0

    def awaited(self, tasks: int, seconds: float) -> float:
        return tasks * seconds

    def produce(self, messages: int) -> None:
        self.produced += messages

    def consume(self, messages: int) -> None:
        assert self.produced >= messages
        self.consumed += messages


class FakePeer:
    """A broker of which each start is written down."""

    name = "Fake"

    def __init__(self) -> None:
        self.starts: list[tuple[bool, FakeClient]] = []

    @contextmanager
    def start(self, directory: Path, *, fsync: bool) -> Iterator[Client]:
        assert directory.is_dir()
        client = FakeClient()
        self.starts.append((fsync, client))
        yield client


def test_each_mode_has_a_server_of_its_own_and_rows_of_its_own() -> None:
    peer = FakePeer()
    rows = {name: value for name, _, value, _ in from_python(peer)}
    assert [fsync for fsync, _ in peer.starts] == [False, True]
    assert rows["Python, 64 awaiting, default"] == 64 * python_side.SECONDS
    assert rows["Python, 1 awaiting, fsync before ack"] == python_side.SECONDS
    assert "Python, consume in batches" in rows
    assert len(rows) == 7


def test_what_is_measured_was_done_once_before() -> None:
    peer = FakePeer()
    from_python(peer)
    (_, client), _ = peer.starts
    assert client.produced == client.consumed == 2 * python_side.MESSAGES


def test_kafka_syncs_every_message_only_when_told(tmp_path: Path) -> None:
    plain = properties(tmp_path, 1, 2, fsync=False)
    assert "listeners=PLAINTEXT://127.0.0.1:1,CONTROLLER://127.0.0.1:2\n" in plain
    assert "flush" not in plain
    assert properties(tmp_path, 1, 2, fsync=True) == plain + "log.flush.interval.messages=1\n"


def test_a_missing_redis_server_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(PeerMissingError, match="apt install redis-server"):
        Redis()


def test_a_missing_client_is_named() -> None:
    with pytest.raises(PeerMissingError, match="pip install the-package"):
        python_side.need_module("a_module_that_nobody_has", "the-package")
