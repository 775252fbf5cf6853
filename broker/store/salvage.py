"""`commitbus salvage`: every intact record of a damaged store, in a new one.

What a record keeps: topic, queue, flags, times, hosts, properties, body, and its place among the
others of its queue. What changes, because the lost ones leave no gaps: its physical offset (and
the offset message id made of it), and its queue offset behind the first loss. A queue goes on
counting from the queue offset of its first intact record, densely, as every queue is.

Nothing of the damaged store is trusted but the bytes of the records themselves: its consume
queues, index and checkpoint are derived anew. Messages of a topic that was deleted come back as
long as they are in the log. `QueueNumbers` says which new queue offset stands for an old one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple, final

from isal.isal_zlib import crc32

from commitbus.broker.store.config import StoreConfig
from commitbus.broker.store.derivation import derive
from commitbus.broker.store.layout import (
    LOG,
    UNFINISHED,
    is_unpublished,
    make_directory,
    publish,
    remove_unpublished,
    sizes_on_disk,
)
from commitbus.commitlog.clock import Clock
from commitbus.commitlog.descriptor_cache import DescriptorCache
from commitbus.commitlog.errors import NotAStoreError, ReadFailedError
from commitbus.commitlog.file_system import File, FileSystem
from commitbus.commitlog.mapped_file import FILE_NAME_DIGITS, FilePolicy, file_name
from commitbus.commitlog.mapped_file_queue import MappedFileQueue
from commitbus.commitlog.record_format import (
    BLANK_MAGIC_CODE,
    BLANK_RECORD_BYTES,
    MIN_RECORD_BYTES,
    SIZE_AND_MAGIC,
    TRANSACTION_PREPARED,
)
from commitbus.commitlog.recovery import Progress, no_progress
from commitbus.commitlog.salvage import IntactRecord, LostRange, salvage_file
from commitbus.commitlog.threads import SYSTEM_THREADS, Threads
from commitbus.consumequeue.known_queues import is_plain_name
from commitbus.consumequeue.unit_format import UNIT_BYTES
from commitbus.flush.sealed import BOUNDARY_BYTES, SEALED_PATH, base_offset_of, read_manifest
from commitbus.flush.watermark_file import read_durable_watermark

LISTED_MAX: Final = 1000
"""Losses that are kept with their place; more are only summed up."""
_OPEN_FILES: Final = 16
_PAGE_BYTES: Final = 4096
_QUEUE_OFFSET_POSITION: Final = 20
_PHYSICAL_OFFSET_POSITION: Final = 28
_I64: Final = Struct(">q")


@final
@dataclass(frozen=True, slots=True)
class Loss:
    """Something that could not be salvaged."""

    file: str
    """Relative to the damaged store."""
    start: int
    """First physical offset, where it is bytes of the log; else 0, as `end`."""
    end: int
    reason: str

    def __str__(self) -> str:
        """Return `file: what is lost: why`."""
        if self.end > self.start:
            what = f"{self.end - self.start} bytes from physical offset {self.start}"
            return f"{self.file}: {what}: {self.reason}"
        return f"{self.file}: {self.reason}"


@final
@dataclass(slots=True)
class SalvageReport:
    """What was found and what was not."""

    directory: str
    out: str
    log_files: int = 0
    records: int = 0
    record_bytes: int = 0
    topics: Counter[str] = field(default_factory=Counter)
    """Records of each topic."""
    lost_bytes: int = 0
    """Of the log, damaged or not there at all."""
    loss_count: int = 0
    losses: list[Loss] = field(default_factory=list)
    """The first `LISTED_MAX`."""

    def add(self, file: str, start: int, end: int, reason: str) -> None:
        """Note a loss; `start` and `end` are equal where it is none of the log's bytes."""
        self.loss_count += 1
        self.lost_bytes += end - start
        if len(self.losses) < LISTED_MAX:
            self.losses.append(Loss(file, start, end, reason))

    def to_json(self) -> dict[str, object]:
        """Return the report as values that `json.dumps` takes."""
        report: dict[str, object] = {
            name: getattr(self, name) for name in self.__slots__ if name not in ("losses", "topics")
        }
        report["topics"] = dict(self.topics)
        report["losses"] = [
            {"file": loss.file, "start": loss.start, "end": loss.end, "reason": loss.reason}
            for loss in self.losses
        ]
        return report


