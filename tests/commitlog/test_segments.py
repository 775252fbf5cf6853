"""A log whose bytes are elsewhere: the reader is the same, and says when it would have to wait."""

from __future__ import annotations

from typing import final

import pytest

from commitbus.commitlog.errors import OffsetOutOfRangeError, ReadFailedError
from commitbus.commitlog.log_reader import LogReader
from commitbus.commitlog.types import Host, PhysicalOffset
from tests.records import encode_record

FILE = 1024
HOST = Host.parse("127.0.0.1", 1)


@final
class RemoteSegment:
    """A file in an object store: fetched by the first read that may wait, and kept."""

    def __init__(self, base_offset: int, stored: bytes) -> None:
        self.base_offset, self.size_bytes = base_offset, FILE
        self._stored, self._fetched = stored, False

    def read(self, position: int, length: int) -> bytes:
        self._fetched = True
        return self._stored[position : position + length]

    def read_up_to(self, position: int, length: int) -> tuple[bytes, ReadFailedError | None]:
        return self.read(position, length), None

    def read_cached(self, position: int, length: int) -> bytes | None:
        return self.read(position, length) if self._fetched else None


@final
class ObjectStore:
    """A source of segments."""

    file_size, min_offset = FILE, FILE

    def __init__(self, *segments: RemoteSegment) -> None:
        self._segments = {segment.base_offset: segment for segment in segments}

    def find(self, offset: int) -> RemoteSegment | None:
        return self._segments.get(offset - offset % FILE)


def test_a_reader_takes_segments_from_anywhere() -> None:
    """At once if it is known that they are here, else where it may wait."""
    record = encode_record(
        topic="T", body=b"far away", properties=b"", queue_id=0, queue_offset=7,
        physical_offset=FILE, born_timestamp=1, born_host=HOST, store_timestamp=2, store_host=HOST,
    )  # fmt: skip
    store = ObjectStore(RemoteSegment(FILE, record.ljust(FILE, b"\0")))
    log, at = LogReader(store, FILE + len(record)), PhysicalOffset(FILE)
    assert log.min_offset == FILE
    assert log.read_cached(at, len(record)) is None
    assert log.read_bytes(at, len(record)) == log.read_cached(at, len(record)) == record
    assert log.read(at).body == b"far away"
    with pytest.raises(OffsetOutOfRangeError):
        log.read_bytes(PhysicalOffset(0), 1)
