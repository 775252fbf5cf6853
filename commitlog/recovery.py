"""Finding where a log really ends after its process did.

1. Choose the file to begin with: everything before it is vouched for (see the two functions).
2. Walk over all records from there, checking each, to the first place that holds none.
3. If that lies below the durable watermark, bytes that were promised are gone: refuse.
4. Otherwise the log ends there, even if intact records follow: pages reach the disk in any order,
   so what follows a gap was never acknowledged, and keeping it would change what a consumer sees.
5. Copy whatever non-zero bytes lie behind the end to a file of their own, durably.
6. Zero them, drop the files behind, flush. Only now may anything be appended: a stale record that
   stayed could become valid again when new records fill the space before it.

A crash in any of these steps leaves a log on which recovery does the same again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias, final

from commitbus.commitlog.commit_log import CommitLog
from commitbus.commitlog.errors import CorruptRecordError, StoreDamagedError
from commitbus.commitlog.file_system import File
from commitbus.commitlog.kernels import TopicTable, kernels
from commitbus.commitlog.kernels.columns import STORE_TIMESTAMP
from commitbus.commitlog.mapped_file import MappedFile, raise_refusal
from commitbus.commitlog.record_format import check_record
from commitbus.commitlog.record_scanner import ScanStop, StopKind, read_piece, stop_at
from commitbus.commitlog.types import PhysicalOffset, QueueOffset

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with what is done, how many bytes of it, and of how many; a total of 0 is unknown."""

NORMAL_RECOVERY_FILES: Final = 3
_FIRST_RECORD_BYTES: Final = 4096
"""Read to look at the first record of a file."""
_BATCH_RECORDS: Final = 4096
"""Smaller batches share the cost of a numpy call among too few, larger ones leave the caches."""


def no_progress(what: str, done: int, total: int) -> None:
    """Report no progress."""


@final
@dataclass(frozen=True, slots=True)
class RecoveryOutcome:
    """What recovery found and did."""

    start: PhysicalOffset
    """Where it began to look."""
    end: PhysicalOffset
    """Where the log ends now."""
    records: int
    last_store_timestamp: int
    """Of the last record that was looked at, 0 without one."""
    cut_bytes: int
    """From the end to the last non-zero byte that was found behind it."""
    cut_path: Path | None
    """Where those bytes were put; None if there were none, or the log is only being read."""
    cut_reason: str
    """What is wrong with the first of them; empty if there were none."""
    queue_ends: dict[tuple[str, int], QueueOffset]
    """The next queue offset of each queue of which a record was seen."""


def recover_normally(
    log: CommitLog,
    *,
    durable_watermark: PhysicalOffset | None,
    cut_directory: Path | None = None,
    on_progress: Progress = no_progress,
) -> RecoveryOutcome:
    """Recover a log that was closed cleanly.

    Begins with the file of the last durable byte, or without a watermark with the third-last file,
    as RocketMQ does. A bad tail is treated as after a crash. See `recover_abnormally` for the rest.
    """
    files = log.files.files
    first = max(0, len(files) - NORMAL_RECOVERY_FILES)
    if durable_watermark is not None:
        first = _index_of_last_durable(log, durable_watermark)
    return _Recovery(log, durable_watermark, cut_directory, on_progress).run(first)


def recover_abnormally(
    log: CommitLog,
    *,
    durable_watermark: PhysicalOffset | None,
    trusted_timestamp: int,
    trusted_offset: PhysicalOffset | None = None,
    cut_directory: Path | None = None,
    on_progress: Progress = no_progress,
) -> RecoveryOutcome:
    """Recover a log whose process or machine died.

    Begins with the file of the trusted offset, without one with the newest file whose first record
    was stored at or before the trusted time; but no later than with the file of the last durable
    byte.

    Args:
        log: Just opened. One that was opened for reading gets its end set, and is not changed.
        durable_watermark: Below it every byte was synced; None if it is unknown.
        trusted_timestamp: The smaller of the checkpoint's physic and logics timestamps: what was
            stored until then is in the log and in the consume queues.
        trusted_offset: Everything before it is in the log and in the consume queues. Better than a
            time: a clock that was ahead gives all later records the same one.
        cut_directory: Where cut bytes are put aside; `commitbus/cut` beside the log's directory
            when None.
        on_progress: Called now and then.

    Raises:
        StoreDamagedError: The log is open for writing, and the first bad record lies below the
            durable watermark.
        ReadFailedError: The disk does not give back a block. Nothing is changed.
        DiskFullError: There is no room to put the cut bytes aside.
    """
    if trusted_offset is not None:
        first = _index_of_last_durable(log, trusted_offset)
    else:
        first = _index_of_trusted(log, trusted_timestamp)
    if durable_watermark is not None:
        first = min(first, _index_of_last_durable(log, durable_watermark))
    return _Recovery(log, durable_watermark, cut_directory, on_progress).run(first)


def _index_of_last_durable(log: CommitLog, durable_watermark: int) -> int:
    files = log.files.files
    last_durable = max(durable_watermark - 1, 0)
    index = (last_durable - log.min_offset) // log.files.file_size
    return max(0, min(index, len(files) - 1))


