"""The index files of a store: found, made, shortened, removed.

Not thread-safe: `IndexService` owns the locks.
"""

from __future__ import annotations

import errno
import logging
from contextlib import suppress
from pathlib import Path
from typing import Final, final

from commitbus.commitlog.clock import Clock
from commitbus.commitlog.errors import FlushFailedError, OutOfResourcesError, ReadFailedError
from commitbus.commitlog.file_system import FileSystem, read_at
from commitbus.commitlog.types import PhysicalOffset
from commitbus.indexfile.index_file import IndexFile
from commitbus.indexfile.index_format import (
    HEADER,
    HEADER_BYTES,
    IndexHeader,
    file_name,
    index_file_bytes,
    is_file_name,
)
from commitbus.indexfile.index_repair import slot_heads

_UNSYNCED_MAX: Final = 16
_CANNOT_OPEN: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)

_logger = logging.getLogger(__name__)


@final
class IndexFiles:
    """Every index file of a store.

    Attributes:
        directory: Where they lie.
        files: In the order of the log.
        unreadable: Why a file is left out, where nothing may be changed.
    """

    def __init__(
        self,
        directory: Path,
        slot_count: int,
        entry_count: int,
        *,
        clock: Clock,
        file_system: FileSystem,
        writable: bool,
    ) -> None:
        assert slot_count > 0
        assert entry_count > 1, "entry 0 is never used, so a file of one entry holds none"
        self.directory = directory
        self._slot_count, self._entry_count = slot_count, entry_count
        self._clock, self._file_system, self._writable = clock, file_system, writable
        self.files: list[IndexFile] = []
        self.unreadable: ReadFailedError | None = None
        self._are_names_durable = True

    def load(self) -> None:
        """Look at the files that are there.

        A file that the disk does not give back is removed, with those behind it: reput makes them
        anew. If nothing may be changed, it is left out.

        Raises:
            NotAStoreError: A file is not one of this many slots and entries.
            OSError: A file cannot be opened.
        """
        names = filter(is_file_name, self._file_system.list_names(self.directory))
        paths = [self.directory / name for name in names]
        for position, path in enumerate(paths):
            if not self._load_file(path) and self._writable:
                # A process died after creating the file, or a power cut took its header. Entries
                # of later files are of no use without those that were in it: reput begins here.
                for lost in reversed(paths[position:]):
                    self._file_system.remove(lost)
                break
        # Names are local times, which the end of summer time sets back; offsets never go back.
        self.files.sort(key=lambda file: file.header.end_physical_offset)

    def with_room(self) -> IndexFile:
        """Return the newest file, or a new one if that is full or there is none.

        Raises:
            DiskFullError: There is no room for it, or for the rest of the full one.
            OutOfResourcesError: The process may open no more files.
            FlushFailedError: The disk refuses something for another reason.
            OSError: It cannot be made, for another reason.
        """
        last = self.files[-1] if self.files else None
        if last is not None and not last.is_full:
            self.sync_names()
            return last
        if last is not None:
            # A kill must not leave the next file with entries and this one without its last.
            last.write()
            self._bound_descriptors()
        # The first file comes with the first key: a store without keys has no 420 MB index.
        self._file_system.make_directories(self.directory)
        newest = max((file.path.name for file in self.files), default="")
        new = IndexFile.create(
            self.directory / file_name(self._clock.now_ms(), newest),
            self._slot_count,
            self._entry_count,
            file_system=self._file_system,
            previous=None if last is None else last.header,
        )
        self.files.append(new)
        # Before it gets an entry: a power cut must not keep the next file and lose this one.
        self._are_names_durable = False
        self.sync_names()
        return new

    def sync_names(self) -> None:
        """Make the names of new files durable, and that those of removed ones are gone.

        Raises:
            FlushFailedError: The operating system could not.
            OutOfResourcesError: The process may open no more files: trying again is right.
        """
        if self._are_names_durable:
            return
        for directory in (self.directory, self.directory.parent):
            try:
                self._file_system.sync_directory(directory)
            except OSError as error:
                if error.errno in _CANNOT_OPEN:
                    raise OutOfResourcesError(directory, error) from error
                raise FlushFailedError(directory, error) from error
        self._are_names_durable = True

    def last_message(self) -> tuple[PhysicalOffset, int]:
        """Return the offset of the last message that has an entry, and how many it has.

        Unreadable files are removed.
        """
        while self.files:
            try:
                return self._last_message()
            except ReadFailedError as error:
                # If it is the file before the last one, that is the last one the next time.
                self.drop_from(len(self.files) - 1, error)
        return PhysicalOffset(0), 0

    def shorten(self, position: int, index_count: int) -> None:
        """Keep of the file at `position` the entries below `index_count`, remove later files.

        The last message that remains goes too, since its last entry may be half written and the
        header needs its timestamp: the next put brings it back.

        Raises:
            ReadFailedError: The disk does not give the entries back.
            FlushFailedError: The disk refuses what is written.
        """
        while len(self.files) > position + 1:
            self.remove(len(self.files) - 1)
        file = self.files[position]
        file.write()
        with file.reader() as reader:
            if index_count > 1:
                last = reader.entry(index_count - 1).physical_offset
                index_count = reader.first_index_at(last, index_count)
            if index_count > 1:
                file.cut(index_count, slot_heads(reader, index_count))
                return
        self.remove(position)

    def drop_from(self, position: int, error: ReadFailedError) -> None:
        """Remove the file at `position`, which the disk does not give back, and later ones."""
        _logger.warning("an index file is lost and made anew", extra={"reason": str(error)})
        while len(self.files) > position:
            self.remove(len(self.files) - 1)

    def remove(self, position: int) -> None:
        """Remove a file. Queries that are in it go on."""
        file = self.files.pop(position)
        file.close_unwritten()
        self._are_names_durable = False
        # It may have been removed already: that must not keep other files.
        with suppress(FileNotFoundError):
            self._file_system.remove(file.path)

    def _bound_descriptors(self) -> None:
        """Make full files durable if there are many that no flush has come to yet.

        They stay open until then: a failed write-back is reported to a descriptor that was open
        when it happened, for certain, and to later ones only perhaps.
        """
        unsynced = [file for file in self.files if file.is_full and file.is_open]
        for file in unsynced[:-_UNSYNCED_MAX]:
            file.sync()
            if file.is_written:
                file.release()

    def _load_file(self, path: Path) -> bool:
        """Look at a file; return False, leaving it alone, if it has no entry or is unreadable."""
        try:
            if self._was_never_used(path):
                return False
            file = IndexFile(
                path,
                self._slot_count,
                self._entry_count,
                file_system=self._file_system,
                writable=self._writable,
            )
        except ReadFailedError as error:
            _logger.warning("an index file is lost", extra={"reason": str(error)})
            self.unreadable = None if self._writable else error
            return False
        if file.is_empty:
            return False
        self.files.append(file)
        return True

    def _was_never_used(self, path: Path) -> bool:
        """Return whether a process died between creating the file and giving it its size."""
        file = self._file_system.open(path, writable=False)
        try:
            header = read_at(file, HEADER_BYTES, 0)
            is_short = file.size() < index_file_bytes(self._slot_count, self._entry_count)
            if len(header) < HEADER_BYTES or not is_short:
                return is_short
            return IndexHeader(*HEADER.unpack(header)).index_count <= 1
        finally:
            file.close()

    def _last_message(self) -> tuple[PhysicalOffset, int]:
        last, count = PhysicalOffset(self.files[-1].header.end_physical_offset), 0
        for file in reversed(self.files):
            with file.reader() as reader:
                first = reader.first_index_at(last)
            count += file.header.index_count - first
            if first > 1:
                break
        return last, count