@final
class _Run(NamedTuple):
    """Records of a queue whose old queue offsets follow each other."""

    old_begin: int
    new_begin: int
    length: int


@final
class QueueNumbers:
    """Numbers the records of a queue anew, and translates offsets between old and new."""

    __slots__ = ("_next", "_runs")

    def __init__(self) -> None:
        self._runs: list[_Run] = []
        self._next = 0

    def next(self, old: int, physical_offset: int) -> int:
        """Return the new queue offset of the next record, which had an old one."""
        if not self._runs:
            # Before a record at this physical offset no more records can have been in the log.
            # A damaged number must not make the queue begin in another galaxy.
            self._next = old if 0 <= old <= physical_offset // MIN_RECORD_BYTES else 0
        new = self._next
        self._next += 1
        last = self._runs[-1] if self._runs else None
        if last is not None and old == last.old_begin + last.length:
            self._runs[-1] = last._replace(length=last.length + 1)
        else:
            self._runs.append(_Run(old, new, 1))
        return new

    def translate(self, old: int) -> int:
        """Return where a group goes on that was at an old queue offset.

        At the first salvaged record that is not before it; in doubt earlier, since to receive a
        message again is allowed and to miss one is not. Runs of one record are passed over: their
        number may be what is damaged.
        """
        first = self._runs[0]
        new = first.new_begin
        for number, run in enumerate(self._runs):
            if (run.length > 1 or number == 0) and run.old_begin <= old:
                new = run.new_begin + min(old - run.old_begin, run.length)
        return min(new, self._next)


@final
@dataclass(frozen=True, slots=True)
class Salvage:
    """The outcome."""

    report: SalvageReport
    numbers: dict[tuple[str, int], QueueNumbers]
    """Of each (topic, queue id) that has a record."""


def _is_complete(salvage: Salvage, made: Path) -> None:
    """Add no further files."""


def salvage_store(
    directory: Path,
    out: Path,
    *,
    config: StoreConfig,
    clock: Clock,
    file_system: FileSystem,
    threads: Threads = SYSTEM_THREADS,
    on_progress: Progress = no_progress,
    complete: Callable[[Salvage, Path], None] = _is_complete,
) -> Salvage:
    """Copy every intact record of `directory` to a new store at `out`.

    The damaged store is only read, and should not be in use. Without any intact record nothing is
    made. Memory: 32 MiB, a longest record, and a little for each gap in a queue.

    The new store is made in a directory of its own inside `out`; only when it is whole and durable
    does it move up. One that was killed before cannot be opened, and salvaging to the
    same `out` begins anew.

    Args:
        directory: The damaged store.
        out: A directory that is empty or does not exist.
        config: The sizes of the new files, where the old ones do not tell.
        clock: For the names of index files.
        file_system: What holds both stores.
        threads: What makes the threads of the new store while it is opened once.
        on_progress: Hears how much of the log is done.
        complete: Adds what else belongs to the store; called with where it lies for now, closed.

    Raises:
        NotAStoreError: `directory` has no log, or `out` is not empty or lies in `directory`.
        DiskFullError: There is no room for the new store.
        OSError: The new store cannot be written.
    """
    _check_places(directory, out, file_system)
    report = SalvageReport(str(directory), str(out))
    files = _log_files(directory, file_system, report)
    config = _sizes(directory, files, config, file_system)
    remove_unpublished(out, file_system)
    made = out / UNFINISHED
    writer = _LogWriter(made, config.log_file_bytes, file_system, threads)
    numbers: dict[tuple[str, int], QueueNumbers] = {}
    try:
        for part in _parts(directory, files, config.log_file_bytes, file_system, report):
            _copy(part, writer, numbers, report)
            on_progress("salvaging", report.record_bytes + report.lost_bytes, _total(files))
        writer.finish()
    finally:
        writer.close()
    salvage = Salvage(report, numbers)
    if report.records:
        derive(made, config, on_progress, clock=clock, file_system=file_system, threads=threads)
        complete(salvage, made)
        publish(out, file_system)
    return salvage


