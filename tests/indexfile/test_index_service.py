"""The index: filled from the log, asked, reopened, cut back after unclean stops."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commitbus.commitlog.errors import (
    DiskFullError,
    FlushFailedError,
    NotAStoreError,
    StoreClosedError,
)
from commitbus.commitlog.file_system import RealFileSystem
from commitbus.commitlog.types import DispatchRequest, PhysicalOffset, QueueOffset
from commitbus.indexfile import IndexService, KeyKind
from commitbus.indexfile.index_format import HEADER_BYTES, SLOT
from tests.failing_files import FailingFileSystem

SLOTS, ENTRIES = 10, 50
FILE_BYTES = 40 + 4 * SLOTS + 20 * ENTRIES
RECORD_BYTES = 100
START_MS = 1_700_000_000_000
END_OF_TIME = 2**62


class FixedClock:
    """A clock that stands still, so that every new file name collides with the last."""

    def now_ms(self) -> int:
        return START_MS

    def monotonic_s(self) -> float:
        return 0.0


def message(number: int, keys: str = "", tags: str = "", unique_key: str = "") -> DispatchRequest:
    """The number-th message of a log: 100 bytes and 700 ms after the one before."""
    return DispatchRequest(
        physical_offset=PhysicalOffset(number * RECORD_BYTES),
        size_bytes=RECORD_BYTES,
        topic="T",
        queue_id=0,
        queue_offset=QueueOffset(number),
        tags_code=0,
        store_timestamp=START_MS + number * 700,
        sys_flag=0,
        unique_key=unique_key or f"U{number}",
        keys=keys,
        tags=tags,
    )


def messages(count: int, start: int = 0) -> list[DispatchRequest]:
    """Messages with one to four keys each; key `m<n>` is shared by many."""
    return [
        message(n, keys=" ".join([f"m{n % 3}", f"k{n}"][: n % 3]), tags="tag" if n % 4 else "")
        for n in range(start, start + count)
    ]


def open_service(directory: Path, file_system: Any = None, **options: Any) -> IndexService:
    """A loaded index of 49 entries a file."""
    service = IndexService(
        directory,
        slot_count=SLOTS,
        entry_count=ENTRIES,
        clock=FixedClock(),
        file_system=file_system or RealFileSystem(),
        **options,
    )
    service.load()
    return service


def contents(service: IndexService) -> list[bytes]:
    """The bytes of the files, oldest first, when everything is in them."""
    service.flush()
    return [path.read_bytes() for path in service.paths()]


def rebuilt(directory: Path, requests: Sequence[DispatchRequest]) -> list[bytes]:
    """What an index that was never interrupted holds."""
    service = open_service(directory)
    for request in requests:
        service.put([request])
    try:
        return contents(service)
    finally:
        service.close()


def names_of(request: DispatchRequest) -> set[str]:
    """What a message can be found by."""
    return {request.unique_key, *request.keys.split(" ")} - {""}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[IndexService]:
    """An empty index, closed at the end."""
    opened = open_service(tmp_path / "index")
    yield opened
    opened.close()


# The same bytes as RocketMQ


@pytest.mark.shared
@pytest.mark.parametrize("batch", [1, 3, 20, 1000])
def test_an_index_rebuilt_from_a_log_of_rocketmq_is_its_own_byte_for_byte(
    rocketmq_store: Any, tmp_path: Path, batch: int
) -> None:
    """Both ways of appending, one by one and in batches, give the bytes beside the log."""
    service = IndexService(
        tmp_path / "index",
        slot_count=100,
        entry_count=400,
        clock=FixedClock(),
        file_system=RealFileSystem(),
    )
    service.load()
    for start in range(0, len(rocketmq_store.requests), batch):
        service.put(rocketmq_store.requests[start : start + batch])
    originals = sorted((rocketmq_store.path / "index").iterdir())
    assert contents(service) == [path.read_bytes() for path in originals]
    service.close()


@pytest.mark.shared
def test_every_key_in_a_store_of_rocketmq_is_found(rocketmq_store: Any) -> None:
    """Opened for reading, with the numbers it was made with."""
    service = IndexService(
        rocketmq_store.path / "index",
        slot_count=100,
        entry_count=400,
        clock=FixedClock(),
        file_system=RealFileSystem(),
        writable=False,
    )
    service.load()
    for request in rocketmq_store.requests:
        ts = request.store_timestamp
        for name in names_of(request):
            found = service.query(request.topic, name, ts, ts, 1000)
            assert request.physical_offset in found
        if request.tags:
            found = service.query(request.topic, request.tags, ts, ts, 1000, kind=KeyKind.TAG)
            assert request.physical_offset in found
    service.close()


# Putting and asking


def test_messages_are_found_newest_first_across_files(service: IndexService) -> None:
    """A key that many messages have, limited and unlimited."""
    all_messages = messages(200)
    service.put(all_messages)
    assert len(service.paths()) > 5
    expected = [m.physical_offset for m in reversed(all_messages) if "m1" in names_of(m)]
    assert len(expected) > 50
    assert service.query("T", "m1", 0, END_OF_TIME, 1000) == expected
    assert service.query("T", "m1", 0, END_OF_TIME, 7) == expected[:7]
    assert service.query("T", "m1", 0, END_OF_TIME, 0) == []
    assert service.query("T", "absent", 0, END_OF_TIME, 9) == []
    assert service.dispatched_to == all_messages[-1].end_offset


def test_a_query_is_limited_in_time_to_within_a_second(service: IndexService) -> None:
    """All messages of the interval are among the candidates, none is further off than a second."""
    all_messages = messages(200)
    service.put(all_messages)
    for begin, end in ((0, 5000), (30_000, 30_000), (31_234, 77_777), (139_000, 500_000)):
        found = service.query("T", "m1", START_MS + begin, START_MS + end, 1000)
        times = {m.physical_offset: m.store_timestamp - START_MS for m in all_messages}
        within = {
            m.physical_offset
            for m in all_messages
            if "m1" in names_of(m) and begin <= times[m.physical_offset] <= end
        }
        assert within <= set(found)
        assert all(begin - 1000 <= times[offset] <= end + 1000 for offset in found)


def test_a_message_that_has_a_key_twice_is_found_once(service: IndexService) -> None:
    """Also when the two entries lie in different files."""
    service.put([message(n, keys="") for n in range(48)])
    service.put([message(48, keys="x x", unique_key="x"), message(49, keys="x")])
    assert len(service.paths()) == 2
    assert service.query("T", "x", 0, END_OF_TIME, 9) == [4900, 4800]


def test_the_file_is_allocated_with_the_first_key(tmp_path: Path) -> None:
    """A store whose messages have no keys has no index; with keys all blocks are real."""
    service = open_service(tmp_path / "index")
    keyless = DispatchRequest(
        PhysicalOffset(0), 100, "T", 0, QueueOffset(0), 0, START_MS, 0, "", "", ""
    )
    service.put([keyless])
    assert not (tmp_path / "index").exists()
    assert service.dispatched_to == 100
    service.put([message(1)])
    (path,) = service.paths()
    stat = path.stat()
    assert stat.st_size == FILE_BYTES
    assert stat.st_blocks * 512 >= FILE_BYTES
    service.close()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 60), st.booleans()), max_size=8))
def test_batches_reopenings_and_repetitions_do_not_show_in_the_bytes(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, bool]]
) -> None:
    """The index depends on the messages only, not on how they came to it."""
    directory = tmp_path_factory.mktemp("index")
    service = open_service(directory / "one")
    done = 0
    for count, reopens in steps:
        done += count
        service.put(messages(done)[max(done - count - 5, 0) :])
        if reopens:
            service.close()
            service = open_service(directory / "one")
            resumed = [m for m in messages(done) if m.physical_offset >= service.dispatched_to]
            service.put(resumed)
    got = contents(service)
    service.close()
    assert got == rebuilt(directory / "two", messages(done))


# Reopening and unclean stops


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


# Failures


@pytest.mark.parametrize("operation", ["allocate", "make_directories", "open"])
def test_a_full_disk_is_told_and_putting_goes_on_when_there_is_room(
    tmp_path: Path, operation: str
) -> None:
    """In the middle of a message's keys too: nothing is lost and nothing doubled."""
    file_system = FailingFileSystem()
    service = open_service(tmp_path / "index", file_system)
    service.put(messages(10))
    if operation == "open":
        refusing = _refuse_to_create(file_system.open)
        file_system.open = refusing  # type: ignore[method-assign] # of this one object
    else:
        file_system.fails = {operation: errno.ENOSPC}
    for _ in range(2):
        with pytest.raises(DiskFullError):
            service.put(messages(90, start=10))
    assert len(list((tmp_path / "index").iterdir())) == 1
    file_system.fails = {}
    file_system.__dict__.pop("open", None)
    service.put(messages(90, start=10))
    assert contents(service) == rebuilt(tmp_path / "other", messages(100))
    service.close()


