"""Which log files are full and durable, and have a manifest that says so."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import final

from commitbus.commitlog.clock import Clock
from commitbus.commitlog.commit_log import CommitLog
from commitbus.commitlog.errors import CorruptRecordError, StoreError
from commitbus.commitlog.file_system import FileSystem
from commitbus.commitlog.mapped_file import MappedFile
from commitbus.commitlog.types import PhysicalOffset
from commitbus.flush.sealed import SealedSegment, SealedSegments, describe, read_manifest
from commitbus.flush.watermark import Watermark

_logger = logging.getLogger(__name__)


@final
class Sealing:
    """Seals a log's files. One thread at a time, but for `looked_to` and `next_unsealed`."""

    def __init__(
        self,
        store: Path,
        log: CommitLog,
        durable: Watermark,
        clock: Clock,
        file_system: FileSystem,
    ) -> None:
        self._store, self._log, self._durable = store, log, durable
        self._clock, self._file_system = clock, file_system
        self._sealed = SealedSegments(store, file_system)
        self._is_loaded = False
        # Recovery may have cut into a file that was sealed: its manifest is void.
        self._full_at_start = frozenset(
            file.base_offset
            for file in log.local_files
            if file.base_offset + file.size_bytes <= durable.offset
        )
        self._unsealable: set[int] = set()
        self.looked_to = 0
        """Physical offset up to which files were taken up."""
        # The file that is written, and when on the monotonic clock a record was first seen in it.
        self._begun: tuple[int, float] | None = None

    def forget_lost(self) -> None:
        """Forget the manifests that somebody removed: their files are sealed again."""
        self._load()
        self._sealed.forget_lost()

    def next_unsealed(self) -> PhysicalOffset | None:
        """Return where the oldest file begins that is full and durable and has no manifest."""
        durable = self._durable.offset
        for file in self._log.local_files:
            end = file.base_offset + file.size_bytes
            if end > durable:
                break
            # Noted before the attempt: if that fails, the next round is soon enough.
            self.looked_to = end
            is_sealed = self._sealed.max_store_timestamp(file.base_offset) is not None
            if not is_sealed and file.base_offset not in self._unsealable:
                return PhysicalOffset(file.base_offset)
        return None

    def seal(self, base_offset: PhysicalOffset, go_on: Callable[[], bool]) -> SealedSegment | None:
        """Write the manifest of a full, durable file, and return it.

        None if the file is gone or damaged, or `go_on`, called in between, has said no.

        Raises:
            OSError: The manifest could not be written.
        """
        self._load()
        if self._sealed.max_store_timestamp(base_offset) is not None:
            return read_manifest(self._store, base_offset, self._file_system)
        begins = (file for file in self._log.local_files if file.base_offset == base_offset)
        if (file := next(begins, None)) is None:
            return None
        try:
            segment = describe(file, self._file_system, go_on)
        except CorruptRecordError as error:
            self._unsealable.add(base_offset)
            _logger.exception("a full log file is damaged", extra={"reason": str(error)})
            return None
        if segment is not None:
            self._sealed.write(segment)
        return segment

    def delete_before(self, offset: PhysicalOffset) -> None:
        """Remove the manifests of files below an offset."""
        self._sealed.delete_before(offset)

    def age_of_last_ms(self) -> float | None:
        """Return the age of the file that is written, None while nothing of it can be told.

        It is what its first record says, or the time since that was first seen if the clock was set
        back meanwhile: a file that is ended too early does no harm, one that never is does.
        """
        files = self._log.local_files
        if not files:
            return None
        stored_at = self._first_store_timestamp(files[-1])
        if stored_at is None:
            return None
        now_s = self._clock.monotonic_s()
        if self._begun is None or self._begun[0] != files[-1].base_offset:
            self._begun = (files[-1].base_offset, now_s)
        seen_ms = (now_s - self._begun[1]) * 1000
        return max(seen_ms, self._clock.now_ms() - stored_at)

    def last_store_timestamp(self, base_offset: int) -> int | None:
        """Return when the last record of an ended file was stored, None if that cannot be told."""
        last = self._sealed.max_store_timestamp(base_offset)
        if last is not None:
            return last
        # Not sealed yet, or damaged: no younger than the first record behind it.
        behind = (file for file in self._log.local_files if file.base_offset > base_offset)
        firsts = map(self._first_store_timestamp, behind)
        return next((first for first in firsts if first is not None), None)

    def _first_store_timestamp(self, file: MappedFile) -> int | None:
        """Return when the first record of a file was stored, None if that cannot be told."""
        try:
            return self._log.store_timestamp(PhysicalOffset(file.base_offset))
        except StoreError:
            return None

    def _load(self) -> None:
        """Read the manifests, once: not at the start, which nothing of this may delay."""
        if not self._is_loaded:
            self._sealed.load(self._log.file_size, self._full_at_start)
            self._is_loaded = True
