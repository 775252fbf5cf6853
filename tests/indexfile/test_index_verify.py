"""Verification of index files: sound ones are, and damage is named."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from commitbus.commitlog.clock import SystemClock
from commitbus.commitlog.file_system import RealFileSystem
from commitbus.commitlog.types import DispatchRequest, PhysicalOffset, Problem, QueueOffset
from commitbus.indexfile import IndexReader, IndexService
from commitbus.indexfile.verify import verify_index_file

SLOTS, ENTRIES = 10, 50
ENTRIES_AT = 40 + 4 * SLOTS
LOG = {
    n * 100: DispatchRequest(
        PhysicalOffset(n * 100), 100, "T", 0, QueueOffset(n), 0, 10**12 + n * 700, 0,
        f"U{n}", f"k{n}", "tag",
    )
    for n in range(30)
}  # fmt: skip


def problems_of(path: Path, log: dict[int, DispatchRequest], **options: int) -> list[Problem]:
    """Everything that verification finds in a file."""
    with IndexReader.open(path, SLOTS, ENTRIES, file_system=RealFileSystem()) as file:
        return list(verify_index_file(file, log.get, **options))


@pytest.fixture
def paths(tmp_path: Path) -> Iterator[list[Path]]:
    """The two files of a sound index of 90 entries."""
    service = IndexService(
        tmp_path,
        slot_count=SLOTS,
        entry_count=ENTRIES,
        clock=SystemClock(),
        file_system=RealFileSystem(),
    )
    service.load()
    service.put(list(LOG.values()))
    service.flush()
    yield service.paths()
    service.close()


@pytest.mark.shared
def test_the_index_of_rocketmq_is_sound(rocketmq_store: Any) -> None:
    """What RocketMQ derived from its log has no problem."""
    log = {request.physical_offset: request for request in rocketmq_store.requests}
    for path in (rocketmq_store.path / "index").iterdir():
        with IndexReader.open(path, 100, 400, file_system=RealFileSystem()) as file:
            assert list(verify_index_file(file, log.get)) == []


def test_a_sound_index_has_no_problem(paths: list[Path]) -> None:
    """A full file and one that is not."""
    assert [problems_of(path, LOG) for path in paths] == [[], []]


@pytest.mark.parametrize(
    ("position", "data", "what"),
    [
        (16, struct.pack(">q", 100), "begin physical offset is 100, the entries say 0"),
        (24, struct.pack(">q", 100), "end physical offset is 100, the entries say 1600"),
        (32, struct.pack(">i", 3), "slot count is 3, the entries say 10"),
        (8, struct.pack(">q", 5), "ends at 5, begins at 1000000000000"),
        (ENTRIES_AT + 20 * 7, struct.pack(">i", 5), "entry 7: "),
        (ENTRIES_AT + 20 * 7, struct.pack(">i", -5), "has a negative number"),
        (ENTRIES_AT + 20 * 7 + 4, struct.pack(">q", 0), "physical offset 0 after 100"),
        (ENTRIES_AT + 20 * 7 + 4, struct.pack(">q", 250), "no message at physical offset 250"),
        (ENTRIES_AT + 20 * 7 + 4, struct.pack(">q", 300), "no key of the message at 300"),
        (ENTRIES_AT + 20 * 7 + 12, struct.pack(">i", 9), "9 seconds since the begin"),
        (ENTRIES_AT + 20 * 7 + 16, struct.pack(">i", 33), "leads to entry 33"),
    ],
)
def test_damage_is_named(paths: list[Path], position: int, data: bytes, what: str) -> None:
    """The file, the place, and what is wrong there."""
    changed = bytearray(paths[0].read_bytes())
    changed[position : position + len(data)] = data
    paths[0].write_bytes(changed)
    found = problems_of(paths[0], LOG)
    named = [problem for problem in found if what in problem.what]
    assert named
    assert named[0].path == paths[0]
    assert position - 16 <= named[0].position <= position


def test_a_slot_that_leads_elsewhere_is_named(paths: list[Path]) -> None:
    """Its newest entry would not be found."""
    changed = bytearray(paths[0].read_bytes())
    changed[40 + 4 * 3 : 40 + 4 * 4] = struct.pack(">i", 1)
    paths[0].write_bytes(changed)
    (problem,) = problems_of(paths[0], LOG)
    assert problem.position == 52
    assert problem.what.startswith("slot 3 leads to entry 1, its newest is ")


def test_entries_whose_log_file_was_deleted_are_not_looked_up(paths: list[Path]) -> None:
    """Only their chains are checked."""
    log = {offset: request for offset, request in LOG.items() if offset >= 1000}
    assert len(problems_of(paths[0], log)) == 30
    assert problems_of(paths[0], log, log_start=1000) == []


@pytest.mark.parametrize("seed", range(20))
def test_any_flipped_bit_in_use_is_found(paths: list[Path], seed: int) -> None:
    """Except in the begin and end timestamps, which only bound queries."""
    random_ = random.Random(seed)  # noqa: S311 - damage, not secrets
    changed = bytearray(paths[1].read_bytes())
    index_count = int.from_bytes(changed[36:40], "big")
    used = range(ENTRIES_AT + 20, ENTRIES_AT + 20 * index_count)
    position = random_.choice([*range(16, 36), *range(40, ENTRIES_AT), *used])
    if position in range(ENTRIES_AT + 32, ENTRIES_AT + 36):
        position += 20  # The first entry's seconds count from the previous file's end.
    changed[position] ^= 1 << random_.randrange(8)
    paths[1].write_bytes(changed)
    assert problems_of(paths[1], LOG)
