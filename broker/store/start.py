"""From files in a directory to a log, queues and an index that agree with each other.

1. The sizes of the files are taken from the files.
2. The log is recovered: from its third-last file after a clean stop, else from the newest file
   that the checkpoint vouches for; what is torn above the durable watermark is cut.
3. After a clean stop the queues are taken as they are. After an unclean one, the units of messages
   that the checkpoint does not vouch for are derived from the log anew: a power cut may have left
   any mixture of old and new pages of them. Either way the queues are then filled up to the log's
   end, so that the queue offsets of the next appends follow from them.
4. The index is cut to what is intact; reput fills it up while the store is already in use.
"""

from __future__ import annotations

import resource
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

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
from commitbus.commitlog.dispatch_reader import DispatchReader
from commitbus.commitlog.errors import CorruptRecordError, OffsetOutOfRangeError
from commitbus.commitlog.file_system import FileSystem
from commitbus.commitlog.recovery import (
    Progress,
    RecoveryOutcome,
    recover_abnormally,
    recover_normally,
)
from commitbus.commitlog.types import PhysicalOffset, QueueOffset
from commitbus.consumequeue.consume_queue_store import ConsumeQueueStore
from commitbus.consumequeue.unit_format import CqUnit
from commitbus.flush.checkpoint import StoreCheckpoint, read_checkpoint
from commitbus.flush.watermark import read_durable_watermark
from commitbus.indexfile.index_service import IndexService

_DISPATCH_RECORDS: Final = 4096
_WRITE_AGAIN_BYTES: Final = 1 << 20
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
    writable: bool,
    undo: ExitStack,
) -> StoreParts:
    """Open the files, in the sizes they have; `undo` closes them should the start fail later.

    Raises:
        NotAStoreError: A file is none of a store's.
        StoreDamagedError: A file is missing between others.
        OSError: A file cannot be opened.
    """
    config = sizes_on_disk(store, config, file_system)
    log = CommitLog(
        store / LOG,
        config.log_file_bytes,
        store_host=config.store_host,
        max_body_bytes=config.max_body_bytes,
        clock=clock,
        file_system=file_system,
        writable=writable,
    )
    undo.callback(log.close)
    queues = ConsumeQueueStore(
        store / QUEUES,
        config.queue_file_bytes,
        file_system=file_system,
        writable=writable,
        open_files_max=_open_files_max(),
    )
    undo.callback(queues.close)
    queues.load()
    index = IndexService(
        store / INDEX,
        slot_count=config.index_slots,
        entry_count=config.index_entries,
        clock=clock,
        file_system=file_system,
        writable=writable,
    )
    undo.callback(index.close)
    index.load()
    return StoreParts(log, queues, index)


