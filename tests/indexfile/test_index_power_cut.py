"""What a power cut may leave of an index, beyond pages that are missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from commitbus.commitlog.clock import SystemClock
from commitbus.commitlog.errors import NotAStoreError
from commitbus.commitlog.file_system import RealFileSystem
from commitbus.commitlog.types import DispatchRequest, PhysicalOffset, QueueOffset
from commitbus.indexfile import IndexService
from commitbus.indexfile.index_format import HEADER_BYTES

START_MS = 1_700_000_000_000
END_OF_TIME = 2**62


def message(number: int) -> DispatchRequest:
    """The number-th message of a log, all stored in the same millisecond."""
    return DispatchRequest(
        physical_offset=PhysicalOffset(number * 100),
        size_bytes=100,
        topic="T",
        queue_id=0,
        queue_offset=QueueOffset(number),
        tags_code=0,
        store_timestamp=START_MS,
        sys_flag=0,
        unique_key=f"U{number}",
        keys="",
        tags="",
    )


def open_service(directory: Path) -> IndexService:
    """A loaded index of 49 entries a file."""
    service = IndexService(
        directory,
        slot_count=10,
        entry_count=50,
        clock=SystemClock(),
        file_system=RealFileSystem(),
    )
    service.load()
    return service


def test_of_files_that_end_at_the_trusted_time_only_the_first_was_flushed(tmp_path: Path) -> None:
    """While a clock that was set back catches up, every message has the same store timestamp."""
    service = open_service(tmp_path)
    requests = [message(number) for number in range(200)]
    service.put(requests[:60])
    service.flush()
    trusted, flushed = service.last_full_timestamp, len(service.paths()) - 1
    service.put(requests[60:])
    paths = service.paths()
    assert (trusted, flushed < len(paths) - 2) == (START_MS, True)
    service.close()
    # What a power cut left of the first file behind: its header, and zeros for its last entries.
    with paths[flushed].open("r+b") as file:
        file.seek(-100, 2)
        file.write(bytes(100))
    service = open_service(tmp_path)
    service.discard_after(trusted)
    service.put(requests)
    assert all(service.query("T", f"U{n}", 0, END_OF_TIME, 9) for n in range(200))
    service.close()


@pytest.mark.parametrize("entries", [0, 7])
def test_a_file_without_its_size_and_entries_was_never_used(tmp_path: Path, entries: int) -> None:
    """A process that dies between the header and the room for entries leaves 40 bytes."""
    service = open_service(tmp_path)
    service.put([message(0)])
    (path,) = service.paths()
    service.close()
    header = bytearray(path.read_bytes()[:HEADER_BYTES])
    header[36:40] = entries.to_bytes(4, "big")
    path.write_bytes(header)
    if entries:
        with pytest.raises(NotAStoreError, match="40 bytes"):
            open_service(tmp_path)
    else:
        service = open_service(tmp_path)
        assert service.paths() == []
        service.close()
