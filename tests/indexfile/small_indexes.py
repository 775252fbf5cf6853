"""Indexes so small that a few hundred messages fill several files, and messages to fill them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from commitbus.commitlog.file_system import RealFileSystem
from commitbus.commitlog.types import DispatchRequest, PhysicalOffset, QueueOffset
from commitbus.indexfile import IndexService

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
