"""Damage that starts of earlier versions left behind: each kind is found, and what mends it does.

The fixtures were made by killing those versions on a simulated disk: 90 messages in three queues.
"""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from commitbus.broker.store.check import check_store
from commitbus.broker.store.message_store import MessageStore
from commitbus.commitlog.types import OutgoingMessage
from tests.broker.store.killed_starts import QUEUES

FIXTURES = Path(__file__).with_name("fixtures")
Unpack = Callable[[str], Path]


@pytest.fixture
def unpack(tmp_path: Path) -> Unpack:
    """Unpack a damaged store; return where it lies."""

    def unpack_(name: str) -> Path:
        store = tmp_path / name
        with tarfile.open(FIXTURES / f"{name}.tar.gz") as archive:
            for member in archive:
                data = archive.extractfile(member)
                assert data is not None
                path = store / member.name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data.read())
        return store

    return unpack_


def sound_units(store: Path) -> int:
    """Return how many units a store has, which must have no problem."""
    report = check_store(store)
    assert report.was_closed_cleanly
    assert report.problems == []
    assert report.not_in_queue == report.to_be_recovered == 0
    return report.queue_units


def test_queues_without_their_beginning_are_found(unpack: Unpack) -> None:
    """A start that filled them was killed, and the next one went on behind the last unit."""
    store = unpack("queues-without-their-beginning")
    report = check_store(store)
    assert report.was_closed_cleanly
    assert report.messages - report.queue_units == report.not_in_queue == 16
    assert {problem.file for problem in report.problems} == {
        f"consumequeue/{topic}/{queue_id}/{0:020}" for topic, queue_id in QUEUES[1:]
    }
    assert "no unit at queue offset 0, the message needs" in report.problems[0].what
    shutil.rmtree(store / "consumequeue")
    MessageStore.open(store).close()
    assert sound_units(store) == 90


def test_queues_with_a_gap_are_found_and_filled_by_a_start(unpack: Unpack) -> None:
    """With earlier versions no start came to its end: the next message did not fit."""
    store = unpack("queues-with-a-gap")
    report = check_store(store)
    assert report.was_closed_cleanly
    assert report.not_in_queue == report.problem_count == 36
    MessageStore.open(store).close()
    assert sound_units(store) == 90


def test_forgotten_queue_offsets_are_found_and_not_given_away_again(
    unpack: Unpack, make_message: Callable[..., OutgoingMessage]
) -> None:
    """An earlier version dropped a unit at each start on an empty log."""
    store = unpack("offsets-forgotten")
    report = check_store(store)
    assert report.was_closed_cleanly
    assert report.problem_count == 3
    for problem, (topic, queue_id), end in zip(report.problems, QUEUES, (29, 29, 28), strict=True):
        assert problem.file == f"consumequeue/{topic}/{queue_id}/{400:020}"
        assert problem.what == (
            f"the queue ends at {end}, but messages that are gone had the queue offsets below 30"
        )
    with MessageStore.open(store) as opened:
        for topic, queue_id in QUEUES:
            assert opened.put(make_message(topic, queue_id)).queue_offset == 30
    assert sound_units(store) == 3