def _open_files_max() -> int:
    """Return how many queue files may be open: sockets and the log need descriptors, too."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return _OPEN_FILES_MAX
    return max(1, min(limit // 4, _OPEN_FILES_MAX))


@final
@dataclass(frozen=True, slots=True)
class Recovery:
    """What a start found and did."""

    dispatched_to: DispatchedTo
    """The log's end, to which the queues are filled, and the last message's store timestamp."""
    index_from: PhysicalOffset
    """Where reput goes on filling the index."""
    summary: str
    """One line for the log and the operator."""


def recover(
    parts: StoreParts,
    store: Path,
    *,
    clock: Clock,
    file_system: FileSystem,
    on_progress: Progress,
) -> Recovery:
    """Make log, queues and index agree, the log durable, and the next queue offsets known.

    Raises:
        StoreDamagedError: The log is damaged below the durable watermark.
        FlushFailedError: What was recovered could not be made durable.
        OSError: A file cannot be read or written.
    """
    started_s = clock.monotonic_s()
    log, queues, index = parts.log, parts.queues, parts.index
    watermark = read_durable_watermark(store, file_system)
    checkpoint = read_checkpoint(store, file_system) or StoreCheckpoint()
    is_clean = was_closed_cleanly(store, file_system)
    if is_clean:
        outcome = recover_normally(
            log,
            durable_watermark=watermark,
            cut_directory=store / CUT,
            on_progress=on_progress,
        )
        if queues.dispatched_to > log.end_offset:
            queues.truncate(log.end_offset)
    else:
        outcome = recover_abnormally(
            log,
            durable_watermark=watermark,
            trusted_timestamp=checkpoint.trusted_timestamp,
            cut_directory=store / CUT,
            on_progress=on_progress,
        )
        if watermark is not None:
            write_again(log, watermark)
        queues.truncate(trusted_queue_end(parts, outcome.start, checkpoint.trusted_timestamp))
        index.discard_after(checkpoint.index_msg_timestamp)
    begin, end = log.min_offset, log.end_offset
    queues.settle_deleted(begin, end)
    queues.delete_before(begin)
    if index.dispatched_to >= end:
        index.truncate(end)
    # Entries of messages that are gone must not come back at the next power cut, when others have
    # their places in the log. Nothing to do after a clean stop.
    index.flush()
    index.delete_before(begin)
    dispatched = fill_queues(parts, max(queues.dispatched_to, begin), end, on_progress)
    dispatched += _restore_lost_queues(parts, outcome, on_progress)
    queues.deleted.save()
    log.set_queue_ends(_queue_ends(queues, outcome))
    index_from = min(max(index.dispatched_to, begin), end)
    elapsed_s = clock.monotonic_s() - started_s
    return Recovery(
        DispatchedTo(end, outcome.last_store_timestamp),
        index_from,
        summary_line(
            outcome,
            is_clean=is_clean,
            dispatched=dispatched,
            index_behind_bytes=end - index_from,
            elapsed_s=elapsed_s,
        ),
    )


def find_end(log: CommitLog, store: Path, file_system: FileSystem) -> None:
    """Set the end of a log that was opened for reading, as far as its records are whole.

    While somebody writes to it, or died doing so, only what the durable watermark covers is shown.
    """
    watermark = read_durable_watermark(store, file_system)
    if was_closed_cleanly(store, file_system):
        recover_normally(log, durable_watermark=watermark)
        return
    checkpoint = read_checkpoint(store, file_system) or StoreCheckpoint()
    recover_abnormally(
        log, durable_watermark=watermark, trusted_timestamp=checkpoint.trusted_timestamp
    )
    if watermark is not None and log.min_offset <= watermark < log.end_offset:
        log.truncate(watermark)


def write_again(log: CommitLog, durable_watermark: PhysicalOffset) -> None:
    """Make what lies above the watermark durable, even if the last writer's fsync failed.

    The kernel may have marked pages clean that never reached the disk, and a sync would pass them
    over and report success. Writing what is there makes them dirty again.

    Raises:
        FlushFailedError: The disk still does not take them.
        ReadFailedError: It does not give them back.
    """
    start, end = max(durable_watermark, log.min_offset), log.end_offset
    for file in log.files.files:
        last = min(end - file.base_offset, file.size_bytes)
        for position in range(max(start - file.base_offset, 0), last, _WRITE_AGAIN_BYTES):
            length = min(_WRITE_AGAIN_BYTES, last - position)
            file.write(position, file.read(position, length))
    log.files.flush(start, end)


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


def _restore_lost_queues(parts: StoreParts, outcome: RecoveryOutcome, on_progress: Progress) -> int:
    """Derive anew what somebody removed of the queues; return how many messages were dispatched.

    RocketMQ removes all queues of a deleted topic without a note: in a store that it wrote, that
    is what a topic without any queue means.
    """
    log, queues = parts.log, parts.queues
    lost = _lost_queues(queues, outcome)
    if queues.deleted.is_new:
        for topic in lost.keys() - {topic for topic, _ in queues.queues()}:
            queues.deleted.note(topic, log.end_offset, lost.pop(topic))
    return fill_queues(parts, log.min_offset, log.end_offset, on_progress) if lost else 0


def _lost_queues(
    queues: ConsumeQueueStore, outcome: RecoveryOutcome
) -> dict[str, dict[int, QueueOffset]]:
    """Return by topic and id the queues without the newest message that recovery saw of them."""
    lost: dict[str, dict[int, QueueOffset]] = {}
    for (topic, queue_id), end in outcome.queue_ends.items():
        queue = queues.queue(topic, queue_id)
        held = queues.deleted.queue_end(topic, queue_id) if queue is None else queue.max_offset
        if held < end:
            lost.setdefault(topic, {})[queue_id] = end
    return lost


def _queue_ends(
    queues: ConsumeQueueStore, outcome: RecoveryOutcome
) -> dict[tuple[str, int], QueueOffset]:
    """Return the next queue offset of each queue.

    The log's own view counts too: it knows messages that have no unit, as prepared ones.
    """
    ends = dict(outcome.queue_ends)
    for key, end in queues.deleted.queue_ends().items():
        ends[key] = max(ends.get(key, end), end)
    for key in queues.queues():
        queue = queues.queue(*key)
        assert queue is not None
        ends[key] = max(ends.get(key, QueueOffset(0)), queue.max_offset)
    return ends


def summary_line(
    outcome: RecoveryOutcome,
    *,
    is_clean: bool,
    dispatched: int,
    index_behind_bytes: int,
    elapsed_s: float,
) -> str:
    """Return what a start found and did as one line."""
    facts = [
        f"{outcome.records} records checked from {outcome.start} to {outcome.end}",
        f"{dispatched} dispatched to queues",
    ]
    if outcome.cut_bytes:
        aside = f", kept in {outcome.cut_path}" if outcome.cut_path else ""
        facts.append(f"{outcome.cut_bytes} torn bytes cut{aside}")
    if index_behind_bytes > _INDEX_BEHIND_WORTH_SAYING:
        facts.append(f"the index is {index_behind_bytes} bytes behind")
    stop = "a clean" if is_clean else "an unclean"
    return f"after {stop} stop: {'; '.join(facts)}; {elapsed_s:.3f} s"
