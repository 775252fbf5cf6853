"""`kill -9` at any moment: what was acknowledged is there, byte for byte, at the same offsets."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from commitbus.broker.store.check import check_store
from commitbus.broker.store.message_store import MessageStore
from commitbus.commitlog.types import PhysicalOffset, QueueOffset
from commitbus.flush.policy import FlushMode

ROUNDS = 4
WORKER = Path(__file__).with_name("kill_worker.py")


class Acknowledged(NamedTuple):
    """A message that a worker had an answer for before it was killed."""

    seed: str
    number: int
    queue_id: int
    queue_offset: int
    physical_offset: int
    size_bytes: int


def repeatable(seed: int | str) -> random.Random:
    """Return a source of the same numbers each time."""
    return random.Random(seed)  # noqa: S311 - repeatable, not secret


def run_and_kill(directory: Path, mode: FlushMode, seed: str, lines: int) -> list[Acknowledged]:
    """Run a worker, kill it after some of its lines, and return everything it acknowledged."""
    worker = subprocess.Popen(
        [sys.executable, str(WORKER), str(directory), mode, seed], stdout=subprocess.PIPE
    )
    assert worker.stdout is not None
    try:
        printed = [worker.stdout.readline() for _ in range(lines)]
    finally:
        worker.kill()
    printed += worker.stdout.readlines()
    worker.stdout.close()
    worker.wait()
    whole = [line.decode() for line in printed if line.endswith(b"\n")]
    return [Acknowledged(seed, *map(int, line.split())) for line in whole[1:]]


@pytest.mark.parametrize("mode", FlushMode)
def test_what_was_acknowledged_survives_kill_9(mode: FlushMode, tmp_path: Path) -> None:
    """Round after round on the same store; some kills hit the recovery of the last one."""
    seed = random.randrange(1 << 32)  # noqa: S311 - pytest-randomly seeds it and says with what
    choice = repeatable(seed)
    directory = tmp_path / "store"
    acknowledged: list[Acknowledged] = []
    for round_ in range(ROUNDS):
        lines = choice.choice((0, 1, 2, choice.randrange(400), 400))
        acknowledged += run_and_kill(directory, mode, f"{seed}-{round_}", lines)
        if choice.random() < 0.5:
            verify(directory, acknowledged)
    verify(directory, acknowledged)


def verify(directory: Path, acknowledged: list[Acknowledged]) -> None:
    """Open the store and look for every acknowledged message in log, queue and index."""
    with MessageStore.open(directory) as store:
        for message in acknowledged:
            record = store.read(PhysicalOffset(message.physical_offset))
            assert (record.queue_id, record.queue_offset) == message[2:4]
            assert record.size_bytes == message.size_bytes
            name = f"{message.seed}-{message.number}"
            assert record.properties["UNIQ_KEY"] == name
            assert record.body == repeatable(name).randbytes(len(record.body))
            (unit,) = store.fetch(
                "Kill", message.queue_id, QueueOffset(message.queue_offset), 1
            ).units
            assert unit == message[3:]
        places = {(message.queue_id, message.queue_offset) for message in acknowledged}
        assert len(places) == len(acknowledged)
    report = check_store(directory)
    assert report.was_closed_cleanly
    assert report.problems == []
    assert report.to_be_recovered == report.torn_bytes == 0
    assert report.messages >= len(acknowledged)
    with MessageStore.open(directory) as store:
        for message in acknowledged[:: max(1, len(acknowledged) // 50)]:
            name = f"{message.seed}-{message.number}"
            (record,) = store.query_by_unique_key("Kill", name)
            assert record.physical_offset == message.physical_offset
