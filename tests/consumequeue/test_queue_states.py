"""The states of queues: those of the checkpoint that is asked for, or none."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from commitbus.commitlog.errors import FlushFailedError
from commitbus.commitlog.file_system import RealFileSystem
from commitbus.commitlog.types import PhysicalOffset, QueueOffset
from commitbus.consumequeue.known_queues import split_known
from commitbus.consumequeue.queue_states import (
    QUEUE_STATES_PATH,
    QueueState,
    QueueStatesFile,
    States,
)
from tests.failing_files import FailingFileSystem


def state(end: int, dispatched_to: int = 0, mark: int = 0) -> QueueState:
    """A queue from 0 to an end."""
    return QueueState(QueueOffset(0), QueueOffset(end), 0, PhysicalOffset(dispatched_to), mark)


def states_file(store: Path, file_system: FailingFileSystem | None = None) -> QueueStatesFile:
    """The file of a store, as a start opens it."""
    return QueueStatesFile(store, file_system or RealFileSystem())


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """Three checkpoints: one of all queues, two of changes."""
    states = states_file(tmp_path)
    all_queues = {("T", 0): state(1), ("T", 1): state(2), ("Thé\ud800", 0): state(3)}
    states.replace(PhysicalOffset(100), all_queues.items())
    states.append(PhysicalOffset(200), {("T", 0): state(4), ("U", 7): state(5)})
    states.append(PhysicalOffset(300), {("T", 1): None, ("Thé\ud800", 0): None})
    return tmp_path


def test_a_checkpoint_has_its_states(filled: Path) -> None:
    """What was appended for later ones does not count."""
    first = {"T": {0: state(1), 1: state(2)}, "Thé\ud800": {0: state(3)}}
    second = {"T": {0: state(4), 1: state(2)}, "Thé\ud800": {0: state(3)}, "U": {7: state(5)}}
    third = {"T": {0: state(4)}, "U": {7: state(5)}}
    for end, expected in ((100, first), (200, second), (300, third)):
        read = states_file(filled)
        assert read.read(PhysicalOffset(end)) == expected
        assert read.needs_full == (end < 300)
    for end in (0, 99, 150, 301):
        assert states_file(filled).read(PhysicalOffset(end)) is None


def test_a_start_appends_to_what_it_has_read(filled: Path) -> None:
    """The file is written anew only once most of it is changes."""
    states = states_file(filled)
    states.read(PhysicalOffset(300))
    states.append(PhysicalOffset(400), {("V", 0): state(9)})
    found = states_file(filled).read(PhysicalOffset(400))
    assert found == {"T": {0: state(4)}, "U": {7: state(5)}, "V": {0: state(9)}}
    assert not states.is_long
    states.append(PhysicalOffset(500), {("V", n): state(n) for n in range(40_000)})
    assert states.is_long


def test_damage_costs_a_look_at_all_queues(filled: Path) -> None:
    """From where a byte has changed on, nothing is taken."""
    path = filled / QUEUE_STATES_PATH
    sound = path.read_bytes()
    for position in range(len(sound)):
        path.write_bytes(sound[:position] + bytes([sound[position] ^ 4]) + sound[position + 1 :])
        assert states_file(filled).read(PhysicalOffset(300)) is None
        path.write_bytes(sound[:position])
        assert states_file(filled).read(PhysicalOffset(300)) is None


def test_a_write_that_fails_for_room_is_no_failure_and_a_failed_sync_is(filled: Path) -> None:
    """A checkpoint needs no room."""
    files = FailingFileSystem()
    states = states_file(filled, files)
    states.read(PhysicalOffset(300))
    files.fails = {"pwrite": errno.ENOSPC}
    states.append(PhysicalOffset(400), {("V", 0): state(9)})
    assert states.needs_full
    states.replace(PhysicalOffset(400), [])
    assert states.needs_full
    files.fails = {}
    states.replace(PhysicalOffset(400), [(("V", 0), state(9))])
    assert states_file(filled).read(PhysicalOffset(400)) == {"V": {0: state(9)}}
    files.fails = {"sync_data": errno.EIO}
    with pytest.raises(FlushFailedError):
        states.append(PhysicalOffset(500), {})


def test_what_a_start_knows_of_the_queues_that_are_there() -> None:
    """Queues that changed since are looked at; if one is missing, all are."""
    found = {"T": {0: 10, 1: 11, 2: 12}, "New": {0: 13}, "Gone": {0: 14}}
    states: States = {
        "T": {0: state(1, 100, 10), 1: state(1, 900, 11), 2: state(1, 100, 99)},
        "Gone": {0: state(1, 100, 14), 1: state(1, 100, 15)},
    }

    def before(topic: str) -> PhysicalOffset:
        return PhysicalOffset(500 if topic == "Gone" else 0)

    split = split_known(
        found,
        {topic: dict(queues) for topic, queues in states.items()},
        deleted_before=before,
        flushed_to=PhysicalOffset(300),
    )
    assert split is not None
    assert split.known == {"T": {0: state(1, 100, 10)}}
    assert split.others == {"T": {1: 11, 2: 12}, "New": {0: 13}, "Gone": {0: 14}}
    assert split.ends == {("T", 1): 1, ("T", 2): 1}
    del found["T"][0]
    assert split_known(found, states, deleted_before=before, flushed_to=PhysicalOffset(300)) is None