def _check_places(directory: Path, out: Path, file_system: FileSystem) -> None:
    if not file_system.is_directory(directory / LOG):
        raise NotAStoreError(directory, f"it has no directory {LOG}")
    # First: a damaged store is not empty either, and that would be no help.
    if directory.resolve() == out.resolve():
        raise NotAStoreError(
            out, "it is the damaged store itself; name a new or an empty directory"
        )
    if directory.resolve() in out.resolve().parents:
        raise NotAStoreError(out, "it lies in the damaged store, which is not to be changed")
    if file_system.exists(out) and not file_system.is_directory(out):
        raise NotAStoreError(out, "it is a file; name a new or an empty directory")
    if file_system.list_names(out) and not is_unpublished(out, file_system):
        raise NotAStoreError(out, "it is not empty; name a new or an empty directory")


@final
class _LogFile(NamedTuple):
    path: Path
    base_offset: int
    size_bytes: int


def _log_files(directory: Path, file_system: FileSystem, report: SalvageReport) -> list[_LogFile]:
    """Return what can be opened of the log's files, in order; report the rest."""
    files = []
    for name in file_system.list_names(directory / LOG):
        path = directory / LOG / name
        if file_system.is_directory(path):
            continue
        if len(name) != FILE_NAME_DIGITS or not name.isascii() or not name.isdecimal():
            report.add(f"{LOG}/{name}", 0, 0, "this is no name of a log file")
            continue
        try:
            file = file_system.open(path, writable=False)
            files.append(_LogFile(path, int(name), file.size()))
            file.close()
        except OSError as error:
            report.add(f"{LOG}/{name}", 0, 0, f"it cannot be read: {error.strerror or error}")
    report.log_files = len(files)
    return sorted(files, key=lambda file: file.base_offset)


def _total(files: list[_LogFile]) -> int:
    return sum(file.size_bytes for file in files)


def _sizes(
    directory: Path, files: list[_LogFile], config: StoreConfig, file_system: FileSystem
) -> StoreConfig:
    """Return the sizes for the new store: those of the old one, as far as they can be believed."""
    try:
        found = sizes_on_disk(directory, config, file_system)
    except OSError:
        found = config
    if found.queue_file_bytes % UNIT_BYTES:
        found = replace(found, queue_file_bytes=config.queue_file_bytes)
    # Some files may be cut short, but none grew. The only one may end right behind a record, and
    # then has no room for the blank one that must follow.
    log_file_bytes = max((file.size_bytes for file in files), default=0)
    log_file_bytes += BLANK_RECORD_BYTES if log_file_bytes % _PAGE_BYTES else 0
    return replace(found, log_file_bytes=max(log_file_bytes, MIN_RECORD_BYTES + BLANK_RECORD_BYTES))


def _parts(
    directory: Path,
    files: list[_LogFile],
    log_file_bytes: int,
    file_system: FileSystem,
    report: SalvageReport,
) -> Iterator[IntactRecord]:
    """Yield every intact record; report what lies between them."""
    watermark = _watermark(directory, file_system)
    end = files[0].base_offset if files else 0
    _report_missing_first_files(directory, end, log_file_bytes, file_system, report)
    for number, log_file in enumerate(files):
        name = f"{LOG}/{log_file.path.name}"
        if log_file.base_offset > end:
            missing = f"{LOG}/{file_name(end)}"
            report.add(missing, end, log_file.base_offset, "no log file is there")
        is_last = number == len(files) - 1
        file = file_system.open(log_file.path, writable=False)
        try:
            durable_end = watermark if is_last else None
            losses = report.loss_count
            for part in salvage_file(file, log_file.base_offset, durable_end=durable_end):
                if isinstance(part, LostRange):
                    report.add(name, part.start, part.end, part.reason)
                else:
                    yield part
            if report.loss_count == losses:
                _compare_with_manifest(directory, log_file, file, file_system, report)
        finally:
            file.close()
        end = log_file.base_offset + log_file.size_bytes
        if log_file.size_bytes < log_file_bytes and not (is_last and end >= watermark):
            behind = log_file.base_offset + log_file_bytes
            behind = min(behind, max(watermark, end)) if is_last else behind
            report.add(name, end, behind, "the file is cut short")
            end = behind
    if watermark > end:
        report.add(LOG, end, watermark, "durable once, and not there any more")


