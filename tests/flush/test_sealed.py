"""Manifests of sealed log files."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitbus.commitlog.clock import SystemClock
from commitbus.commitlog.commit_log import CommitLog
from commitbus.commitlog.errors import CorruptRecordError
from commitbus.commitlog.file_system import RealFileSystem
from commitbus.commitlog.types import Host, OutgoingMessage
from commitbus.flush.sealed import (
    BOUNDARY_BYTES,
    SEALED_PATH,
    Boundary,
    ManifestError,
    SealedSegment,
    SealedSegments,
    SegmentSummary,
    base_offset_of,
    decode_manifest,
    describe,
    manifest_path,
    read_manifest,
)

FILES = RealFileSystem()
FILE = 4 << 20
HOST = Host.parse("127.0.0.1", 1)
SEGMENT = SealedSegment(
    base_offset=0,
    end_offset=FILE,
    records_end=FILE - 100,
    record_count=3,
    min_store_timestamp=5,
    max_store_timestamp=9,
    topics={"A": 1, "b": 2},
    crc32=0x00C0FFEE,
    boundaries=(Boundary(0, 5), Boundary(BOUNDARY_BYTES, 9)),
)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[CommitLog]:
    """A log whose first file is full and holds messages of 100 KB of two topics."""
    log = CommitLog(
        tmp_path / "commitlog",
        FILE,
        store_host=HOST,
        max_body_bytes=1 << 20,
        clock=SystemClock(),
        file_system=FILES,
    )
    while log.end_offset <= FILE:
        for topic in ("A", "B"):
            log.append(OutgoingMessage(topic, 0, bytes(100_000), b"", 1, HOST))
    log.flush()
    yield log
    log.close()


def test_a_file_is_described_by_its_records(log: CommitLog) -> None:
    """The description agrees with what the log says of each record, and with the bytes."""
    file = log.files.files[0]
    segment = describe(file, FILES, lambda: True)
    assert segment is not None
    requests, _ = log.dispatch_requests(log.min_offset, log.end_offset, 1000)
    inside = [request for request in requests if request.physical_offset < FILE]
    assert (segment.base_offset, segment.end_offset) == (0, FILE)
    assert segment.records_end == inside[-1].end_offset
    assert segment.record_count == len(inside) == sum(segment.topics.values())
    assert set(segment.topics) == {"A", "B"}
    assert segment.min_store_timestamp == inside[0].store_timestamp
    assert segment.max_store_timestamp == inside[-1].store_timestamp
    assert segment.crc32 == zlib.crc32(file.path.read_bytes())
    offsets = [request.physical_offset for request in inside]
    firsts = [min(o for o in offsets if o >= mark) for mark in range(0, FILE, BOUNDARY_BYTES)]
    assert [boundary.physical_offset for boundary in segment.boundaries] == firsts


def test_describing_can_be_ended_early(log: CommitLog) -> None:
    """Closing a store does not wait for a gigabyte to be read."""
    asked = iter([True, False])
    assert describe(log.files.files[0], FILES, lambda: next(asked)) is None
    assert list(asked) == []


def test_a_damaged_or_unfinished_file_is_not_described(log: CommitLog) -> None:
    """A manifest vouches for the file."""
    with pytest.raises(CorruptRecordError, match="nothing was written"):
        describe(log.files.files[1], FILES, lambda: True)
    damaged = log.files.files[0]
    damaged.write(200_000, bytes([damaged.read(200_000, 1)[0] ^ 1]))
    with pytest.raises(CorruptRecordError, match="checksum"):
        describe(log.files.files[0], FILES, lambda: True)


@given(st.lists(st.tuples(st.integers(1, BOUNDARY_BYTES * 2), st.integers(0, 50)), max_size=30))
def test_boundaries_bound_what_lies_between_them(records: list[tuple[int, int]]) -> None:
    """Each is the first record at or behind a MiB, with the oldest time up to the next one."""
    summary, position = SegmentSummary(0), 0
    placed = []
    for size, timestamp in records:
        placed.append((position, timestamp))
        summary.add(position, "T", timestamp)
        position += size
    segment = summary.finish(size_bytes=position, records_end=position, checksum=0)
    starts = [boundary.physical_offset for boundary in segment.boundaries]
    marks = {p // BOUNDARY_BYTES for p, _ in placed}
    assert starts == sorted({min(p for p, _ in placed if p // BOUNDARY_BYTES == m) for m in marks})
    for boundary, end in zip(segment.boundaries, [*starts, position][1:], strict=False):
        times = [t for p, t in placed if boundary.physical_offset <= p < end]
        assert boundary.min_store_timestamp == min(times)
    times = [timestamp for _, timestamp in placed]
    expected = (min(times), max(times)) if times else (0, 0)
    assert (segment.min_store_timestamp, segment.max_store_timestamp) == expected


def test_a_manifest_is_read_as_it_was_written(tmp_path: Path) -> None:
    """And there is nothing beside it."""
    (tmp_path / "commitbus").mkdir()
    sealed = SealedSegments(tmp_path, FILES)
    assert sealed.max_store_timestamp(0) is None
    sealed.write(SEGMENT)
    assert sealed.max_store_timestamp(0) == 9
    assert read_manifest(tmp_path, 0, FILES) == SEGMENT
    assert [path.name for path in (tmp_path / "commitbus" / "sealed").iterdir()] == [
        f"{0:020}.json"
    ]
    document = json.loads(manifest_path(tmp_path, 0).read_bytes())
    assert document["crc32"] == "00c0ffee"
    assert document["boundaries"] == [[0, 5], [BOUNDARY_BYTES, 9]]


def test_loading_keeps_what_belongs_to_the_log_and_removes_the_rest(tmp_path: Path) -> None:
    """A half-written one, one of a deleted file, one of another size, one that is damaged."""
    sealed = SealedSegments(tmp_path, FILES)
    (tmp_path / "commitbus").mkdir()
    for base_offset in (0, FILE, 2 * FILE, 3 * FILE):
        end_offset = base_offset + (FILE if base_offset != FILE else 7)
        sealed.write(decode_manifest(_changed(base_offset=base_offset, end_offset=end_offset)))
    manifest_path(tmp_path, 2 * FILE).write_bytes(b"{")
    manifest_path(tmp_path, 0).with_suffix(".json.tmp").write_bytes(b"half")
    (tmp_path / "commitbus" / "sealed" / "note").write_bytes(b"of the operator")
    loaded = SealedSegments(tmp_path, FILES)
    loaded.load(FILE, frozenset({0, FILE, 2 * FILE}))
    assert [loaded.max_store_timestamp(base) for base in (0, FILE, 2 * FILE, 3 * FILE)] == [
        9,
        None,
        None,
        None,
    ]
    names = sorted(path.name for path in (tmp_path / "commitbus" / "sealed").iterdir())
    assert names == [f"{0:020}.json", "note"]


def test_manifests_of_deleted_files_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those below the log's new beginning, durably: a log file goes after its manifest."""
    synced: list[Path] = []
    monkeypatch.setattr(RealFileSystem, "sync_directory", lambda _, path: synced.append(path))
    (tmp_path / "commitbus").mkdir()
    sealed = SealedSegments(tmp_path, FILES)
    for base_offset in (0, FILE):
        sealed.write(
            decode_manifest(_changed(base_offset=base_offset, end_offset=base_offset + FILE))
        )
    synced.clear()
    sealed.delete_before(FILE)
    assert synced == [tmp_path / SEALED_PATH]
    assert read_manifest(tmp_path, 0, FILES) is None
    assert sealed.max_store_timestamp(0) is None
    assert sealed.max_store_timestamp(FILE) == 9


