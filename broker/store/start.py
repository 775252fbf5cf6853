"""From files in a directory to a log, queues and an index that agree with each other.

1. The sizes of the files are taken from the files.
2. The log is recovered: from its third-last file after a clean stop, else from the file up to which
   our own note beside the checkpoint says that everything was flushed; in a store without one, as
   RocketMQ's, from the newest file that the checkpoint's timestamps vouch for. What is torn above
   the durable watermark is cut.
3. After a clean stop the queues are taken as they are. After an unclean one, the units of messages
   that the checkpoint does not vouch for are derived from the log anew: a power cut may have left
   any mixture of old and new pages of them. Either way the queues are then filled up to the log's
   end, so that the queue offsets of the next appends follow from them.
4. The index is cut to what is intact; reput fills it up while the store is already in use.

A start may be killed at any point, any number of times: the next one finds the abort file, and so
trusts only what the checkpoint vouches for. Steps 2 to 4 do not change those bytes. Where they must
be derived anew (queues or index files were removed), the checkpoint is lowered first.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from commitbus.broker.store.checkpoint_withdrawal import CheckpointWithdrawal
from commitbus.broker.store.config import StoreConfig
from commitbus.broker.store.layout import (
    CUT,
    INDEX,
    LOG,
    QUEUES,
    sizes_on_disk,
    was_closed_cleanly,
)
from commitbus.broker.store.reput import DispatchedTo
from commitbus.commitlog.clock import Clock
from commitbus.commitlog.commit_log import CommitLog
from commitbus.commitlog.descriptor_cache import quarter_of_descriptors
from commitbus.commitlog.dispatch_reader import DispatchReader
from commitbus.commitlog.errors import (
    CorruptRecordError,
    FlushFailedError,
    OffsetOutOfRangeError,
)
from commitbus.commitlog.file_system import FileSystem
from commitbus.commitlog.recovery import (
    Progress,
    RecoveryOutcome,
    recover_abnormally,
    recover_normally,
)
from commitbus.commitlog.threads import SYSTEM_THREADS, Threads
from commitbus.commitlog.types import PhysicalOffset, QueueOffset
from commitbus.consumequeue.consume_queue_store import ConsumeQueueStore
from commitbus.consumequeue.deleted_topics import DELETED_TOPICS_PATH
from commitbus.consumequeue.errors import DispatchError
from commitbus.consumequeue.unit_format import CqUnit
from commitbus.flush.checkpoint import CheckpointFile, StoreCheckpoint, read_checkpoint
from commitbus.flush.flushed_offsets import read_flushed_offsets
from commitbus.flush.watermark_file import read_durable_watermark
from commitbus.indexfile.index_service import IndexService

_DISPATCH_RECORDS: Final = 4096
_OPEN_FILES_MAX: Final = 8192
_INDEX_BEHIND_WORTH_SAYING: Final = 16 << 20


@final
@dataclass(frozen=True, slots=True)
class StoreParts:
    """The three kinds of files of a store, opened."""

    log: CommitLog
    queues: ConsumeQueueStore
    index: IndexService


def open_parts(
    store: Path,
    config: StoreConfig,
    *,
    clock: Clock,
    file_system: FileSystem,
    threads: Threads = SYSTEM_THREADS,
    clean: bool | None,
    undo: ExitStack,
) -> StoreParts:
    """Open the files, in the sizes they have; `undo` closes them should the start fail later.

    `clean`: whether the last writer closed the store; None to open it for reading.

    Raises:
        NotAStoreError: A file is none of a store's.
        StoreDamagedError: A file is missing between others.
        OSError: A file cannot be opened.
    """
    config, writable = sizes_on_disk(store, config, file_system), clean is not None
    log = CommitLog(
        store / LOG,
        config.log_file_bytes,
        store_host=config.store_host,
        max_body_bytes=config.max_body_bytes,
        clock=clock,
        file_system=file_system,
        threads=threads,
        writable=writable,
    )
    undo.callback(log.close)
    queues = ConsumeQueueStore(
        store / QUEUES,
        config.queue_file_bytes,
        file_system=file_system,
        threads=threads,
        writable=writable,
        open_files_max=quarter_of_descriptors(_OPEN_FILES_MAX),
    )
    undo.callback(queues.close)
    if clean is None:
        queues.load()
    else:
        queues.load(_queues_flushed_to(store, file_system), is_clean=clean)
    index = IndexService(
        store / INDEX,
        slot_count=config.index_slots,
        entry_count=config.index_entries,
        clock=clock,
        file_system=file_system,
        threads=threads,
        writable=writable,
    )
    undo.callback(index.close)
    index.load()
    return StoreParts(log, queues, index)


def _queues_flushed_to(store: Path, file_system: FileSystem) -> PhysicalOffset | None:
    """Return the offset up to which the checkpoint vouches for the queues, None if unknown."""
    checkpoint = read_checkpoint(store, file_system) or StoreCheckpoint()
    watermark = read_durable_watermark(store, file_system)
    flushed = read_flushed_offsets(store, checkpoint, watermark, file_system)
    return flushed.queues_end if flushed else None


@final
@dataclass(frozen=True, slots=True)
class Recovery:
    """Result of a start."""

    dispatched_to: DispatchedTo
    """The log's end, to which the queues are filled, and the last message's store timestamp."""
    index_from: PhysicalOffset
    """Where reput goes on filling the index."""
    summary: str
    """One line for the log and the operator."""


def recover(
    parts: StoreParts,
    store: Path,
    checkpoint_file: CheckpointFile,
    *,
    is_clean: bool,
    clock: Clock,
    file_system: FileSystem,
    on_progress: Progress,
) -> Recovery:
    """Make log, queues and index agree, the log durable, and the next queue offsets known.

    Args:
        parts: The files, just opened.
        store: The store's directory, marked as being in use by now.
        checkpoint_file: Its checkpoint.
        is_clean: Whether its last writer had closed it.
        clock: For how long this takes.
        file_system: Holds the store.
        on_progress: Called with the progress.

    Raises:
        StoreDamagedError: The log is damaged below the durable watermark.
        FlushFailedError: What was recovered could not be made durable.
        DiskFullError: There is no room for what is missing in the queues.
        OSError: A file cannot be read or written.
    """
    started_s = clock.monotonic_s()
    log, queues = parts.log, parts.queues
    checkpoint = read_checkpoint(store, file_system) or StoreCheckpoint()
    watermark = read_durable_watermark(store, file_system)
    outcome = _recover_log(
        parts, store, watermark, checkpoint,
        is_clean=is_clean, file_system=file_system, on_progress=on_progress,
    )  # fmt: skip
    begin, end = log.min_offset, log.end_offset
    queues.settle_deleted(begin, end)
    queues.delete_before(begin)
    index_from = _settle_index(parts.index, begin, end)
    withdrawal = CheckpointWithdrawal(log, checkpoint_file, checkpoint)
    withdrawal.withdraw_index(index_from)
    dispatched, lacked_units = _dispatch(parts, withdrawal, outcome, on_progress)
    if queues.deleted.is_new:
        queues.deleted.save()
    log.set_queue_ends(_queue_ends(queues, outcome))
    elapsed_s = clock.monotonic_s() - started_s
    return Recovery(
        DispatchedTo(end, outcome.last_store_timestamp),
        index_from,
        summary_line(
            outcome,
            is_clean=is_clean,
            dispatched=dispatched,
            lacked_units=lacked_units,
            index_behind_bytes=end - index_from,
            elapsed_s=elapsed_s,
        ),
    )


def _recover_log(
    parts: StoreParts,
    store: Path,
    watermark: PhysicalOffset | None,
    checkpoint: StoreCheckpoint,
    *,
    is_clean: bool,
    file_system: FileSystem,
    on_progress: Progress,
) -> RecoveryOutcome:
    """Recover the log, and cut queues and index back to what is vouched for. As `recover`."""
    log, queues = parts.log, parts.queues
    if is_clean:
        outcome = recover_normally(
            log, durable_watermark=watermark, cut_directory=store / CUT, on_progress=on_progress
        )
        if queues.dispatched_to > log.end_offset:
            queues.truncate(log.end_offset)
        return outcome
    _sync_notes(store, file_system)
    queues.deleted.write_again()
    flushed = read_flushed_offsets(store, checkpoint, watermark, file_system)
    outcome = recover_abnormally(
        log,
        durable_watermark=watermark,
        trusted_timestamp=checkpoint.trusted_timestamp,
        trusted_offset=flushed.queues_end if flushed else None,
        cut_directory=store / CUT,
        on_progress=on_progress,
    )
    if watermark is not None:
        log.files.write_again(max(watermark, log.min_offset), log.end_offset)
    if flushed is not None:
        queues_end = PhysicalOffset(min(max(flushed.queues_end, outcome.start), log.end_offset))
    else:
        queues_end = trusted_queue_end(parts, outcome.start, checkpoint.trusted_timestamp)
    queues.truncate(queues_end)
    parts.index.discard_after(
        checkpoint.index_msg_timestamp, flushed.index_end if flushed else None
    )
    return outcome


def _settle_index(
    index: IndexService, begin: PhysicalOffset, end: PhysicalOffset
) -> PhysicalOffset:
    """Cut the index to messages of the log; return where reput goes on filling it."""
    if index.dispatched_to >= end:
        index.truncate(end)
    # Entries of messages that are gone must not come back at the next power cut, when others have
    # their places in the log. Nothing to do after a clean stop.
    index.flush_cuts()
    index.delete_before(begin)
    return PhysicalOffset(min(max(index.dispatched_to, begin), end))


def _sync_notes(store: Path, file_system: FileSystem) -> None:
    """Make the last writer's notes durable: deleted topics, queue ends.

    It may have been killed, or met a failing disk, between renaming one and syncing its name. The
    notes that this start reads must be the same after a power cut.

    Raises:
        FlushFailedError: The disk fails.
        OSError: The directory cannot be opened.
    """
    directory = store / DELETED_TOPICS_PATH.parent
    if not file_system.exists(directory):
        return
    try:
        file_system.sync_directory(directory)
    except OSError as error:
        if error.filename is not None:
            raise
        raise FlushFailedError(directory, error) from error


def find_end(log: CommitLog, store: Path, file_system: FileSystem) -> None:
    """Set the end of a log that was opened for reading, as far as its records are whole.

    While another process writes to it, or after it was killed, the end is the durable watermark.
    """
    watermark = read_durable_watermark(store, file_system)
    if was_closed_cleanly(store, file_system):
        recover_normally(log, durable_watermark=watermark)
        return
    checkpoint = read_checkpoint(store, file_system) or StoreCheckpoint()
    flushed = read_flushed_offsets(store, checkpoint, watermark, file_system)
    recover_abnormally(
        log,
        durable_watermark=watermark,
        trusted_timestamp=checkpoint.trusted_timestamp,
        trusted_offset=flushed.queues_end if flushed else None,
    )
    if watermark is not None and log.min_offset <= watermark < log.end_offset:
        log.truncate(watermark)


def trusted_queue_end(
    parts: StoreParts, start: PhysicalOffset, trusted_timestamp: int
) -> PhysicalOffset:
    """Return the end of the last message up to which every unit of every queue is durable.

    That is the last one in any queue that was stored before `trusted_timestamp`: store timestamps
    never decrease along the log, and the checkpoint vouches for all units of earlier ones. Messages
    before `start`, where the log's recovery began, are older in any case.
    """

    def is_doubtful(unit: CqUnit) -> bool:
        if not unit.is_written:
            return True
        if unit.physical_offset < start:
            return False
        try:
            return parts.log.store_timestamp(unit.physical_offset) >= trusted_timestamp
        except (CorruptRecordError, OffsetOutOfRangeError):
            return True

    end = start
    for topic, queue_id in parts.queues.queues():
        queue = parts.queues.queue(topic, queue_id)
        assert queue is not None
        first_doubtful = queue.search(is_doubtful)
        if first_doubtful > queue.min_offset:
            last = queue.unit(QueueOffset(first_doubtful - 1))
            end = max(end, last.end_offset)
    return end


def fill_queues(
    parts: StoreParts, start: PhysicalOffset, end: PhysicalOffset, on_progress: Progress
) -> int:
    """Dispatch the log's records in [start, end) to the queues; return how many there were."""
    reader, position, records = DispatchReader(parts.log), start, 0
    while position < end:
        requests, position = reader.read(position, end, _DISPATCH_RECORDS)
        parts.queues.put(requests)
        records += len(requests)
        on_progress("consume queues", position - start, end - start)
    return records