def _refuse_to_create(real: Any) -> Any:
    def refuse(path: Path, **options: Any) -> Any:
        if options.get("create"):
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
        return real(path, **options)

    return refuse


def test_a_failed_flush_is_told(tmp_path: Path) -> None:
    """Whoever promised durability must hear of it."""
    file_system = FailingFileSystem()
    service = open_service(tmp_path / "index", file_system)
    service.put(messages(3))
    file_system.fails = {"sync_data": errno.EIO}
    with pytest.raises(FlushFailedError):
        service.flush()
    file_system.fails = {}
    service.close()


@pytest.mark.parametrize("operation", ["sync_data", "sync_directory"])
def test_what_was_cut_stays_cut(tmp_path: Path, operation: str) -> None:
    """The next flush makes it durable: other messages may lie where the removed ones lay."""
    file_system = FailingFileSystem()
    service = open_service(tmp_path / "index", file_system)
    service.put(messages(100))
    service.flush()
    service.truncate(PhysicalOffset(500))
    file_system.fails = {operation: errno.EIO}
    with pytest.raises(FlushFailedError):
        service.flush()
    file_system.fails = {}
    service.close()


def test_a_new_file_has_a_durable_name_before_it_has_entries(tmp_path: Path) -> None:
    """A power cut that kept the next file and lost this one would leave a gap."""
    file_system = FailingFileSystem()
    service = open_service(tmp_path / "index", file_system)
    file_system.fails = {"sync_directory": errno.EIO}
    with pytest.raises(FlushFailedError):
        service.put(messages(3))
    file_system.fails = {}
    service.close()


