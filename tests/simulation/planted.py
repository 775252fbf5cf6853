"""Mistakes of the store as such: durability, recovery, dispatching."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from commitbus.broker.store.checkpoint_service import CheckpointService
from commitbus.broker.store.message_store import MessageStore
from commitbus.commitlog import recovery
from commitbus.commitlog.commit_log import CommitLog
from commitbus.commitlog.errors import FlushFailedError
from commitbus.commitlog.mapped_file import FilePolicy, MappedFile
from commitbus.commitlog.mapped_file_queue import MappedFileQueue
from commitbus.commitlog.types import AppendResult, OutgoingMessage, PhysicalOffset
from commitbus.consumequeue.changed_queues import ChangedQueues
from commitbus.consumequeue.consume_queue_store import ConsumeQueueStore
from commitbus.flush.doorbell import Doorbell
from commitbus.flush.policy import FlushMode
from commitbus.flush.watermark import AppendedEnd, Watermark
from commitbus.flush.watermark_file import WatermarkFile
from commitbus.indexfile.index_file import IndexFile
from commitbus.indexfile.index_service import IndexService
from tests.simulation.bugs import bug
from tests.simulation.images import (
    crash_everywhere,
    lost_stays_lost,
    power_cut_after_failed_sync,
    unacknowledged,
)


def crash_images(seed: int) -> None:
    """Recover what power cuts leave of a few messages that nobody waited for, sector by sector."""
    crash_everywhere(
        unacknowledged,
        FlushMode.ASYNC_FLUSH,
        seed=seed,
        per_moment_max=32,
        in_all_max=40,
        page_bytes=512,
    )


@bug("a message is acknowledged before the fsync that covers it", seed=12)
def _ack_before_fsync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Watermark, "wait", lambda *_: True)


@bug("a flush over several log files syncs only the last of them")
def _skip_a_file(patch: pytest.MonkeyPatch) -> None:
    def flush(self: MappedFileQueue, start_at: int, end: int) -> None:
        self._sync_names()
        overlapping = [file for file in self.files if file.base_offset < end]
        for file in overlapping[-1:]:
            file.flush()

    patch.setattr(MappedFileQueue, "flush", flush)


@bug("a flush skips the page that the previous flush ended in")
def _skip_a_page(patch: pytest.MonkeyPatch) -> None:
    original = CommitLog.flush

    def flush(self: CommitLog) -> PhysicalOffset:
        # The next page boundary counts as flushed already.
        self._flushed_where = min(-(-self._flushed_where // 4096) * 4096, self._end_offset)
        return original(self)

    patch.setattr(CommitLog, "flush", flush)


@bug("names of new and deleted files are never synced")
def _names_not_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MappedFileQueue, "_sync_names", lambda _: None)


@bug("the log is cut at a page instead of at the end of the last whole record")
def _wrong_truncation(patch: pytest.MonkeyPatch) -> None:
    original = recovery._Recovery._find_end

    def find_end(self: Any, files: Any, start_at: int) -> tuple[int, str]:
        end, reason = original(self, files, start_at)
        return end - end % 512, reason

    patch.setattr(recovery._Recovery, "_find_end", find_end)


@bug("the bytes behind a cut are not zeroed", hunt=lost_stays_lost)
def _cut_bytes_not_zeroed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MappedFile, "zero_from", lambda *_: False)


@bug("the watermark runs ahead of the data")
def _watermark_ahead(patch: pytest.MonkeyPatch) -> None:
    original = WatermarkFile.publish

    def publish(self: WatermarkFile, watermark: PhysicalOffset) -> None:
        original(self, PhysicalOffset(watermark + 100))

    patch.setattr(WatermarkFile, "publish", publish)


@bug("log files are mapped without blocks being reserved")
def _sparse_file(patch: pytest.MonkeyPatch) -> None:
    original = MappedFile.create

    def create(path: Path, size_bytes: int, *, policy: FilePolicy, **others: Any) -> MappedFile:
        return original(path, size_bytes, policy=replace(policy, grow=True), **others)

    patch.setattr(MappedFile, "create", create)
    patch.setattr(MappedFile, "reserve", lambda *_: None)


@bug("a doorbell takes its mark off before it clears the event", seed=17)
def _lost_wake_up(patch: pytest.MonkeyPatch) -> None:
    def wait(self: Doorbell, timeout_s: float | None = None) -> bool:
        rung = self._event.wait(timeout_s)
        self.rung = False
        self._event.clear()
        return rung

    patch.setattr(Doorbell, "wait", wait)


@bug("reput is not woken after a flush", seed=1)
def _reput_sleeps_on(patch: pytest.MonkeyPatch) -> None:
    original = Watermark.listen
    patch.setattr(
        Watermark,
        "listen",
        lambda self, moved, failed=None: (
            None if "lambda" in repr(moved) else original(self, moved, failed)
        ),
    )


@bug("the index resumes one entry too late")
def _index_off_by_one(patch: pytest.MonkeyPatch) -> None:
    original = IndexService._find_where_to_resume

    def find_where_to_resume(self: IndexService) -> None:
        original(self)
        self._entries_there += 1

    patch.setattr(IndexService, "_find_where_to_resume", find_where_to_resume)


@bug("entries of messages behind the log's new end stay in the index", hunt=crash_images)
def _index_not_truncated(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(IndexService, "truncate", lambda *_: None)


@bug("after an unclean stop the slots of the index are taken as they are in the file")
def _index_slots_not_derived(patch: pytest.MonkeyPatch) -> None:
    original = IndexFile.cut

    def cut(self: IndexFile, index_count: int, _: Any) -> None:
        original(self, index_count, self.reader().slots())

    patch.setattr(IndexFile, "cut", cut)


@bug("in SYNC_FLUSH the end of the log is shown, not the durable end", seed=1)
def _confirm_offset_too_high(patch: pytest.MonkeyPatch) -> None:
    original = MessageStore.__init__

    def too_high(self: MessageStore, *arguments: Any, **named: Any) -> None:
        original(self, *arguments, **named)
        self.confirm_point = self._reput._confirm_point = AppendedEnd(lambda: self._log.end_offset)

    patch.setattr(MessageStore, "__init__", too_high)


@bug("the checkpoint is saved without the queues being flushed")
def _checkpoint_ahead(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ChangedQueues, "flush", lambda _: None)


@bug("a clean close saves no checkpoint and flushes no queue")
def _close_flushes_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CheckpointService, "save", lambda _: None)


@bug("after an unclean stop the queues are taken as they are", seed=9)
def _queues_not_truncated(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ConsumeQueueStore, "truncate", lambda *_: None)


@bug("a batch is appended message by message", seed=3)
def _batch_torn(patch: pytest.MonkeyPatch) -> None:
    def append_batch(self: CommitLog, messages: Sequence[OutgoingMessage]) -> list[AppendResult]:
        return [self.append(message) for message in messages]

    patch.setattr(CommitLog, "append_batch", append_batch)


@bug("a failed fsync is tried again, and success believed")
def _retried_fsync(patch: pytest.MonkeyPatch) -> None:
    original = MappedFile.flush

    def flush(self: MappedFile) -> None:
        try:
            original(self)
        except FlushFailedError:
            original(self)

    patch.setattr(MappedFile, "flush", flush)


@bug(
    "what a failed fsync left in memory is taken for durable at the next start",
    hunt=power_cut_after_failed_sync,
)
def _not_written_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MappedFileQueue, "write_again", lambda *_: None)


@bug("warming the pages ahead of the writer overwrites the last of its own")
def _warming_overwrites(patch: pytest.MonkeyPatch) -> None:
    original = MappedFile.warm

    def warm(self: MappedFile, position: int, length: int) -> None:
        original(self, max(position - 64, 0), length)

    patch.setattr(MappedFile, "warm", warm)