def _dispatch(
    parts: StoreParts,
    withdrawal: CheckpointWithdrawal,
    outcome: RecoveryOutcome,
    on_progress: Progress,
) -> tuple[int, bool]:
    """Fill the queues up to the log's end; return with how many messages, and if units lacked.

    With those behind the last unit; or all, where it shows that units before it are missing.
    """
    log, queues = parts.log, parts.queues
    begin, end = log.min_offset, log.end_offset
    start = max(queues.dispatched_to, begin)
    queues.begun.clear()
    withdrawal.withdraw_queues(start)
    try:
        dispatched = fill_queues(parts, start, end, on_progress)
        lacks_units = start > begin and (
            any(queues.begins_late(*key) for key in queues.begun)
            or _has_lost_queues(parts, outcome)
        )
    except DispatchError:
        # The next message does not fit where a queue ends, so units before it are missing.
        if start == begin:
            raise
        dispatched, lacks_units = 0, True
    if lacks_units:
        withdrawal.withdraw_queues(begin)
        queues.truncate(begin)
        dispatched += fill_queues(parts, begin, end, on_progress)
    return dispatched, lacks_units


def _has_lost_queues(parts: StoreParts, outcome: RecoveryOutcome) -> bool:
    """Return whether a queue lacks the newest message that recovery saw of it.

    RocketMQ removes all queues of a deleted topic without a note: in a store that it wrote, that
    is what a topic without any queue means. It is noted now.
    """
    queues = parts.queues
    lost = _lost_queues(queues, outcome)
    if queues.deleted.is_new:
        for topic in lost.keys() - {topic for topic, _ in queues.queues()}:
            queues.deleted.note(topic, parts.log.end_offset, lost.pop(topic))
    return bool(lost)


