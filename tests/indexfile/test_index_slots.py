"""Slots in memory: which of their pages are written, and when."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from commitbus.commitlog.file_system import RealFileSystem
from commitbus.indexfile.index_format import SLOT_DTYPE
from commitbus.indexfile.index_slots import PAGE_BYTES, Slots

SLOT_COUNT = 500_000
FILE_BYTES = 40 + 4 * SLOT_COUNT


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of ones."""
    path = tmp_path / "file"
    path.write_bytes(b"\1" * (FILE_BYTES + 5000))
    return path


def write(slots: Slots, path: Path) -> list[range]:
    """Write what is changed; return the runs of pages."""
    file = RealFileSystem().open(path)
    runs = list(slots.changed_runs())
    for pages in runs:
        slots.write(pages, file)
    file.close()
    assert slots.are_written
    return runs


def test_pages_that_change_are_written_and_no_others(path: Path) -> None:
    """Neither the header nor the entries behind them, which share pages with slots."""
    slots = Slots(SLOT_COUNT)
    assert slots.are_written
    numbers = [0, 5000, 5001, SLOT_COUNT - 1]
    for number in numbers:
        slots.set_head(number, number + 1)
    assert [slots.head(number) for number in (*numbers, 1)] == [1, 5001, 5002, SLOT_COUNT, 0]
    last = FILE_BYTES // PAGE_BYTES
    assert write(slots, path) == [range(1), range(4, 5), range(last, last + 1)]
    data = np.fromfile(path, np.uint8)
    assert (data[:40] == 1).all()
    assert (data[FILE_BYTES:] == 1).all()
    values = data[40:FILE_BYTES].view(SLOT_DTYPE)
    assert values[numbers].tolist() == [1, 5001, 5002, SLOT_COUNT]
    assert (data[PAGE_BYTES : 4 * PAGE_BYTES] == 1).all()
    assert write(slots, path) == []


def test_many_pages_are_written_in_pieces(path: Path) -> None:
    """So that a put need not wait for all of them."""
    slots = Slots(SLOT_COUNT)
    for number in range(0, SLOT_COUNT, 1000):
        slots.set_head(number, 7)
    runs = write(slots, path)
    assert len(runs) > 1
    assert max(map(len, runs)) <= 256
    assert runs[0].start == 0
    assert all(one.stop == other.start for one, other in pairwise(runs))
    values = np.fromfile(path, np.uint8)[40:FILE_BYTES].view(SLOT_DTYPE)
    assert np.flatnonzero(values == 7).tolist() == list(range(0, SLOT_COUNT, 1000))


def test_derived_slots_are_written_where_they_or_the_old_ones_are_in_use() -> None:
    """Pages that look right too: they may be in memory only. Holes stay holes."""
    heads, found = np.zeros(10_000, np.int32), np.zeros(10_000, SLOT_DTYPE)
    heads[100], found[5000] = 3, 4
    heads[9999] = found[9999] = 5
    slots = Slots.of(heads)
    assert slots.are_written
    slots.must_be_written(found)
    assert list(slots.changed_runs()) == [range(1), range(4, 5), range(9, 10)]