def _index_of_trusted(log: CommitLog, trusted_timestamp: int) -> int:
    files = log.files.files
    for index in range(len(files) - 1, -1, -1):
        file = files[index]
        view, _ = read_piece(file, 0, file.size_bytes, _FIRST_RECORD_BYTES)
        try:
            stored_at = check_record(view, 0, file.base_offset, verify_crc=False)[4]
        except CorruptRecordError:
            continue
        if 0 < stored_at <= trusted_timestamp:
            return index
    return 0


@final
@dataclass(slots=True)
class _Recovery:
    log: CommitLog
    durable_watermark: int | None
    cut_directory: Path | None
    on_progress: Progress
    records: int = 0
    last_store_timestamp: int = 0
    queue_ends: dict[tuple[str, int], QueueOffset] = field(default_factory=dict)
    topics: TopicTable = field(default_factory=TopicTable)

    def run(self, first: int) -> RecoveryOutcome:
        """Recover from the file with this index on."""
        log = self.log
        files = log.files.files[first:]
        start = files[0].base_offset if files else log.min_offset
        end, reason = self._find_end(files, start)
        tail_end = _end_of_data(log, end)
        # A reader may look at what is left of a damaged log; a writer must not build on it.
        if log.writable and self.durable_watermark is not None and end < self.durable_watermark:
            raise StoreDamagedError(log.files.directory, end, reason)
        cut_path = None
        if log.writable and tail_end > end:
            cut_path = self._put_aside(end, tail_end)
        log.truncate(PhysicalOffset(end), last_store_timestamp=self.last_store_timestamp)
        log.flush()
        return RecoveryOutcome(
            start=PhysicalOffset(start),
            end=PhysicalOffset(end),
            records=self.records,
            last_store_timestamp=self.last_store_timestamp,
            cut_bytes=tail_end - end,
            cut_path=cut_path,
            cut_reason=reason if tail_end > end else "",
            queue_ends=self.queue_ends,
        )

    def _find_end(self, files: tuple[MappedFile, ...], start: int) -> tuple[int, str]:
        """Return where the first byte lies that belongs to no record, and why."""
        end, reason = start, "no log file is there"
        total = self.log.files.end_of_files - start
        for file in files:
            stop = self._scan(file, start, total)
            end, reason = file.base_offset + stop.position, stop.reason
            if stop.kind not in (StopKind.BLANK, StopKind.FILE_END):
                break
            end, reason = file.base_offset + file.size_bytes, "no further log file is there"
        self.on_progress("recovering the log", total, total)
        return end, reason

    def _scan(self, file: MappedFile, start: int, total: int) -> ScanStop:
        """Check the records of a file; return where in it and why that ended."""
        position = 0
        while True:
            view, behind = read_piece(file, position, file.size_bytes)
            end = self._scan_piece(view, file.base_offset + position, start, total)
            if end == 0 or behind == 0:
                stop = stop_at(view, file.base_offset + position, end, behind=behind)
                return stop._replace(position=position + end)
            position += end

    def _scan_piece(self, view: memoryview, base_offset: int, start: int, total: int) -> int:
        """Check the records of a piece; return the position in it behind the last good one."""
        end = 0
        while True:
            records = kernels(_BATCH_RECORDS).scan(
                view, base_offset, end, self.topics,
                max_records=_BATCH_RECORDS, verify_crc=True,
            )  # fmt: skip
            if not len(records):
                return end
            self.queue_ends.update(records.queue_ends())
            self.records += len(records)
            self.last_store_timestamp = int(records.table[STORE_TIMESTAMP, -1])
            end = records.end
            self.on_progress("recovering the log", base_offset + end - start, total)

    def _put_aside(self, end: int, tail_end: int) -> Path:
        """Copy the non-zero chunks of [end, tail_end) to a new file, durably; return its path."""
        log, file_system = self.log, self.log.files.file_system
        directory = self.cut_directory or log.files.directory.parent / "commitbus" / "cut"
        file_system.make_directories(directory)
        path, attempt = directory / str(end), 0
        while file_system.exists(path):
            # A crash between copying and zeroing: the older copy is the more complete one.
            attempt += 1
            path = directory / f"{end}.{attempt}"
        copy = file_system.open(path, create=True)
        try:
            self._copy(copy, end, tail_end)
            copy.sync_data()
        except OSError as error:
            raise_refusal(error, path, tail_end - end)
            raise
        finally:
            copy.close()
        file_system.sync_directory(directory)
        file_system.sync_directory(directory.parent)
        return path

    def _copy(self, copy: File, end: int, tail_end: int) -> None:
        copy.truncate(tail_end - end)
        for file in self.log.files.files:
            if file.base_offset + file.size_bytes > end:
                for position, chunk in file.data_chunks(max(end - file.base_offset, 0)):
                    offset = file.base_offset + position
                    copy.pwrite(chunk[: tail_end - offset], offset - end)


def _end_of_data(log: CommitLog, end: int) -> int:
    """Return the offset behind the last non-zero byte at or behind `end`, else `end`."""
    for file in reversed(log.files.files):
        if file.base_offset + file.size_bytes <= end:
            break
        position = max(end - file.base_offset, 0)
        last = file.end_of_data(position)
        if last > position:
            return file.base_offset + last
    return end