def _lost_queues(
    queues: ConsumeQueueStore, outcome: RecoveryOutcome
) -> dict[str, dict[int, QueueOffset]]:
    """Return by topic and id the queues without the newest message that recovery saw of them."""
    lost: dict[str, dict[int, QueueOffset]] = {}
    for (topic, queue_id), end in outcome.queue_ends.items():
        bounds = queues.bounds(topic, queue_id)
        held = bounds[1] if bounds else queues.deleted.queue_end(topic, queue_id)
        if held < end:
            lost.setdefault(topic, {})[queue_id] = end
    return lost


def _queue_ends(
    queues: ConsumeQueueStore, outcome: RecoveryOutcome
) -> dict[tuple[str, int], QueueOffset]:
    """Return the next queue offset of each queue.

    The log's own view counts too: it knows messages that have no unit, as prepared ones.
    """
    ends = queues.queue_ends()
    for key, end in outcome.queue_ends.items():
        ends[key] = max(ends.get(key, end), end)
    return ends


def summary_line(
    outcome: RecoveryOutcome,
    *,
    is_clean: bool,
    dispatched: int,
    lacked_units: bool,
    index_behind_bytes: int,
    elapsed_s: float,
) -> str:
    """Return what a start found and did as one line."""
    facts = [
        f"{outcome.records} records checked from {outcome.start} to {outcome.end}",
        f"{dispatched} dispatched to queues",
    ]
    if lacked_units:
        facts.append("units were missing, so all queues were derived anew")
    if outcome.cut_bytes:
        aside = f", kept in {outcome.cut_path}" if outcome.cut_path else ""
        facts.append(f"{outcome.cut_bytes} torn bytes cut{aside}")
    if index_behind_bytes > _INDEX_BEHIND_WORTH_SAYING:
        facts.append(f"the index is {index_behind_bytes} bytes behind")
    stop = "a clean" if is_clean else "an unclean"
    return f"after {stop} stop: {'; '.join(facts)}; {elapsed_s:.3f} s"
