"""Where a log is cut: at true records only, up to the durable watermark."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from commitbus.commitlog.errors import CorruptRecordError, NotAStoreError
from commitbus.commitlog.file_system import RealFileSystem
from commitbus.flush.spark.log_ranges import LogRange, RangeEnd, plan_ranges
from tests.records import encode_record

FILE_SYSTEM = RealFileSystem()


def plan(store: Any, split_bytes: int | None = None, **bounds: int) -> list[LogRange]:
    return plan_ranges(store.path, FILE_SYSTEM, split_bytes=split_bytes, **bounds)


def test_a_directory_without_a_log_is_no_store(tmp_path: Path) -> None:
    """Whether it is missing, empty, or a file."""
    (tmp_path / "commitlog").write_text("no directory")
    for path in (tmp_path, tmp_path / "missing", tmp_path / "commitlog"):
        with pytest.raises(NotAStoreError, match="no directory commitlog"):
            plan_ranges(path, FILE_SYSTEM, split_bytes=None)


def test_a_log_without_messages_has_no_ranges(make_store: Any) -> None:
    """Neither a fresh store, nor one whose first file is only prepared."""
    store = make_store()
    assert plan(store) == []
    (store.path / "commitlog" / f"{0:020}").write_bytes(bytes(store.file_bytes))
    assert plan(store) == []


def test_whole_files_up_to_the_watermark(small_store: Any) -> None:
    """The last range ends at the watermark, also when more was appended behind it."""
    watermark = small_store.records[-3].physical_offset
    small_store.set_watermark(small_store.end)
    ranges = plan(small_store)
    assert [r.start for r in ranges] == list(range(0, small_store.end, small_store.file_bytes))
    assert ranges[-1].end == small_store.end
    assert {r.end_is for r in ranges} == {RangeEnd.EXACT}
    assert watermark < small_store.end


def test_cuts_lie_on_records_that_a_queue_names(small_store: Any) -> None:
    """Every range begins at a record; together they hold each once."""
    starts = {record.physical_offset for record in small_store.records}
    for split_bytes in (1, 100, 1000, 5000):
        ranges = plan(small_store, split_bytes)
        assert {r.start for r in ranges} <= starts
        assert [r.end for r in ranges[:-1]] == [r.start for r in ranges[1:]]
        assert ranges[-1].end == small_store.end
    assert len(plan(small_store, 1)) == len(small_store.records)


def test_a_forged_record_in_a_body_is_no_place_to_cut(make_store: Any) -> None:
    """Even one that names the offset at which it comes to lie."""
    store = make_store()
    first = store.append()
    forged_offset = store.end + 88
    host = first.born_host
    forged = encode_record(
        topic="Forged", body=b"x" * 2000, properties=b"", queue_id=0, queue_offset=0,
        physical_offset=forged_offset, born_timestamp=0, born_host=host, store_timestamp=0,
        store_host=host,
    )  # fmt: skip
    store.append(body=forged)
    assert store.log[forged_offset : forged_offset + len(forged)] == forged
    store.append()
    store.set_watermark(store.end)
    assert forged_offset not in {r.start for r in plan(store, 1)}
    assert len(plan(store, 1)) == 3


def test_without_queues_a_file_is_one_range(make_store: Any) -> None:
    """Nothing else is known to be a record, except the first."""
    store = make_store()
    for _ in range(10):
        store.append(queued=False, body=bytes(1500))
    store.set_watermark(store.end)
    assert plan(store, 1) == plan(store)


def test_units_that_name_no_record_are_no_place_to_cut(make_store: Any) -> None:
    """Leftovers of a recovery, zeros, or a partial unit at the end of a queue file."""
    store = make_store()
    for _ in range(5):
        store.append()
    store.set_watermark(store.end)
    records = [record.physical_offset for record in store.records]
    with (store.path / "consumequeue" / "Topic" / "0" / f"{0:020}").open("ab") as queue:
        for offset, size in ((records[2] + 1, 100), (records[3], 1), (1 << 62, 100), (0, 0)):
            queue.write(struct.pack(">qiq", offset, size, 0))
        queue.write(b"part")
    (store.path / "consumequeue" / "stray file").write_text("")
    assert [r.start for r in plan(store, 1)] == records


def test_offsets_choose_the_ranges(small_store: Any) -> None:
    """Only those that overlap what is asked for."""
    ranges = plan(small_store, 1)
    middle = ranges[10]
    chosen = plan(small_store, 1, starting_offset=middle.start + 1, ending_offset=middle.end + 1)
    assert chosen == ranges[10:12]
    assert plan(small_store, 1, starting_offset=small_store.end) == []


def test_a_missing_file_is_damage(small_store: Any) -> None:
    """But not at the front, where retention deletes."""
    files = sorted((small_store.path / "commitlog").iterdir())
    files[0].rename(small_store.path / "aside")
    assert len(plan(small_store)) == len(files) - 1
    (small_store.path / "aside").rename(files[0])
    files[1].unlink()
    with pytest.raises(CorruptRecordError) as missing:
        plan(small_store)
    assert missing.value.physical_offset == int(files[1].name)
    assert str(files[2]) in str(missing.value)


def test_a_log_that_ends_before_its_watermark_is_damage(small_store: Any) -> None:
    """What was promised durable is gone."""
    last = max((small_store.path / "commitlog").iterdir())
    last.unlink()
    with pytest.raises(CorruptRecordError, match="before its durable watermark"):
        plan(small_store)


def test_files_behind_the_watermark_do_not_matter(small_store: Any) -> None:
    """Nor a file that is just being prepared and has no bytes yet."""
    (small_store.path / "commitlog" / f"{small_store.file_bytes * 9:020}").write_bytes(b"")
    assert plan(small_store)[-1].end == small_store.end


def test_without_a_watermark_the_log_ends_where_it_stops(make_store: Any) -> None:
    """As in a store of RocketMQ; a prepared file is no part of it, an abort file means torn."""
    store = make_store()
    for _ in range(10):
        store.append(body=bytes(1500))
    last_base = store.end // store.file_bytes * store.file_bytes
    (store.path / "commitlog" / f"{last_base + store.file_bytes:020}").write_bytes(
        bytes(store.file_bytes)
    )
    ranges = plan(store)
    assert [r.end_is for r in ranges] == [RangeEnd.EXACT] * (len(ranges) - 1) + [RangeEnd.ZEROS]
    assert ranges[-1].end == last_base + store.file_bytes
    (store.path / "abort").write_text("1")
    assert plan(store)[-1].end_is is RangeEnd.TORN
