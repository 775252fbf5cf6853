"""Recovery: the log ends where its last trustworthy record does, and nothing is cut silently."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from commitbus.commitlog import recovery
from commitbus.commitlog.commit_log import CommitLog
from commitbus.commitlog.errors import DiskFullError, NotAStoreError, StoreDamagedError
from commitbus.commitlog.recovery import RecoveryOutcome, recover_abnormally, recover_normally
from commitbus.commitlog.types import Host, OutgoingMessage, PhysicalOffset, QueueOffset
from tests.records import record_size

OpenLog = Callable[..., CommitLog]
Make = Callable[..., OutgoingMessage]
FILE = 4096
RECORD = 500
PER_FILE = (FILE - 8) // RECORD
PROPERTIES = b"KEYS\x01k\x02"


def body(number: int) -> bytes:
    return b"%03d" % number + b"x" * (RECORD - record_size(5, 3, len(PROPERTIES)))


def write(open_log: OpenLog, message: Make, count: int) -> CommitLog:
    """Write records of 500 bytes, eight to a file, each a millisecond later, and close the log."""
    log = open_log(FILE)
    for number in range(count):
        log._clock.ms += 1  # type: ignore[attr-defined] # the test's manual clock
        log.append(message(body(number), queue_id=number % 2, properties=PROPERTIES))
    log.close()
    return log


def place(number: int) -> int:
    """Return the physical offset of a record of `write`."""
    return number // PER_FILE * FILE + number % PER_FILE * RECORD


def patch(log: CommitLog, offset: int, data: bytes) -> None:
    with (log.files.directory / f"{offset // FILE * FILE:020d}").open("r+b") as file:
        file.seek(offset % FILE)
        file.write(data)


def add_file(log: CommitLog, base: int, data: bytes = b"") -> None:
    path = log.files.directory / f"{base:020d}"
    path.write_bytes(data + bytes(FILE - len(data)))


def bodies(log: CommitLog) -> list[bytes]:
    requests, _ = log.dispatch_requests(log.min_offset, log.end_offset, 1 << 30)
    return [log.read(request.physical_offset).body for request in requests]


def tail(log: CommitLog) -> bytes:
    """Return every byte on disk behind the log's end."""
    return b"".join(
        path.read_bytes()[max(log.end_offset - int(path.name), 0) :]
        for path in sorted(log.files.directory.iterdir())
        if int(path.name) + FILE > log.end_offset
    )


def crash_recover(log: CommitLog, **changes: Any) -> RecoveryOutcome:
    arguments: dict[str, Any] = {"durable_watermark": None, "trusted_timestamp": 0}
    return recover_abnormally(log, **(arguments | changes))


@pytest.mark.parametrize("count", [0, 1, PER_FILE, PER_FILE + 1, 3 * PER_FILE + 2])
def test_an_intact_log_is_kept_whole(open_log: OpenLog, message: Make, count: int) -> None:
    """Nothing is cut, counts and queue ends are right, and appending goes on densely."""
    end = write(open_log, message, count).end_offset
    log = open_log(FILE)
    got = crash_recover(log)
    assert (got.start, got.end, got.records) == (0, end, count)
    assert (got.cut_bytes, got.cut_path, got.cut_reason) == (0, None, "")
    assert got.last_store_timestamp == (1_700_000_000_000 + count if count else 0)
    assert got.queue_ends == {
        ("topic", queue): QueueOffset(len(range(queue, count, 2)))
        for queue in (0, 1)
        if count > queue
    }
    assert log.flushed_where == log.end_offset == end
    log.set_queue_ends(got.queue_ends)
    result = log.append(message(body(count), queue_id=count % 2))
    assert result.queue_offset == count // 2
    assert bodies(log) == [body(number) for number in range(count + 1)]
    assert result.physical_offset == place(count)


def test_time_goes_on_behind_the_last_record(open_log: OpenLog, message: Make, clock: Any) -> None:
    """A clock that was set back while the broker was down does not show in the log."""
    write(open_log, message, 3)
    clock.ms -= 60_000
    log = open_log(FILE)
    got = recover_normally(log, durable_watermark=None)
    assert log.append(message()).store_timestamp == got.last_store_timestamp


def test_what_is_in_no_queue_moves_no_queue_end(open_log: OpenLog, message: Make) -> None:
    """Prepared and rolled-back messages have queue offset 0, which says nothing."""
    log = open_log(FILE)
    for flag in (0, 8, 0x4, 0xC):
        log.append(message(sys_flag=flag))
    log.close()
    assert crash_recover(open_log(FILE)).queue_ends == {("topic", 0): 2}


