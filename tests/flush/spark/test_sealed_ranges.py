"""Where the file of a manifest is cut: at its boundaries, without a look at the consume queues."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from commitbus.commitlog.clock import SystemClock
from commitbus.commitlog.commit_log import CommitLog
from commitbus.commitlog.file_system import RealFileSystem
from commitbus.commitlog.types import Host, OutgoingMessage
from commitbus.flush.sealed import Boundary, SealedSegment, SealedSegments, describe
from commitbus.flush.spark.log_ranges import plan_ranges
from commitbus.flush.watermark_file import WatermarkFile

FILES = RealFileSystem()
FILE = 4 << 20
HOST = Host.parse("127.0.0.1", 1)


@pytest.fixture
def sealed(tmp_path: Path) -> Iterator[SealedSegment]:
    """A store without queues: a full log file, which has a manifest, and a begun one."""
    log = CommitLog(
        tmp_path / "commitlog",
        FILE,
        store_host=HOST,
        max_body_bytes=1 << 20,
        clock=SystemClock(),
        file_system=FILES,
    )
    while log.end_offset <= FILE:
        log.append(OutgoingMessage("A", 0, bytes(50_000), b"", 1, HOST))
    log.flush()
    watermark = WatermarkFile(tmp_path, FILES)
    watermark.publish(log.flushed_where)
    watermark.close()
    segment = describe(log.files.files[0], FILES, lambda: True)
    assert segment is not None
    SealedSegments(tmp_path, FILES).write(segment)
    yield segment
    log.close()


def starts(store: Path) -> list[int]:
    """Where the ranges of about a MiB begin."""
    return [part.start for part in plan_ranges(store, FILES, split_bytes=1 << 20)]


def test_ranges_begin_at_boundaries(sealed: SealedSegment, tmp_path: Path) -> None:
    """The file without a manifest, and here without queues, stays one range."""
    boundaries = [boundary.physical_offset for boundary in sealed.boundaries]
    assert len(boundaries) == 4
    assert starts(tmp_path) == [*boundaries, FILE]


def test_a_boundary_where_no_record_is_does_not_count(
    sealed: SealedSegment, tmp_path: Path
) -> None:
    """A manifest that lies costs cuts, not messages."""
    wrong = (sealed.boundaries[0], Boundary((1 << 20) + 1, 0), *sealed.boundaries[2:])
    SealedSegments(tmp_path, FILES).write(replace(sealed, boundaries=wrong))
    kept = [b.physical_offset for n, b in enumerate(sealed.boundaries) if n != 1]
    assert starts(tmp_path) == [*kept, FILE]