def test_a_closed_index_answers_nothing(service: IndexService) -> None:
    """Closing twice is fine."""
    service.put(messages(3))
    service.close()
    service.close()
    with pytest.raises(StoreClosedError):
        service.query("T", "U1", 0, END_OF_TIME, 9)
    with pytest.raises(StoreClosedError):
        service.put(messages(4))


@pytest.mark.parametrize("size", [FILE_BYTES - 1, FILE_BYTES + 20, 50])
def test_a_file_of_another_size_is_refused(tmp_path: Path, size: int) -> None:
    """The numbers of slots and entries are not in the file, so a wrong size is all that tells."""
    (tmp_path / "20991231235959999").write_bytes(b"\1" * size)
    with pytest.raises(NotAStoreError, match="10 slots"):
        open_service(tmp_path)


@pytest.mark.parametrize("index_count", [-1, ENTRIES + 1, 2**31 - 1])
def test_a_header_that_counts_more_than_fits_is_refused(tmp_path: Path, index_count: int) -> None:
    """Before anything follows it out of the file."""
    data = bytearray(b"\1" * FILE_BYTES)
    data[36:40] = index_count.to_bytes(4, "big", signed=True)
    (tmp_path / "20991231235959999").write_bytes(data)
    with pytest.raises(NotAStoreError, match=f"counts {index_count}"):
        open_service(tmp_path)


@pytest.mark.parametrize("seed", range(25))
def test_a_damaged_file_never_makes_a_query_hang_or_fail(tmp_path: Path, seed: int) -> None:
    """Random bytes, rings in chains, indexes far outside: a walk ends."""
    random_ = random.Random(seed)  # noqa: S311 - damage, not secrets
    service = open_service(tmp_path)
    service.put(messages(16))
    (path,) = service.paths()
    service.close()
    data = bytearray(path.read_bytes())
    if seed % 2:
        data[HEADER_BYTES:] = random_.randbytes(len(data) - HEADER_BYTES)
    else:
        for position in range(HEADER_BYTES, len(data) - 4, 4):
            if random_.random() < 0.4:
                SLOT.pack_into(data, position, random_.randint(-3, ENTRIES + 3))
    path.write_bytes(data)
    service = open_service(tmp_path)
    for number in range(16):
        found = service.query("T", f"U{number}", 0, END_OF_TIME, 1000)
        assert len(found) < ENTRIES
    service.discard_after(0)
    service.put([m for m in messages(16) if m.physical_offset >= service.dispatched_to])
    assert 1500 in service.query("T", "U15", 0, END_OF_TIME, 1000)
    service.close()
