"""The index after a restart: resumed, cut back, rebuilt from what an unclean stop left intact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from commitbus.commitlog.types import PhysicalOffset
from commitbus.indexfile.index_format import HEADER_BYTES, SLOT
from tests.failing_files import FailingFileSystem
from tests.indexfile.small_indexes import (
    END_OF_TIME,
    FILE_BYTES,
    SLOTS,
    START_MS,
    contents,
    message,
    messages,
    open_service,
    rebuilt,
)


def test_after_a_load_the_last_message_is_where_to_resume(tmp_path: Path) -> None:
    """Its keys may not all be there, so it is a start of a record, not an end."""
    service = open_service(tmp_path)
    service.put(messages(40))
    service.close()
    reopened = open_service(tmp_path)
    assert reopened.dispatched_to == 3900
    before = contents(reopened)
    reopened.put(messages(1, start=39))
    assert contents(reopened) == before
    reopened.close()


@pytest.mark.parametrize("end", [0, 100, 1700, 2500, 3950, 4000, 10**6])
def test_truncating_and_putting_again_gives_the_same_bytes(tmp_path: Path, end: int) -> None:
    """An index is a function of the log, headers included."""
    all_messages = messages(40)
    service = open_service(tmp_path / "index")
    service.put(all_messages)
    before = contents(service)
    service.truncate(PhysicalOffset(end))
    found = service.query("T", "m1", 0, END_OF_TIME, 999)
    assert all(offset < end for offset in found)
    service.put([m for m in all_messages if m.physical_offset >= service.dispatched_to])
    assert contents(service) == before
    service.close()


def _kill_in_the_middle_of_a_put(path: Path) -> None:
    """Entries and slots are stored, the header is not."""
    data = bytearray(path.read_bytes())
    index_count = int.from_bytes(data[36:40], "big") - 3
    data[36:40] = index_count.to_bytes(4, "big")
    last = 40 + 4 * SLOTS + 20 * (index_count - 1)
    data[24:32] = data[last + 4 : last + 12]
    path.write_bytes(data)


def _lose_some_bytes(path: Path) -> None:
    """A sector from the middle of the entries never reached the disk."""
    data = bytearray(path.read_bytes())
    data[500:740] = bytes(240)
    path.write_bytes(data)


def _lose_the_slots(path: Path) -> None:
    """The page with the slots is one from the beginning."""
    data = bytearray(path.read_bytes())
    data[HEADER_BYTES : HEADER_BYTES + 4 * SLOTS] = bytes(4 * SLOTS)
    path.write_bytes(data)


def _lose_the_header(path: Path) -> None:
    """The page with the header never reached the disk."""
    data = bytearray(path.read_bytes())
    data[:HEADER_BYTES] = bytes(HEADER_BYTES)
    path.write_bytes(data)


def _lose_the_end_of_the_last_entry(path: Path) -> None:
    """A page boundary in it, and the second page was lost: only 4 bytes tell."""
    data = bytearray(path.read_bytes())
    index_count = int.from_bytes(data[36:40], "big")
    end = 40 + 4 * SLOTS + 20 * index_count
    data[end - 10 : end] = bytes(10)
    path.write_bytes(data)


@pytest.mark.parametrize(
    "damage",
    [
        _kill_in_the_middle_of_a_put,
        _lose_some_bytes,
        _lose_the_slots,
        _lose_the_header,
        _lose_the_end_of_the_last_entry,
    ],
)
@pytest.mark.parametrize("file_number", [0, -1])
def test_after_an_unclean_stop_the_index_is_rebuilt_from_what_is_intact(
    tmp_path: Path, damage: Any, file_number: int
) -> None:
    """Whatever a kill or a power cut left: discard, truncate, put again, and nothing is missing."""
    all_messages = messages(44)
    service = open_service(tmp_path)
    service.put(all_messages)
    before = contents(service)
    path = service.paths()[file_number]
    service.close()
    damage(path)
    service = open_service(tmp_path)
    service.discard_after(0)
    service.truncate(PhysicalOffset(4400))
    service.put([m for m in all_messages if m.physical_offset >= service.dispatched_to])
    assert contents(service) == before
    service.close()


def test_files_that_were_flushed_are_not_looked_at_again(tmp_path: Path) -> None:
    """The checkpoint vouches for full files, so recovery is bounded by one file."""
    service = open_service(tmp_path)
    service.put(messages(100))
    assert service.last_full_timestamp == 0
    service.flush()
    trusted = service.last_full_timestamp
    paths = service.paths()
    assert START_MS < trusted < START_MS + 100 * 700
    before = contents(service)
    service.close()
    service = open_service(tmp_path)
    service.discard_after(trusted)
    assert service.paths() == paths
    assert contents(service)[:-1] == before[:-1]
    assert 9000 < service.dispatched_to < 9900
    service.close()


def test_a_put_over_what_a_kill_left_follows_no_invalid_slot(tmp_path: Path) -> None:
    """A slot that leads to an entry beyond the count counts as empty: no chain becomes a ring."""
    service = open_service(tmp_path)
    service.put([message(0)])
    (path,) = service.paths()
    service.close()
    data = bytearray(path.read_bytes())
    for slot in range(SLOTS):
        SLOT.pack_into(data, HEADER_BYTES + 4 * slot, 2 + slot % 3)
    path.write_bytes(data)
    for batch in ([message(1)], [message(n) for n in range(2, 30)]):
        service = open_service(tmp_path)
        service.put(batch)
        for number in range(1, len(batch)):
            assert service.query("T", f"U{number}", 0, END_OF_TIME, 99) in ([], [number * 100])
        service.close()


def test_slots_of_a_killed_process_are_derived_again(tmp_path: Path) -> None:
    """They are written at a flush only; entries and header with each put."""
    service = open_service(tmp_path / "index")
    service.put(messages(5))
    service.flush()
    service.put(messages(10, start=5))
    (path,) = service.paths()
    left = path.read_bytes()
    service.close()
    path.write_bytes(left)
    reader = open_service(tmp_path / "index", writable=False)
    assert all(reader.query("T", f"U{n}", 0, END_OF_TIME, 9) == [100 * n] for n in range(15))
    reader.close()
    service = open_service(tmp_path / "index")
    service.discard_after(0)
    assert service.dispatched_to == 1300
    assert all(service.query("T", f"U{n}", 0, END_OF_TIME, 9) == [100 * n] for n in range(14))
    service.put(messages(1, start=14))
    assert contents(service) == rebuilt(tmp_path / "other", messages(15))
    service.close()


def test_puts_between_two_steps_of_a_flush_are_not_forgotten(tmp_path: Path) -> None:
    """Slots may change while they are written; what a file counts as flushed has all of it."""
    file_system = FailingFileSystem()
    service = open_service(tmp_path / "index", file_system)
    done, is_putting = 5, False
    service.put(messages(done))
    original = FailingFileSystem.check

    def put_before(self: FailingFileSystem, name: str) -> None:
        nonlocal done, is_putting
        original(self, name)
        if name == "sync_data" and done < 100 and not is_putting:
            is_putting = True
            service.put(messages(5, start=done))
            done, is_putting = done + 5, False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FailingFileSystem, "check", put_before)
        while done < 100:
            service.flush()
    assert done == 100
    trusted = service.last_full_timestamp
    before = [path.read_bytes() for path in service.paths()]
    service.close()
    for path, data in zip(sorted((tmp_path / "index").iterdir()), before, strict=True):
        path.write_bytes(data)
    service = open_service(tmp_path / "index")
    service.discard_after(trusted)
    service.put([m for m in messages(100) if m.physical_offset >= service.dispatched_to])
    assert contents(service) == rebuilt(tmp_path / "other", messages(100))
    service.close()


@pytest.mark.parametrize("content", [b"", bytes(100)])
def test_a_file_whose_creation_was_interrupted_is_removed(tmp_path: Path, content: bytes) -> None:
    """It is short and was never used; a reader passes it over."""
    service = open_service(tmp_path)
    service.put(messages(3))
    service.close()
    leftover = tmp_path / "20991231235959999"
    leftover.write_bytes(content)
    reader = open_service(tmp_path, writable=False)
    assert leftover.exists()
    assert reader.query("T", "U1", 0, END_OF_TIME, 9) == [100]
    reader.close()
    open_service(tmp_path).close()
    assert not leftover.exists()


def test_files_without_an_entry_are_removed(tmp_path: Path) -> None:
    """A process died after creating one."""
    (tmp_path / "20991231235959999").write_bytes(bytes(FILE_BYTES))
    open_service(tmp_path, writable=False).close()
    service = open_service(tmp_path)
    assert service.paths() == []
    assert list(tmp_path.iterdir()) == []
    service.close()


def test_files_of_messages_that_are_gone_are_removed_but_the_last(tmp_path: Path) -> None:
    """Retention of the log takes the index along."""
    service = open_service(tmp_path)
    service.put(messages(100))
    count = len(service.paths())
    service.delete_before(PhysicalOffset(5000))
    assert 1 < len(service.paths()) < count
    assert service.query("T", "U60", 0, END_OF_TIME, 9) == [6000]
    assert service.query("T", "U1", 0, END_OF_TIME, 9) == []
    service.delete_before(PhysicalOffset(10**9))
    assert len(service.paths()) == len(list(tmp_path.iterdir())) == 1
    service.close()
