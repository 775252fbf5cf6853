"""Consecutive files of one size that together hold one long run of bytes.

Offsets count from the first byte ever written; the first file may begin beyond 0 once old ones
were deleted. What this file must not know: what the bytes mean, and where they end.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from pathlib import Path
from typing import Final, final

from commitbus.commitlog.errors import (
    FlushFailedError,
    NotAStoreError,
    OutOfResourcesError,
    StoreDamagedError,
)
from commitbus.commitlog.file_system import FileSystem, data_chunks
from commitbus.commitlog.mapped_file import (
    FILE_NAME_DIGITS,
    FilePolicy,
    MappedFile,
    file_name,
)

_WRITE_AGAIN_BYTES: Final = 1 << 20


def list_files(directory: Path, file_system: FileSystem) -> list[Path]:
    """Return the files of a directory whose names are all base offsets, in order.

    Directories (lost+found of a file system of its own) are passed over, as RocketMQ does.

    Raises:
        NotAStoreError: A file has another name.
    """
    paths: list[Path] = []
    for name in file_system.list_names(directory):
        path = directory / name
        if len(name) == FILE_NAME_DIGITS and name.isascii() and name.isdecimal():
            paths.append(path)
        elif not file_system.is_directory(path):
            raise NotAStoreError(
                directory, f"{name!r} in it is not named by {FILE_NAME_DIGITS} digits"
            )
    return paths


def detect_file_size(directory: Path, file_system: FileSystem) -> int | None:
    """Return the size in bytes of the first file, None when there is none.

    For tools that open a directory without its configuration. NotAStoreError as `list_files`.
    """
    for path in list_files(directory, file_system):
        if size := _size_of(path, file_system):
            return size
    return None


def _size_of(path: Path, file_system: FileSystem) -> int:
    file = file_system.open(path, writable=False)
    try:
        return file.size()
    finally:
        file.close()


def _is_zero(path: Path, file_system: FileSystem) -> bool:
    file = file_system.open(path, writable=False)
    try:
        return next(data_chunks(file, 0, file.size()), None) is None
    finally:
        file.close()


@final
class MappedFileQueue:
    """The files of one directory.

    One thread at a time writes and creates; others may read, flush and delete old files meanwhile:
    `files` is replaced, never changed.
    """

    __slots__ = (
        "_directory_dirty",
        "_is_deleted",
        "_is_removal_durable",
        "_lock",
        "directory",
        "file_size",
        "file_system",
        "files",
        "policy",
    )

    def __init__(
        self,
        directory: Path,
        file_size: int,
        *,
        file_system: FileSystem,
        policy: FilePolicy,
    ) -> None:
        """Name the directory; nothing is touched before `load` or the first new file."""
        assert file_size > 0, "a file must hold something"
        self.directory = directory
        self.file_size: Final = file_size
        self.policy = policy
        self.files: tuple[MappedFile, ...] = ()
        self.file_system = file_system
        self._directory_dirty = False
        self._is_deleted = False
        self._is_removal_durable = True
        self._lock = policy.threads.lock()

    def load(self) -> None:
        """Open every file of the directory.

        Last files that are short and all zero are creations that were interrupted, or whose size a
        power cut took: they are removed (passed over when not writable).

        Raises:
            NotAStoreError: A file has an alien name or another size.
            StoreDamagedError: A file between two others is missing.
            FlushFailedError: The last file could not be made durable.
        """
        sizes = {
            path: _size_of(path, self.file_system)
            for path in list_files(self.directory, self.file_system)
        }
        while sizes and self._is_unfinished(*(last := list(sizes.items())[-1])):
            del sizes[last[0]]
            if self.policy.writable:
                self.file_system.remove(last[0])
        self._check(sizes)
        self.files = tuple(
            MappedFile(path, self.file_size, file_system=self.file_system, policy=self.policy)
            for path in sizes
        )
        if self.policy.writable and self.files:
            # A process may have died between making a file and syncing its name and size.
            self._directory_dirty = True
            if not self.policy.grow:
                self.files[-1].flush()

    def _is_unfinished(self, path: Path, size: int) -> bool:
        return size < self.file_size and _is_zero(path, self.file_system)

    def _check(self, sizes: Mapping[Path, int]) -> None:
        """Compare names and sizes with what they must be, before anything is mapped."""
        expected = int(next(iter(sizes)).name) if sizes else 0
        for path, size in sizes.items():
            if size != self.file_size:
                raise NotAStoreError(
                    self.directory,
                    f"{path.name} has {size} bytes where {self.file_size} are configured",
                )
            if int(path.name) != expected:
                raise StoreDamagedError(
                    self.directory, expected, f"{file_name(expected)} before {path.name} is missing"
                )
            expected += self.file_size

    def names_mark(self) -> int:
        """Return a number that changes with the names in the directory. FileNotFoundError."""
        return self.file_system.names_mark(self.directory)

    @property
    def min_offset(self) -> int:
        """Offset of the first byte that is there; 0 when there is no file."""
        files = self.files
        return files[0].base_offset if files else 0

    @property
    def end_of_files(self) -> int:
        """Offset behind the last file: all bytes that are or could be written lie below it."""
        files = self.files
        return files[-1].base_offset + self.file_size if files else 0

    def find(self, offset: int) -> MappedFile | None:
        """Return the file that holds the byte at `offset`, None when there is none."""
        files = self.files
        if not files or offset < files[0].base_offset:
            return None
        index = (offset - files[0].base_offset) // self.file_size
        return files[index] if index < len(files) else None

    def new_file(self, base_offset: int) -> MappedFile:
        """Create a file without adding it to `files` yet: that is `add`. Safe on any thread.

        Unless the policy lets files grow, its size and name are durable: a power cut may keep the
        next file, but never that alone.

        Raises:
            DiskFullError: There is no room. Nothing is left behind.
            FlushFailedError: It could not be made durable. Likewise; nothing was in it.
            OutOfResourcesError: The process may open no more files. Likewise.
        """
        assert base_offset % self.file_size == 0, "base offsets are multiples of the file size"
        self._is_deleted = False
        if not self.file_system.exists(self.directory):
            self.file_system.make_directories(self.directory)
        file = MappedFile.create(
            self.directory / file_name(base_offset),
            self.file_size,
            file_system=self.file_system,
            policy=self.policy,
        )
        self._directory_dirty = True
        if not self.policy.grow:
            try:
                file.flush()
                self._sync_names()
            except (FlushFailedError, OutOfResourcesError):
                file.delete()
                self._directory_dirty = True
                raise
        return file

    def add(self, file: MappedFile) -> None:
        """Append a file that `new_file` made, which must follow the last."""
        with self._lock:
            assert not self.files or file.base_offset == self.end_of_files, "files leave no gap"
            self.files = (*self.files, file)

    def file_for_append(self, offset: int) -> MappedFile:
        """Return the file in which a write at `offset` goes, created where it is missing.

        Without any file the first one is that which holds `offset`. With files, `offset` lies in
        one of them or right behind the last. DiskFullError, FlushFailedError.
        """
        file = self.find(offset)
        if file is None:
            assert not self.files or offset == self.end_of_files, "appends leave no gap"
            if self.files and self.policy.grow:
                # A power cut must not keep the new file and lose the one before it.
                self.files[-1].flush()
                self._sync_names()
            file = self.new_file(offset - offset % self.file_size)
            self.add(file)
        return file

    def flush(self, start: int, end: int) -> None:
        """Make the bytes in [start, end) durable, and the names of new files.

        Raises:
            FlushFailedError: It failed. Never try again.
            OutOfResourcesError: The process may open no more files. Trying again is right.
        """
        self._sync_names()
        for file in self.files:
            file_end = file.base_offset + self.file_size
            if file.base_offset < end and start < file_end:
                file.flush()
                file.must_stay_open &= end < file_end

    def write_again(self, start: int, end: int) -> None:
        """Make the bytes in [start, end) durable even if the last writer's fsync failed.

        The kernel may have marked pages clean that never reached the disk, and a sync would pass
        them over and report success. Writing what is there makes them dirty again.

        Raises:
            FlushFailedError: The disk still does not take them.
            ReadFailedError: It does not give them back.
        """
        for file in self.files:
            last = min(end - file.base_offset, file.size_bytes)
            for position in range(max(start - file.base_offset, 0), last, _WRITE_AGAIN_BYTES):
                length = min(_WRITE_AGAIN_BYTES, last - position)
                file.write(position, file.read(position, length))
        self.flush(start, end)

    def _sync_names(self) -> None:
        """Make the names of new files durable, and that those of deleted ones are gone."""
        if self._directory_dirty:
            # Cleared first: a file that is created meanwhile sets it again.
            self._directory_dirty = False
            try:
                self.file_system.sync_directory(self.directory)
            except OSError as error:
                if self._is_deleted and isinstance(error, FileNotFoundError):
                    return  # The names went with the directory, as they were meant to.
                self._directory_dirty = True
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    raise OutOfResourcesError(self.directory, error) from error
                raise FlushFailedError(self.directory, error) from error

    def truncate(self, end: int) -> bool:
        """Zero every byte at and behind `end`, removing files that begin behind it.

        The file that begins at `end` stays, empty, for the next append. Returns whether there was
        anything to remove or to zero.
        """
        with self._lock:
            kept = tuple(file for file in self.files if file.base_offset <= end)
            dropped = self.files[len(kept) :]
            self.files = kept
        # From the last to the first, each durably: a crash in between must not leave a gap.
        for file in reversed(dropped):
            file.delete()
            self._directory_dirty = True
            self._sync_names()
        changed = bool(dropped)
        if kept and end < kept[-1].base_offset + self.file_size:
            changed |= kept[-1].zero_from(end - kept[-1].base_offset)
        return changed

    def delete_before(self, offset: int) -> int:
        """Remove the files that end at or before `offset`; return how many.

        The last file always stays: it tells where the next byte goes.

        Raises:
            OSError: One could not be removed, durably. The next call goes on with it.
        """
        count = 0
        while (file := self._first_before(offset)) is not None:
            # One by one, durably, also after an error: a power cut that brought an older file back
            # alone would leave a gap.
            self._sync_removal()
            with self._lock:
                self.files = self.files[1:]
            try:
                file.delete()
            except BaseException:
                with self._lock:
                    self.files = (file, *self.files)
                raise
            self._is_removal_durable = False
            self._sync_removal()
            count += 1
        return count

    def _sync_removal(self) -> None:
        if not self._is_removal_durable:
            self.file_system.sync_directory(self.directory)
            self._is_removal_durable = True

    def _first_before(self, offset: int) -> MappedFile | None:
        files = self.files
        ends_before = len(files) > 1 and files[0].base_offset + self.file_size <= offset
        return files[0] if ends_before else None

    def delete(self) -> None:
        """Remove all files, and the directory if nothing else is in it.

        Raises:
            OSError: One could not be removed. The next call goes on with it.
            FlushFailedError: That one is gone could not be made durable. Never try again.
            OutOfResourcesError: The process may open no more files. The next call goes on.
        """
        # First: a concurrent flush finds names missing, and must not take that for a failure.
        self._is_deleted = True
        with self._lock:
            files, self.files = self.files, ()
        left = list(files)
        try:
            while left:
                # From the last to the first, each durably, also after an error: no gap.
                if not self._is_removal_durable:
                    self._directory_dirty = True
                    self._sync_names()
                    self._is_removal_durable = True
                left[-1].delete()
                left.pop()
                self._is_removal_durable = False
        except BaseException:
            with self._lock:
                self.files = tuple(left)
            raise
        if self.file_system.exists(self.directory) and not self.file_system.list_names(
            self.directory
        ):
            self.file_system.remove(self.directory)

    def close(self) -> None:
        """Close all files. Does not flush. Reads that are under way end well."""
        with self._lock:
            files, self.files = self.files, ()
        for file in files:
            file.close()
