"""Segments of the log as readers see them, wherever their bytes are.

The log's own files are segments. A source of others, for instance of those that an object store
keeps, can stand behind the same reader. A read says whether it may wait: `read_cached` answers at
once or with None, by what is known to be in memory; `read` waits for a disk or a network, and
belongs into a worker thread.
"""

from __future__ import annotations

from typing import Protocol

from commitbus.commitlog.errors import ReadFailedError


class Segment(Protocol):
    """A run of the log's bytes that does not change below the log's end. Any thread may read it.

    Whoever has found a segment may finish reading it after it was closed or deleted, or gets an
    error that says so.
    """

    @property
    def base_offset(self) -> int:
        """Physical offset of its first byte."""

    @property
    def size_bytes(self) -> int:
        """Its length, that of a whole file also while that is being filled."""

    def read(self, position: int, length: int) -> bytes:
        """Return bytes from a position in the segment on. May wait.

        Raises:
            ReadFailedError: They cannot be had.
            OffsetOutOfRangeError: The segment was deleted since it was found.
            StoreClosedError: The log was closed.
            OutOfResourcesError: The process may open no more files.
        """

    def read_up_to(self, position: int, length: int) -> tuple[bytes, ReadFailedError | None]:
        """Return as `read` what lies before the first byte that cannot be had, and its error."""

    def read_cached(self, position: int, length: int) -> bytes | None:
        """Return as `read` if nothing has to be waited for, else None. Raises as `read`."""


class SegmentSource(Protocol):
    """Finds the segment of an offset. Any thread may ask; nothing is waited for."""

    @property
    def file_size(self) -> int:
        """Bytes of each segment."""

    @property
    def min_offset(self) -> int:
        """First physical offset that can be read; 0 without a segment."""

    def find(self, offset: int) -> Segment | None:
        """Return the segment that holds the byte at an offset, None if there is none."""
