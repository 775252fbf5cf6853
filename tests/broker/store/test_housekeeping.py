"""Sealing, retention, and a disk that is too full: the store keeps itself within bounds."""

from __future__ import annotations

import errno
import os
import threading
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import pytest

from commitbus.broker.store.check import check_store
from commitbus.broker.store.config import StoreConfig
from commitbus.broker.store.message_store import MessageStore
from commitbus.commitlog import file_system, mapped_file
from commitbus.commitlog.errors import DiskRatioError, OffsetOutOfRangeError, ReadFailedError
from commitbus.commitlog.file_system import RealFileSystem
from commitbus.commitlog.mapped_file import MappedFile
from commitbus.commitlog.retention import HOUR_MS
from commitbus.commitlog.types import PhysicalOffset, QueueOffset
from commitbus.flush.policy import FlushMode, FlushPolicy
from commitbus.flush.sealed import manifest_path, read_manifest
from commitbus.flush.watermark import Watermark
from tests.broker.store.filling import EXPIRY, FILE, Disk, Make, bases, fill, sealed, settle

FILES = RealFileSystem()


@final
class SetClock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.ms

    def monotonic_s(self) -> float:
        return self.ms / 1000


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def disk() -> Disk:
    return Disk()


OpenStore = Callable[..., MessageStore]


@pytest.fixture
def open_store(
    store_dir: Path, config: StoreConfig, clock: SetClock, disk: Disk
) -> Iterator[OpenStore]:
    """Open the store of the test; at the end it is closed and checked."""
    opened: list[MessageStore] = []

    def open_(**changes: Any) -> MessageStore:
        store = MessageStore.open(
            store_dir, replace(config, **changes), clock=clock, file_system=disk
        )
        opened.append(store)
        return store

    yield open_
    for store in opened:
        store.close()
    report = check_store(store_dir, config=config)
    assert report.problems == []


# Sealing


def test_full_files_are_sealed(open_store: OpenStore, make_message: Make, store_dir: Path) -> None:
    """Each that is durable, and not the one that is written."""
    store = open_store()
    fill(store, make_message, 3)
    store.keep_house()
    assert sealed(store_dir) == [0, FILE, 2 * FILE]
    segment = read_manifest(store_dir, FILE, FILES)
    assert segment is not None
    assert segment.crc32 == zlib.crc32((store_dir / "commitlog" / f"{FILE:020}").read_bytes())


def test_a_full_file_is_sealed_without_being_asked(
    open_store: OpenStore, make_message: Make, store_dir: Path
) -> None:
    """The flush that makes its end durable wakes the thread."""
    store = open_store()
    done = threading.Event()
    original = store._housekeeping.seal

    def seal(base_offset: PhysicalOffset) -> Any:
        segment = original(base_offset)
        done.set()
        return segment

    store._housekeeping.seal = seal  # type: ignore[method-assign] # to await the thread
    fill(store, make_message, 1)
    assert done.wait(20)
    assert sealed(store_dir) == [0]


def test_a_lost_or_damaged_manifest_is_made_again(
    open_store: OpenStore, make_message: Make, store_dir: Path
) -> None:
    """By the next start."""
    store = open_store()
    fill(store, make_message, 2)
    store.keep_house()
    store.close()
    before = manifest_path(store_dir, 0).read_bytes()
    manifest_path(store_dir, 0).unlink()
    manifest_path(store_dir, FILE).write_bytes(b"{}")
    open_store().keep_house()
    assert manifest_path(store_dir, 0).read_bytes() == before
    assert sealed(store_dir) == [0, FILE]