def _report_missing_first_files(
    directory: Path,
    log_begin: int,
    log_file_bytes: int,
    file_system: FileSystem,
    report: SalvageReport,
) -> None:
    """Report log files before the first one that were not deleted by retention.

    It deletes a file's manifest before the file, so one that is still there tells of a loss.
    """
    for name in file_system.list_names(directory / SEALED_PATH):
        base_offset = base_offset_of(name)
        if base_offset is not None and base_offset < log_begin:
            end = min(base_offset + log_file_bytes, log_begin)
            report.add(f"{LOG}/{file_name(base_offset)}", base_offset, end, "no log file is there")


def _compare_with_manifest(
    directory: Path,
    log_file: _LogFile,
    file: File,
    file_system: FileSystem,
    report: SalvageReport,
) -> None:
    """Report a file whose records look intact, but whose bytes are not those that were sealed."""
    try:
        manifest = read_manifest(directory, log_file.base_offset, file_system)
        if manifest is None:
            return
        checksum = 0
        for position in range(0, log_file.size_bytes, BOUNDARY_BYTES):
            checksum = crc32(file.pread(BOUNDARY_BYTES, position), checksum)
    except OSError:
        return
    if checksum != manifest.crc32:
        reason = (
            "bytes have changed since it was sealed that no record's own checksum covers: headers "
            "or properties; its records are copied as they are"
        )
        report.add(f"{LOG}/{log_file.path.name}", 0, 0, reason)


def _watermark(directory: Path, file_system: FileSystem) -> int:
    """Return up to where the log was durable, 0 where that cannot be told."""
    try:
        return read_durable_watermark(directory, file_system) or 0
    except (OSError, ReadFailedError):
        return 0


def _copy(
    part: IntactRecord,
    writer: _LogWriter,
    numbers: dict[tuple[str, int], QueueNumbers],
    report: SalvageReport,
) -> None:
    """Write a record with its new offsets; report one that no store can take."""
    _, queue_id, old_queue_offset, sys_flag, _, topic, *_ = part.checked
    physical_offset, size = part.physical_offset, len(part.data)
    if not is_plain_name(topic) or queue_id < 0:
        reason = f"topic {topic!r} and queue {queue_id} cannot be names of directories"
        report.add(LOG, physical_offset, physical_offset + size, reason)
        return
    if not writer.can_take(size):
        report.add(LOG, physical_offset, physical_offset + size, "it fits into no log file")
        return
    new_queue_offset = old_queue_offset
    if not sys_flag & TRANSACTION_PREPARED:
        queue = numbers.setdefault((topic, queue_id), QueueNumbers())
        new_queue_offset = queue.next(old_queue_offset, physical_offset)
    writer.append(part.data, new_queue_offset)
    report.records += 1
    report.record_bytes += size
    report.topics[topic] += 1


@final
class _LogWriter:
    """Writes records, but for their offsets as they are, to a new log."""

    def __init__(
        self, out: Path, file_size: int, file_system: FileSystem, threads: Threads
    ) -> None:
        self._out, self._file_system = out, file_system
        self._files = MappedFileQueue(
            out / LOG,
            file_size,
            file_system=file_system,
            policy=FilePolicy(descriptors=DescriptorCache(_OPEN_FILES, threads), threads=threads),
        )
        self._position = 0

    def can_take(self, size: int) -> bool:
        """Return whether a record of this size fits into a file."""
        return size + BLANK_RECORD_BYTES <= self._files.file_size

    def append(self, record: memoryview, queue_offset: int) -> None:
        """Write a record. DiskFullError."""
        if not self._files.files:
            make_directory(self._out, self._file_system)
            self._files.file_for_append(0)
        elif self._position + len(record) + BLANK_RECORD_BYTES > self._files.file_size:
            self._roll()
        file, position = self._files.files[-1], self._position
        data = bytearray(record)
        _I64.pack_into(data, _QUEUE_OFFSET_POSITION, queue_offset)
        _I64.pack_into(data, _PHYSICAL_OFFSET_POSITION, file.base_offset + position)
        file.write(position, memoryview(data))
        self._position += len(record)

    def finish(self) -> None:
        """Make everything durable."""
        self._files.flush(0, self._files.end_of_files)

    def close(self) -> None:
        """Close the files."""
        self._files.close()

    def _roll(self) -> None:
        file = self._files.files[-1]
        rest = self._files.file_size - self._position
        file.write(self._position, SIZE_AND_MAGIC.pack(rest, BLANK_MAGIC_CODE))
        self._files.file_for_append(self._files.end_of_files)
        self._position = 0
