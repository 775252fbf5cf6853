"""Parts of a store's files that the disk does not give back, as a real bad block behaves."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any, final

import pytest

from commitbus.commitlog import file_system


@final
class BadBlocks:
    """Reads of them wait for the disk, and fail."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._bad: list[tuple[str, int, int]] = []
        pread, pread_cached = file_system._RealFile.pread, file_system._RealFile.pread_cached

        def read(file: Any, length: int, position: int) -> bytes:
            if self._has(file.path, length, position):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return pread(file, length, position)

        def read_cached(file: Any, length: int, position: int) -> bytes | None:
            if self._has(file.path, length, position):
                return None
            return pread_cached(file, length, position)

        patch.setattr(file_system._RealFile, "pread", read)
        patch.setattr(file_system._RealFile, "pread_cached", read_cached)

    def _has(self, path: Path, length: int, position: int) -> bool:
        return any(
            part in str(path) and position < end and start < position + length
            for part, start, end in self._bad
        )

    def add(self, part: str, start: int, end: int) -> None:
        """Make bytes of the files with `part` in their path unreadable."""
        self._bad.append((part, start, end))

    def add_record(self, store: Any, topic: str, queue_offset: int) -> None:
        """Make the record of a message in queue 0 unreadable, in a log of one file."""
        (unit,) = store.fetch(topic, 0, queue_offset, 1).units
        self.add("/commitlog/", unit.physical_offset, unit.physical_offset + unit.size_bytes)

    def add_unit(self, topic: str, queue_offset: int) -> None:
        """Make the unit of a message in queue 0 unreadable."""
        start = queue_offset * 20
        self.add(f"/consumequeue/{topic}/0/", start, start + 20)

    def repair(self) -> None:
        """Make everything readable."""
        self._bad.clear()