def test_a_manifest_of_a_file_that_recovery_cut_is_void(
    open_store: OpenStore, make_message: Make, store_dir: Path
) -> None:
    """The file is written anew from there on, and sealed again when it is full."""
    store = open_store()
    fill(store, make_message, 2)
    store.keep_house()
    store.close()
    (store_dir / "commitbus" / "watermark").unlink()
    (store_dir / "abort").touch()
    log_file = store_dir / "commitlog" / f"{FILE:020}"
    log_file.write_bytes(log_file.read_bytes()[: FILE // 2].ljust(FILE, b"\0"))
    store = open_store()
    assert store.end_offset < 2 * FILE
    store.keep_house()
    assert sealed(store_dir) == [0]
    fill(store, make_message, 1)
    store.keep_house()
    assert sealed(store_dir) == [0, FILE]


def test_an_operator_can_seal_what_is_written(
    open_store: OpenStore, make_message: Make, store_dir: Path
) -> None:
    """The manifest is there on return; without a message nothing happens."""
    for mode in FlushMode:
        store = open_store(flush=FlushPolicy(mode, interval_ms=5))
        assert store.seal_segment() is None
        result = store.put(make_message())
        segment = store.seal_segment()
        assert segment is not None
        assert segment.records_end == result.end_offset
        assert segment.base_offset in sealed(store_dir)
        assert store.seal_segment() is None
        settle(store)
        assert store.confirm_offset == store.end_offset == segment.end_offset
        assert store.dispatch_behind_bytes == 0
        store.close()
    assert bases(store_dir)[:2] == [0, FILE]


def test_a_file_that_is_old_enough_is_ended(
    open_store: OpenStore, make_message: Make, clock: SetClock, store_dir: Path
) -> None:
    """`sealAfter` counts from its first record; 0 never ends one."""
    store = open_store(seal_after_s=60)
    store.put(make_message())
    clock.ms += 59_999
    store.put(make_message())
    store.keep_house()
    assert store.end_offset < FILE
    clock.ms += 1
    store.keep_house()
    assert store.end_offset == FILE
    store.keep_house()
    settle(store)
    store.keep_house()
    assert sealed(store_dir) == [0]
    store.close()
    store = open_store()
    store.put(make_message())
    clock.ms += 10**12
    store.keep_house()
    assert store.end_offset < 2 * FILE


def flip(file: MappedFile, position: int) -> None:
    """Damage a byte of a log file."""
    file.write(position, bytes([file.read(position, 1)[0] ^ 1]))


def test_a_damaged_file_is_not_sealed_and_stops_nobody(
    open_store: OpenStore, make_message: Make, store_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said once, and the files behind it are sealed."""
    store = open_store()
    fill(store, make_message, 1)
    store.keep_house()
    flip(store._log.files.files[-1], 500)
    fill(store, make_message, 2)
    store.keep_house()
    store.keep_house()
    assert sealed(store_dir) == [0, 2 * FILE]
    said = [record for record in caplog.records if "damaged" in record.message]
    assert len(said) == 1
    flip(store._log.files.files[1], 500)


def test_a_manifest_that_cannot_be_written_is_tried_again(
    open_store: OpenStore, make_message: Make, store_dir: Path, disk: Disk
) -> None:
    """A full disk is no reason to fail the store."""
    store = open_store()
    broken = disk.rename

    def fail(source: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(target))

    disk.rename = fail  # type: ignore[method-assign] # the fault of this test
    fill(store, make_message, 1)
    store.keep_house()
    assert sealed(store_dir) == []
    assert store.failure is None
    disk.rename = broken  # type: ignore[method-assign] # the end of the fault
    store.keep_house()
    assert sealed(store_dir) == [0]


# Retention


def test_expired_files_go_with_what_leads_into_them(
    open_store: OpenStore, make_message: Make, clock: SetClock, store_dir: Path
) -> None:
    """Log, manifest, queue and index files; the offsets of what is left stay."""
    store = open_store(retention=EXPIRY)
    fill(store, make_message, 3)
    store.keep_house()
    assert store.min_offset("TopicA", 0) == 0
    queue_files = len(list((store_dir / "consumequeue" / "TopicA" / "0").iterdir()))
    index_files = len(list((store_dir / "index").iterdir()))
    clock.ms += 48 * HOUR_MS + 1
    newest = store.put(make_message(body=b"new", UNIQ_KEY="new"))
    settle(store)
    store.keep_house()
    assert store.min_physical_offset == 3 * FILE
    assert min(bases(store_dir)) == 3 * FILE
    assert sealed(store_dir) == []
    begin = store.min_offset("TopicA", 0)
    assert 0 < begin < newest.queue_offset
    assert len(list((store_dir / "consumequeue" / "TopicA" / "0").iterdir())) < queue_files
    assert len(list((store_dir / "index").iterdir())) < index_files
    found = store.fetch("TopicA", 0, QueueOffset(0), 1000)
    assert found.units[0].queue_offset == begin
    assert found.units[-1].queue_offset == newest.queue_offset
    assert store.query_by_unique_key("TopicA", "new")[0].body == b"new"
    assert store.offset_by_timestamp("TopicA", 0, 0) == begin
    store.close()
    assert open_store().min_offset("TopicA", 0) == begin


def test_a_slice_begins_behind_what_is_just_being_deleted(
    open_store: OpenStore, make_message: Make, clock: SetClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of the log are gone, the queue does not know that yet."""
    store = open_store(retention=EXPIRY)
    fill(store, make_message, 3)
    store.keep_house()
    # Its thread may still be at it, and would delete before anybody looks.
    store._housekeeping.stop()
    clock.ms += 48 * HOUR_MS + 1
    newest = store.put(make_message(body=b"new"))
    settle(store)
    found: list[tuple[int, int]] = []

    def look(begin: PhysicalOffset) -> None:
        assert store.min_offset("TopicA", 0) == 0
        for start in (QueueOffset(0), newest.queue_offset):
            part = store.queue_slice("TopicA", 0, start, FILE)
            assert part is not None
            found.append((part.first_offset, part.next_offset))
        hide(begin)

    hide = store._queues.delete_before
    monkeypatch.setattr(store._queues, "delete_before", look)
    store.keep_house()
    end = newest.queue_offset + 1
    assert found == [(store.min_offset("TopicA", 0), end), (newest.queue_offset, end)]


@pytest.mark.parametrize("error", [errno.EIO, errno.EMFILE])
def test_queues_that_could_not_be_trimmed_are_trimmed_the_next_time(
    open_store: OpenStore,
    make_message: Make,
    clock: SetClock,
    monkeypatch: pytest.MonkeyPatch,
    store_dir: Path,
    *,
    error: int,
) -> None:
    """Also if no further log file goes then; and the index does not wait for them."""
    store = open_store(retention=EXPIRY)
    fill(store, make_message, 3)
    store._housekeeping.stop()
    clock.ms += 48 * HOUR_MS + 1
    store.put(make_message(body=b"new"))
    settle(store)
    index_files = len(list((store_dir / "index").iterdir()))

    def fail(_: PhysicalOffset) -> None:
        raise ReadFailedError(store_dir, 0, OSError(error, os.strerror(error)))

    with monkeypatch.context() as patch:
        patch.setattr(store._queues, "delete_before", fail)
        store._housekeeping._retain()
    assert store.min_physical_offset == 3 * FILE
    assert store.min_offset("TopicA", 0) == 0
    assert len(list((store_dir / "index").iterdir())) < index_files
    store._housekeeping._retain()
    begin = store.min_offset("TopicA", 0)
    assert begin > 0
    assert store.fetch("TopicA", 0, QueueOffset(0), 1).units[0].queue_offset == begin


def test_the_file_that_is_written_stays_however_old(
    open_store: OpenStore, make_message: Make, clock: SetClock, disk: Disk
) -> None:
    """Even when the disk is full."""
    store = open_store(retention=EXPIRY)
    store.put(make_message())
    settle(store)
    clock.ms += 10**12
    disk.used_percent = 99
    store.keep_house()
    assert store.min_physical_offset == 0
    assert len(store.fetch("TopicA", 0, QueueOffset(0), 1).units) == 1


def test_a_file_that_was_never_sealed_is_as_old_as_the_next_one_begins(
    open_store: OpenStore,
    make_message: Make,
    clock: SetClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Retention does not wait for sealing."""
    monkeypatch.setattr("commitbus.broker.store.sealing.describe", lambda *_: None)
    store = open_store(retention=EXPIRY)
    fill(store, make_message, 1)
    clock.ms += HOUR_MS
    fill(store, make_message, 2)
    clock.ms += 47 * HOUR_MS + 1
    store._housekeeping._retain()
    assert store.min_physical_offset == FILE
    clock.ms += HOUR_MS
    store._housekeeping._retain()
    assert store.min_physical_offset == 3 * FILE


def test_messages_of_a_deleted_file_are_out_of_range(
    open_store: OpenStore, make_message: Make, clock: SetClock
) -> None:
    """Readers are told that they are gone."""
    store = open_store(retention=EXPIRY)
    fill(store, make_message, 2)
    unit = store.fetch("TopicA", 0, QueueOffset(0), 1).units[0]
    clock.ms += 49 * HOUR_MS
    store.keep_house()
    assert store.min_physical_offset == 2 * FILE
    with pytest.raises(OffsetOutOfRangeError):
        store.read(unit.physical_offset)


def test_a_read_that_has_begun_ends_well_when_its_file_is_deleted(
    open_store: OpenStore, make_message: Make, clock: SetClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bytes stay until it is done."""
    store = open_store(retention=EXPIRY)
    fill(store, make_message, 2)
    unit = store.fetch("TopicA", 0, QueueOffset(0), 1).units[0]
    place = unit.physical_offset, unit.size_bytes
    before, read_at = store.read_bytes(*place), file_system.read_at

    def read_while_it_is_deleted(*arguments: Any) -> bytes:
        monkeypatch.setattr(mapped_file, "read_at", read_at)
        clock.ms += 49 * HOUR_MS
        store.keep_house()
        assert store.min_physical_offset == 2 * FILE
        return read_at(*arguments)

    monkeypatch.setattr(mapped_file, "read_at", read_while_it_is_deleted)
    assert store.read_bytes(*place) == before


def test_what_is_not_dispatched_yet_stays(
    open_store: OpenStore, make_message: Make, clock: SetClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that no queue holds would be lost without ever being seen."""
    store = open_store(retention=EXPIRY)
    fill(store, make_message, 3)
    clock.ms += 49 * HOUR_MS
    held_up = Watermark(PhysicalOffset(2 * FILE - 1))
    monkeypatch.setattr(store._housekeeping, "_dispatched", held_up)
    store.keep_house()
    assert store.min_physical_offset == FILE


def test_a_nearly_full_disk_takes_unexpired_files(
    open_store: OpenStore, make_message: Make, disk: Disk
) -> None:
    """Only as many as bring it below 85 %."""
    store = open_store(retention=EXPIRY)
    fill(store, make_message, 4)
    store.keep_house()
    disk.used_percent = 86
    store._housekeeping._retain()
    # 86 files' worth of 100 are used: two fewer are 84 %.
    assert store.min_physical_offset == 2 * FILE


# A full disk


def test_a_full_disk_refuses_messages_and_recovers_alone(
    open_store: OpenStore, make_message: Make, disk: Disk
) -> None:
    """With the true reason, from the first message on; reading goes on."""
    disk.used_percent = 90
    store = open_store(retention=EXPIRY)
    with pytest.raises(DiskRatioError, match=r"is 90.0 % full; from 90 % on messages are refused"):
        store.put(make_message())
    with pytest.raises(DiskRatioError) as caught:
        store.put_batch([make_message()])
    assert str(store.full_disk) == str(caught.value)
    disk.used_percent = 89
    store.keep_house()
    assert store.full_disk is None
    store.put(make_message())
    settle(store)
    disk.used_percent = 95
    store.keep_house()
    with pytest.raises(DiskRatioError):
        store.put(make_message())
    assert len(store.fetch("TopicA", 0, QueueOffset(0), 1).units) == 1


def test_room_made_by_deleting_counts_at_once(
    open_store: OpenStore, make_message: Make, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits ten more seconds."""
    store = open_store(retention=EXPIRY)
    fill(store, make_message, 2)
    full, roomy = (100 * FILE, 9 * FILE), (100 * FILE, 50 * FILE)
    monkeypatch.setattr(disk, "disk_usage", lambda _: roomy if store.min_physical_offset else full)
    store._housekeeping._retain()
    assert store.min_physical_offset == 2 * FILE
    store.put(make_message())


def test_without_a_policy_nothing_goes_and_nothing_is_refused(
    open_store: OpenStore, make_message: Make, disk: Disk, clock: SetClock
) -> None:
    """A store that is opened by a program of one's own keeps everything."""
    disk.used_percent = 100
    store = open_store()
    fill(store, make_message, 2)
    clock.ms += 10**12
    store.keep_house()
    assert store.min_physical_offset == 0
