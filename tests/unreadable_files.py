"""A file system on a disk with bad blocks: reads of them fail, as a real one's do."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

from commitbus.commitlog.file_system import RealFileSystem

PAGE_BYTES = 4096


class UnreadableFileSystem:
    """A real file system that some pages of files cannot be read from."""

    def __init__(self) -> None:
        self._real = RealFileSystem()
        self.bad_pages: dict[Path, set[int]] = {}
        """Numbers of pages, by path."""
        self.mapped: list[Path] = []
        """Mapped files: in these an unreadable page would end the process."""

    def spoil(self, path: Path, position: int, length: int = 1) -> None:
        """Make the pages unreadable that hold these bytes."""
        pages = range(position // PAGE_BYTES, (position + length - 1) // PAGE_BYTES + 1)
        self.bad_pages.setdefault(path, set()).update(pages)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def open(self, path: Path, **options: Any) -> Any:
        return _UnreadableFile(self._real.open(path, **options), self)


class _UnreadableFile:
    def __init__(self, real: Any, owner: UnreadableFileSystem) -> None:
        self._real, self._owner = real, owner
        self.path: Path = real.path

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def pread(self, length: int, position: int) -> bytes:
        end = min(position + length, self._real.size())
        pages = range(position // PAGE_BYTES, -(-end // PAGE_BYTES))
        if not self._owner.bad_pages.get(self.path, set()).isdisjoint(pages):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        data: bytes = self._real.pread(length, position)
        return data

    def pread_cached(self, length: int, position: int) -> bytes | None:
        return self.pread(length, position)

    def map(self, length: int) -> Any:
        self._owner.mapped.append(self.path)
        return self._real.map(length)