# Cutting


@pytest.mark.parametrize("number", [0, 3, PER_FILE - 1, PER_FILE, 2 * PER_FILE + 3])
@pytest.mark.parametrize("normally", [False, True])
def test_the_log_is_cut_at_the_first_bad_record(
    open_log: OpenLog, message: Make, number: int, *, normally: bool
) -> None:
    """Intact records behind it go too; they are put aside, and zeroed where they were."""
    count = 2 * PER_FILE + 5
    old = write(open_log, message, count)
    before = b"".join(path.read_bytes() for path in sorted(old.files.directory.iterdir()))
    patch(old, place(number) + 100, b"damage")
    log = open_log(FILE)
    got = recover_normally(log, durable_watermark=None) if normally else crash_recover(log)
    assert (got.end, got.records) == (place(number), number)
    assert got.cut_bytes == old.end_offset - place(number)
    assert "checksum" in got.cut_reason
    assert got.cut_path == log.files.directory.parent / "commitbus" / "cut" / str(place(number))
    expected = before[place(number) : old.end_offset]
    assert got.cut_path.read_bytes() == expected[:100] + b"damage" + expected[106:]
    assert not any(tail(log))
    assert bodies(log) == [body(n) for n in range(number)]
    log.append(message(b"goes on"))
    assert bodies(log)[-1] == b"goes on"


def test_a_gap_of_zeros_ends_the_log_too(open_log: OpenLog, message: Make) -> None:
    """A page that never reached the disk reads as zeros; what lies behind was not acknowledged."""
    old = write(open_log, message, 6)
    patch(old, place(2), bytes(RECORD))
    log = open_log(FILE)
    got = crash_recover(log)
    assert (got.end, got.cut_bytes) == (place(2), old.end_offset - place(2))
    assert not any(tail(log))


def test_a_write_that_was_never_completed_is_cut(open_log: OpenLog, message: Make) -> None:
    """A killed process leaves a record without its size word."""
    old = write(open_log, message, 3)
    patch(old, old.end_offset + 4, b"half a record")
    got = crash_recover(open_log(FILE))
    assert (got.end, got.records, got.cut_bytes) == (old.end_offset, 3, 17)
    assert got.cut_path is not None
    assert got.cut_path.read_bytes() == bytes(4) + b"half a record"


def test_zeros_behind_the_end_are_no_cut(open_log: OpenLog, message: Make) -> None:
    """Prepared files beyond the end are removed; the one that begins at the end is kept."""
    old = write(open_log, message, PER_FILE)
    add_file(old, FILE)
    add_file(old, 2 * FILE)
    log = open_log(FILE)
    got = crash_recover(log)
    assert (got.end, got.cut_bytes) == (old.end_offset, 0)
    assert [file.base_offset for file in log.files.files] == [0]

    log.append(message(b"x" * 3000))
    log.close()
    (old.files.directory / f"{FILE:020d}").write_bytes(bytes(FILE))
    log = open_log(FILE)
    assert crash_recover(log).end == FILE
    assert [file.base_offset for file in log.files.files] == [0, FILE]
    assert log.append(message()).physical_offset == FILE


def test_stale_records_cannot_come_back(open_log: OpenLog, message: Make) -> None:
    """After a cut, records of equal size fill the gap; what lay behind it must stay gone."""
    old = write(open_log, message, 6)
    patch(old, place(2) + 100, b"damage")
    log = open_log(FILE)
    crash_recover(log)
    log.append(message(body(2), properties=PROPERTIES))
    log.close()
    again = open_log(FILE)
    assert (got := crash_recover(again)).records == 3
    assert got.cut_bytes == 0
    assert bodies(again) == [body(0), body(1), body(2)]


def test_an_earlier_copy_is_never_overwritten(open_log: OpenLog, message: Make) -> None:
    """Cut twice at the same place, for instance after a crash in between: both copies stay."""
    paths = []
    for attempt in range(3):
        log = open_log(FILE)
        log.files.directory.mkdir(exist_ok=True)
        log.close()
        add_file(log, 0, b"garbage %d" % attempt)
        log = open_log(FILE)
        paths.append(crash_recover(log).cut_path)
        log.close()
    assert [path.name for path in paths if path] == ["0", "0.1", "0.2"]
    assert [path.read_bytes() for path in paths if path] == [b"garbage %d" % n for n in range(3)]


