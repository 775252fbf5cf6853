"""Verification of consume queues: sound ones are, and damage is named, whatever it is."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commitbus.commitlog.errors import StoreError
from commitbus.commitlog.file_system import RealFileSystem
from commitbus.commitlog.types import DispatchRequest, PhysicalOffset, Problem, QueueOffset
from commitbus.consumequeue import ConsumeQueueStore
from commitbus.consumequeue.unit_format import UNIT
from commitbus.consumequeue.verify import verify_queue

FILE_BYTES = 200
COUNT = 25
MESSAGES = {
    n * 100: DispatchRequest(
        PhysicalOffset(n * 100), 100, "T", 0, QueueOffset(n), n + 5, 1000 + n, 0, "", "", ""
    )
    for n in range(COUNT)
}


def problems_of(directory: Path, log: dict[int, DispatchRequest], **options: int) -> list[Problem]:
    """Everything that verification finds in all queues of a directory."""
    store = ConsumeQueueStore(directory, FILE_BYTES, file_system=RealFileSystem(), writable=False)
    store.load()
    found: list[Problem] = []
    for key in store.queues():
        queue = store.queue(*key)
        assert queue is not None
        found += verify_queue(queue, log.get, **options)
    store.close()
    return found


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A sound store: 25 units in files of 10."""
    store = ConsumeQueueStore(tmp_path, FILE_BYTES, file_system=RealFileSystem())
    store.load()
    store.put(list(MESSAGES.values()))
    store.close()
    return tmp_path


def change(directory: Path, unit: int, data: bytes) -> None:
    """Overwrite one unit."""
    path = directory / "T" / "0" / f"{unit // 10 * FILE_BYTES:020}"
    with path.open("r+b") as file:
        file.seek(unit % 10 * 20)
        file.write(data)


@pytest.mark.shared
def test_stores_of_rocketmq_are_sound(rocketmq_store: Any) -> None:
    """What RocketMQ derived from its log has no problem."""
    log = {request.physical_offset: request for request in rocketmq_store.requests}
    store = ConsumeQueueStore(
        rocketmq_store.path / "consumequeue", 2000, file_system=RealFileSystem(), writable=False
    )
    store.load()
    for key in store.queues():
        queue = store.queue(*key)
        assert queue is not None
        assert list(verify_queue(queue, log.get)) == []
    store.close()


def test_a_sound_queue_has_no_problem(directory: Path) -> None:
    """Padding, file ends and the zeros behind the end are as they should be."""
    assert problems_of(directory, MESSAGES) == []


@pytest.mark.parametrize(
    ("unit", "data", "what"),
    [
        (12, UNIT.pack(1200, 100, 99), "tags code is 99, the log says 17"),
        (12, UNIT.pack(1200, 99, 17), "size is 99, the log says 100"),
        (12, UNIT.pack(1201, 100, 17), "no message at physical offset 1201"),
        (12, UNIT.pack(1100, 100, 17), "begins before the message of the unit before it ends"),
        (12, UNIT.pack(1300, 100, 18), "queue offset is 12, the log says 13"),
        (3, bytes(20), "is no unit"),
    ],
)
def test_a_unit_that_the_log_contradicts_is_named(
    directory: Path, unit: int, data: bytes, what: str
) -> None:
    """File, position and difference."""
    change(directory, unit, data)
    first, *_ = problems_of(directory, MESSAGES)
    assert what in first.what
    assert first.path.name == f"{unit // 10 * FILE_BYTES:020}"
    assert first.position == unit % 10 * 20


def test_a_unit_of_another_queue_is_named(directory: Path) -> None:
    """The log knows to which queue a message belongs."""
    log = MESSAGES | {
        500: MESSAGES[500]._replace(topic="U"),
        600: MESSAGES[600]._replace(queue_id=3),
    }
    assert [problem.what for problem in problems_of(directory, log)] == [
        "topic is 'T', the log says 'U'",
        "queue id is 0, the log says 3",
    ]


def test_units_whose_log_file_was_deleted_are_not_looked_up(directory: Path) -> None:
    """They are hidden from readers anyway."""
    log = {offset: request for offset, request in MESSAGES.items() if offset >= 700}
    assert len(problems_of(directory, log)) == 7
    assert problems_of(directory, log, log_start=700) == []


def test_bytes_behind_the_end_are_named(directory: Path) -> None:
    """A unit behind a gap would turn up again once the gap is filled."""
    change(directory, 27, UNIT.pack(2700, 100, 1))
    (problem,) = problems_of(directory, MESSAGES)
    assert "behind the last unit, 24" in problem.what
    assert problem.position == 159


def _flip(data: bytearray, random_: random.Random) -> None:
    for _ in range(random_.randint(1, 4)):
        data[random_.randrange(len(data))] ^= 1 << random_.randrange(8)


def _zero(data: bytearray, random_: random.Random) -> None:
    start = random_.randrange(len(data))
    end = random_.randint(start + 1, len(data))
    data[start:end] = bytes(end - start)


def _randomize(data: bytearray, random_: random.Random) -> None:
    data[:] = random_.randbytes(len(data))


def _shorten(data: bytearray, random_: random.Random) -> None:
    del data[random_.randrange(len(data)) :]


@pytest.mark.parametrize("damage", [_flip, _zero, _randomize, _shorten])
@pytest.mark.parametrize("seed", range(8))
def test_damage_is_a_problem_or_a_typed_error(
    directory: Path, damage: Callable[[bytearray, random.Random], None], seed: int
) -> None:
    """Never another exception, and never silence about units that changed."""
    random_ = random.Random(seed)  # noqa: S311 - damage, not secrets
    path = directory / "T" / "0" / f"{random_.randrange(2) * FILE_BYTES:020}"
    data = bytearray(path.read_bytes())
    damage(data, random_)
    is_changed = path.read_bytes() != data
    path.write_bytes(data)
    try:
        found = problems_of(directory, MESSAGES)
    except StoreError:
        return
    assert bool(found) == is_changed
