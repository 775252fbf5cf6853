"""`commitbus check`: whether a store holds together. Any store's, RocketMQ's too; never changes it.

One walk over the log, in order. Every record is decoded and its checksum verified; each is held
against its consume queue unit and against the next entries of the index. What is left of either
afterwards belongs to no message.

Meant for a store at rest. One that is being written to, or whose writer died, has units and
entries that are yet to come: those that the checkpoint does not vouch for are counted apart, as
what the next start derives from the log anyway.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Final, final

from commitbus.broker.store.check_index import IndexCheck
from commitbus.broker.store.check_queues import QueueCheck
from commitbus.broker.store.check_report import CheckReport, Problem
from commitbus.broker.store.check_sealed import SealedCheck
from commitbus.broker.store.config import StoreConfig
from commitbus.broker.store.layout import (
    CHECKPOINT,
    LOG,
    check_directory,
    sizes_on_disk,
    was_closed_cleanly,
)
from commitbus.commitlog.errors import CorruptRecordError, ReadFailedError, StoreError
from commitbus.commitlog.file_system import FileSystem, RealFileSystem
from commitbus.commitlog.mapped_file import FilePolicy, MappedFile
from commitbus.commitlog.mapped_file_queue import MappedFileQueue
from commitbus.commitlog.record_format import CheckedRecord, check_record, dispatch_request
from commitbus.commitlog.record_scanner import FileScanner, ScanStop, StopKind, read_piece
from commitbus.commitlog.recovery import Progress, no_progress
from commitbus.commitlog.types import DispatchRequest, PhysicalOffset
from commitbus.flush.checkpoint import FILE_BYTES as CHECKPOINT_BYTES
from commitbus.flush.checkpoint import StoreCheckpoint, read_checkpoint
from commitbus.flush.watermark_file import WATERMARK_PATH, read_durable_watermark

__all__ = ["CheckReport", "Problem", "check_store"]

_FIRST_RECORD_BYTES: Final = 4096
"""Read to look at the first record of a file."""


def check_store(
    directory: Path,
    *,
    config: StoreConfig | None = None,
    file_system: FileSystem | None = None,
    on_progress: Progress = no_progress,
) -> CheckReport:
    """Verify a store and return what was found.

    Args:
        directory: The store.
        config: Needed only for an index without a key that is not of the default sizes.
        file_system: Default: the machine's.
        on_progress: Hears how far the walk over the log is.

    Raises:
        NotAStoreError: The directory is no store.
        OSError: A file cannot be read.
    """
    file_system = file_system or RealFileSystem()
    check_directory(directory, file_system, may_be_new=False)
    config = sizes_on_disk(directory, config or StoreConfig(), file_system)
    is_clean = was_closed_cleanly(directory, file_system)
    report = CheckReport(str(directory), was_closed_cleanly=is_clean)
    checkpoint = read_checkpoint(directory, file_system) or StoreCheckpoint()
    queues = QueueCheck(directory, file_system, report)
    index = IndexCheck(directory, config, file_system, report)
    if is_clean:
        index.check_chains()
    sealed = SealedCheck(directory, file_system, report)
    walk = _LogWalk(directory, config.log_file_bytes, file_system, report, sealed)
    last_store_timestamp = 0
    try:
        for request in walk.requests(on_progress):
            is_vouched = is_clean or request.store_timestamp < checkpoint.trusted_timestamp
            queues.see(request, is_vouched=is_vouched)
            index.see(request, is_vouched=is_vouched)
            last_store_timestamp = max(last_store_timestamp, request.store_timestamp)
    finally:
        walk.close()
        index.finish()
    queues.check_ends()
    if is_clean:
        queues.finish(report.log_begin)
        sealed.finish()
    _check_checkpoint(directory, checkpoint, last_store_timestamp, file_system, report)
    return report


def _check_checkpoint(
    directory: Path,
    checkpoint: StoreCheckpoint,
    last_store_timestamp: int,
    file_system: FileSystem,
    report: CheckReport,
) -> None:
    """Report a checkpoint that promises messages which the log does not have."""
    path = directory / CHECKPOINT
    if not file_system.exists(path):
        return
    file = file_system.open(path, writable=False)
    size = file.size()
    file.close()
    if size != CHECKPOINT_BYTES:
        report.add(path, 0, f"{size} bytes instead of {CHECKPOINT_BYTES}")
    promises = (
        checkpoint.physic_msg_timestamp,
        checkpoint.logics_msg_timestamp,
        checkpoint.index_msg_timestamp,
    )
    for number, timestamp in enumerate(promises):
        # A log whose files were all deleted has no message to compare with.
        if timestamp > last_store_timestamp > 0:
            report.add(
                path,
                8 * number,
                f"it vouches for messages until {timestamp}, the newest is of "
                f"{last_store_timestamp}",
            )


@final
class _LogWalk:
    """Walks over the log, counting and reporting."""

    def __init__(
        self,
        directory: Path,
        file_bytes: int,
        file_system: FileSystem,
        report: CheckReport,
        sealed: SealedCheck,
    ) -> None:
        self._directory, self._report, self._sealed = directory, report, sealed
        self._files = MappedFileQueue(
            directory / LOG, file_bytes, file_system=file_system, policy=FilePolicy(writable=False)
        )
        try:
            self._files.load()
        except StoreError as error:
            report.add(directory / LOG, 0, str(error))
        self._watermark: int | None = None
        try:
            self._watermark = read_durable_watermark(directory, file_system)
        except ReadFailedError as error:
            report.add(error.path, error.position, str(error))
        report.durable_watermark = self._watermark
        report.log_begin = report.log_end = self._files.min_offset

    def close(self) -> None:
        """Close the files."""
        self._files.close()

    def requests(self, on_progress: Progress) -> Iterator[DispatchRequest]:
        """Yield every whole record, then settle where the log ends."""
        report, files = self._report, self._files.files
        total = self._files.end_of_files - self._files.min_offset
        report.log_files = len(files)
        for number, file in enumerate(files):
            self._sealed.begin(file)
            stop = yield from self._file_requests(file)
            self._sealed.end(file, stop)
            report.log_end = file.base_offset + stop.position
            if stop.kind is StopKind.BLANK:
                report.blank_records += 1
                # If no file follows, the next record goes into one that is yet to be created.
                report.log_end = file.base_offset + file.size_bytes
            elif stop.kind is not StopKind.FILE_END and self._ends_here(stop, number):
                break
            on_progress("checking the log", file.base_offset + file.size_bytes, total)
        on_progress("checking the log", total, total)
        if self._watermark is not None and self._watermark > report.log_end:
            report.add(
                self._directory / WATERMARK_PATH,
                0,
                f"the log ends at {report.log_end}, below the durable watermark {self._watermark}",
            )

    def _file_requests(self, file: MappedFile) -> Generator[DispatchRequest, None, ScanStop]:
        """Yield the records of a file; return why it went no further."""
        position = 0
        while True:
            scanner = FileScanner(file, position)
            try:
                for view, at, checked in scanner:
                    position = at + checked[0]
                    yield self._seen(view, file, at, checked)
            except ReadFailedError as error:
                self._sealed.see_damage()
                return ScanStop(StopKind.BAD, position, str(error))
            assert scanner.stop is not None, "the scanner ran to its end"
            stop = scanner.stop
            if stop.kind is not StopKind.BAD or self._may_be_torn(file, stop):
                return stop
            at, offset = stop.position, file.base_offset + stop.position
            view, _ = read_piece(file, at, file.size_bytes)
            try:
                checked = check_record(view, 0, offset, verify_crc=False)
            except CorruptRecordError:
                return stop
            # Only the body is bad: the walk can go on behind it.
            self._report.add(file.path, at, stop.reason)
            self._sealed.see_damage()
            yield self._seen(view, file, at, checked)
            position = at + checked[0]

    def _seen(
        self, view: memoryview, file: MappedFile, position: int, checked: CheckedRecord
    ) -> DispatchRequest:
        self._report.messages += 1
        self._sealed.see(position, checked)
        return dispatch_request(view, PhysicalOffset(file.base_offset + position), checked)

    def _may_be_torn(self, file: MappedFile, stop: ScanStop) -> bool:
        """Whether bad bytes here are what an unclean stop may leave: the next start cuts them."""
        durable = self._watermark or 0
        return not self._report.was_closed_cleanly and file.base_offset + stop.position >= durable

    def _ends_here(self, stop: ScanStop, number: int) -> bool:
        """Settle what a stop that is no file's regular end means; return whether the log ends."""
        files = self._files.files
        file, log_end = files[number], self._report.log_end
        tail_end = log_end
        for later in files[number:]:
            position = max(log_end - later.base_offset, 0)
            try:
                end_of_data = later.end_of_data(position)
            except ReadFailedError as error:
                end_of_data = error.position + 1
            if end_of_data > position:
                tail_end = later.base_offset + end_of_data
        if tail_end == log_end:
            return True
        if self._may_be_torn(file, stop):
            self._report.torn_bytes = tail_end - log_end
            return True
        self._report.add(
            file.path,
            stop.position,
            f"{stop.reason}; {tail_end - log_end} bytes up to the last non-zero one follow",
        )
        return not self._begins_with_a_record(files[number + 1 : number + 2])

    def _begins_with_a_record(self, files: Sequence[MappedFile]) -> bool:
        """Whether the walk can go on with the next file, if there is one."""
        for file in files:
            try:
                view, _ = read_piece(file, 0, file.size_bytes, _FIRST_RECORD_BYTES)
                check_record(view, 0, file.base_offset, verify_crc=False)
            except (CorruptRecordError, ReadFailedError):
                return False
            return True
        return False