def test_nothing_is_zeroed_before_the_copy_is_durable(
    open_log: OpenLog, message: Make, faulty: Any
) -> None:
    """Without room for the copy recovery gives up, and leaves the log as it found it."""
    old = write(open_log, message, 6)
    patch(old, place(2) + 100, b"damage")
    before = (old.files.directory / f"{0:020d}").read_bytes()
    faulty.failing["pwrite"] = errno.ENOSPC
    log = open_log(FILE)
    with pytest.raises(DiskFullError):
        crash_recover(log)
    log.close()
    assert (old.files.directory / f"{0:020d}").read_bytes() == before
    faulty.failing.clear()
    assert crash_recover(open_log(FILE)).records == 2


DAMAGE = st.one_of(st.binary(min_size=1, max_size=8), st.just(bytes(512)), st.just(b"\xff" * 64))
PLACES = st.tuples(st.integers(0, 2 * PER_FILE), st.integers(0, RECORD - 1))


@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(where=PLACES, data=DAMAGE)
def test_damage_never_harms_what_precedes_it(
    open_log: OpenLog,
    message: Make,
    tmp_path_factory: pytest.TempPathFactory,
    where: tuple[int, int],
    data: bytes,
) -> None:
    """Whatever is overwritten, earlier records stay, and later ones go or stay as they were."""
    number, position = where
    parent = tmp_path_factory.mktemp("damage")

    def open_here(size: int) -> CommitLog:
        return open_log(size, directory=parent / "commitlog")

    count = 2 * PER_FILE + 2
    old = write(open_here, message, count)
    at = place(number) + position
    patch(old, at, data[: FILE - at % FILE])
    log = open_here(FILE)
    got = crash_recover(log)
    kept = bodies(log)
    assert len(kept) == got.records >= number
    assert kept[:number] == [body(n) for n in range(number)]
    assert not any(tail(log))
    if got.records < count:
        assert got.cut_bytes > 0
        assert got.end <= at + len(data)
    log.close()
    assert crash_recover(open_here(FILE)).end == got.end


# The watermark


def test_damage_below_the_watermark_refuses_to_open(open_log: OpenLog, message: Make) -> None:
    """Promised bytes are gone: no torn write. Nothing is changed, and the place is named."""
    old = write(open_log, message, 6)
    patch(old, place(2) + 100, b"damage")
    before = (old.files.directory / f"{0:020d}").read_bytes()
    for recover in (recover_normally, crash_recover):
        log = open_log(FILE)
        with pytest.raises(StoreDamagedError, match="checksum") as caught:
            recover(log, durable_watermark=PhysicalOffset(place(3)))
        assert caught.value.physical_offset == place(2)
        log.close()
    assert (old.files.directory / f"{0:020d}").read_bytes() == before
    assert crash_recover(open_log(FILE), durable_watermark=place(2)).records == 2


@pytest.mark.parametrize("lost", [[FILE], [0, FILE]])
def test_missing_files_below_the_watermark_are_damage(
    open_log: OpenLog, message: Make, lost: list[int]
) -> None:
    """A log that ends before its watermark has lost what was promised."""
    old = write(open_log, message, PER_FILE + 1)
    for base in lost:
        (old.files.directory / f"{base:020d}").unlink()
    with pytest.raises(StoreDamagedError, match="file is there"):
        crash_recover(open_log(FILE), durable_watermark=old.end_offset)


def test_a_damaged_log_can_still_be_read(open_log: OpenLog, message: Make) -> None:
    """Opened for reading it ends at the damage, and neither a byte nor a file changes."""
    old = write(open_log, message, PER_FILE + 3)
    patch(old, place(2) + 100, b"damage")
    before = {p.name: p.read_bytes() for p in old.files.directory.iterdir()}
    log = open_log(FILE, writable=False)
    got = crash_recover(log, durable_watermark=old.end_offset)
    assert (got.end, got.records, got.cut_path) == (place(2), 2, None)
    assert got.cut_bytes == old.end_offset - place(2)
    assert bodies(log) == [body(0), body(1)]
    assert {p.name: p.read_bytes() for p in old.files.directory.iterdir()} == before


# Where to begin


