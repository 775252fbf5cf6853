"""The checkpoint lowered, before what it vouches for is changed."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, final

from commitbus.commitlog.commit_log import CommitLog
from commitbus.commitlog.errors import StoreError
from commitbus.commitlog.types import PhysicalOffset
from commitbus.flush.checkpoint import CheckpointFile, StoreCheckpoint

_NEVER: Final = 1 << 63


@final
class CheckpointWithdrawal:
    """Lowers the checkpoint before queues or index files that it vouches for are derived anew.

    Queues and index are filled through the page cache, batch by batch and queue by queue. A kill or
    a power cut in the middle leaves holes in them that cannot be seen.
    """

    __slots__ = ("_checkpoint", "_file", "_log")

    def __init__(self, log: CommitLog, file: CheckpointFile, checkpoint: StoreCheckpoint) -> None:
        self._log, self._file, self._checkpoint = log, file, checkpoint

    def withdraw_queues(self, start: PhysicalOffset) -> None:
        """Vouch, durably, for no unit of the messages from `start` on. FlushFailedError."""
        stored_at = self._stored_at(start)
        if stored_at < self._checkpoint.trusted_timestamp:
            self._save(replace(self._checkpoint, logics_msg_timestamp=stored_at))
        else:
            # Messages of a clock that was ahead share one timestamp; their offsets differ.
            self._file.lower_offsets(queues_end=start)

    def withdraw_index(self, start: PhysicalOffset) -> None:
        """Vouch, durably, for no index file, if any is missing from `start` on. FlushFailedError.

        A whole one may end with the message at `start`.
        """
        if self._stored_at(start) < self._checkpoint.index_msg_timestamp:
            self._save(replace(self._checkpoint, index_msg_timestamp=0))
        else:
            self._file.lower_offsets(index_end=start)

    def _stored_at(self, start: PhysicalOffset) -> int:
        """Return when the first message from `start` on was stored; without any, later than all.

        0 where that cannot be read: then nothing is vouched for.
        """
        try:
            requests, _ = self._log.dispatch_requests(start, self._log.end_offset, 1)
        except StoreError:
            return 0
        return requests[0].store_timestamp if requests else _NEVER

    def _save(self, checkpoint: StoreCheckpoint) -> None:
        self._file.save(checkpoint)
        self._checkpoint = checkpoint