def _changed(**changes: object) -> bytes:
    return json.dumps(json.loads(SEGMENT.encode()) | changes).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b"[" * 100_000,
        SEGMENT.encode()[:-10],
        _changed(format=2),
        _changed(crc32="xyz"),
        _changed(crc32=5),
        _changed(boundaries=[[1]]),
        _changed(boundaries=[["0", 1]]),
        _changed(topics=["A"]),
        _changed(topics={"A": 1.5}),
        _changed(base_offset="0"),
        _changed(record_count=True),
        _changed(another=1),
    ],
)
def test_what_is_no_manifest_is_refused(data: bytes) -> None:
    """In words, whatever the bytes are."""
    with pytest.raises(ManifestError):
        decode_manifest(data)


def test_a_manifest_under_another_name_does_not_count(tmp_path: Path) -> None:
    """It tells of another file."""
    (tmp_path / "commitbus").mkdir()
    SealedSegments(tmp_path, FILES).write(SEGMENT)
    manifest_path(tmp_path, 0).rename(manifest_path(tmp_path, FILE))
    assert read_manifest(tmp_path, FILE, FILES) is None


@pytest.mark.parametrize("name", ["0.json", f"{0:020}", f"{0:020}.json.tmp", f"{0:021}.json"])
def test_other_names_are_not_those_of_manifests(name: str) -> None:
    """Twenty digits and .json."""
    assert base_offset_of(name) is None
    assert base_offset_of(f"{FILE:020}.json") == FILE