@pytest.mark.parametrize(
    ("trusted_ms", "watermark", "first_file"),
    [
        (0, None, 0),
        (1, None, 0),
        (PER_FILE, None, 0),
        (PER_FILE + 1, None, 1),
        (10**15, None, 4),
        (10**15, 2 * FILE, 1),
        (10**15, 2 * FILE + 1, 2),
        (10**15, 0, 0),
        (PER_FILE + 1, 4 * FILE, 1),
    ],
)
def test_a_crashed_log_is_read_from_the_last_trusted_file(
    open_log: OpenLog, message: Make, trusted_ms: int, watermark: int | None, first_file: int
) -> None:
    """The newest file that the checkpoint vouches for, but never one above the watermark."""
    write(open_log, message, 5 * PER_FILE)
    trusted = 1_700_000_000_000 + trusted_ms if trusted_ms else 0
    got = crash_recover(open_log(FILE), trusted_timestamp=trusted, durable_watermark=watermark)
    assert got.start == first_file * FILE
    assert got.records == (5 - first_file) * PER_FILE


@pytest.mark.parametrize(
    ("watermark", "first_file"), [(None, 2), (5 * FILE, 4), (2 * FILE, 1), (0, 0)]
)
def test_a_cleanly_closed_log_is_read_from_its_last_files(
    open_log: OpenLog, message: Make, watermark: int | None, first_file: int
) -> None:
    """The third-last file as RocketMQ does, or the file of the last byte known to be durable."""
    write(open_log, message, 5 * PER_FILE)
    mark = None if watermark is None else PhysicalOffset(min(watermark, place(39) + RECORD))
    assert recover_normally(open_log(FILE), durable_watermark=mark).start == first_file * FILE


def test_a_file_that_begins_with_damage_is_not_trusted(open_log: OpenLog, message: Make) -> None:
    """The choice falls on an older file, which then leads to the damage."""
    old = write(open_log, message, 2 * PER_FILE)
    patch(old, FILE + 4, b"\xff")
    got = crash_recover(open_log(FILE), trusted_timestamp=10**15)
    assert (got.start, got.end) == (0, FILE)


def test_after_retention_recovery_begins_at_the_first_file(
    open_log: OpenLog, message: Make
) -> None:
    """Offsets go on; nothing is expected before the first file that is there."""
    old = write(open_log, message, 3 * PER_FILE)
    (old.files.directory / f"{0:020d}").unlink()
    log = open_log(FILE)
    got = crash_recover(log, durable_watermark=0)
    assert (log.min_offset, got.start, got.records) == (FILE, FILE, 2 * PER_FILE)


def test_progress_is_reported_to_its_end(
    open_log: OpenLog, message: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It never goes back and ends with all bytes done."""
    monkeypatch.setattr(recovery, "_BATCH_RECORDS", 3)
    write(open_log, message, 2 * PER_FILE)
    seen: list[tuple[int, int]] = []

    def report(what: str, done: int, total: int) -> None:
        assert what
        seen.append((done, total))

    crash_recover(open_log(FILE), on_progress=report)
    assert len(seen) >= 2 * PER_FILE // 3
    assert seen == sorted(seen)
    assert seen[-1] == (2 * FILE, 2 * FILE)


# What RocketMQ wrote


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "expected"),
    [("broker", (1 << 20, 177, 1_694_808)), ("directA", (1 << 16, 42, 52_966))],
)
@pytest.mark.parametrize("writable", [False, True])
def test_rocketmqs_own_log_is_taken_over(
    open_log: OpenLog,
    message: Make,
    rocketmq_stores: dict[str, Path],
    name: str,
    expected: tuple[int, int, int],
    *,
    tmp_path: Path,
    writable: bool,
) -> None:
    """Every record is found, not a byte is changed, and the next message follows the last."""
    file_size, records, end = expected
    directory = tmp_path / "adopted" / "commitlog"
    shutil.copytree(rocketmq_stores[name] / "commitlog", directory)
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    log = open_log(file_size, directory=directory, writable=writable)
    got = recover_normally(log, durable_watermark=None)
    assert (got.records, got.end, got.cut_bytes) == (records, end, 0)
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before
    if writable:
        log.set_queue_ends(got.queue_ends)
        topic, queue_id = next(iter(got.queue_ends))
        result = log.append(message(topic=topic, queue_id=queue_id, born_host=Host.parse("::1", 1)))
        assert result.physical_offset == end
        assert result.queue_offset == got.queue_ends[topic, queue_id]
        assert result.store_timestamp >= got.last_store_timestamp


@pytest.mark.shared
def test_another_file_size_than_rocketmqs_is_refused(
    open_log: OpenLog, rocketmq_stores: dict[str, Path]
) -> None:
    """Read with the wrong size, every offset behind the first file would be wrong."""
    with pytest.raises(NotAStoreError, match="65536 bytes where 4096"):
        open_log(FILE, directory=rocketmq_stores["directA"] / "commitlog", writable=False)
