"""Where a flush makes the log durable: the local disk. An object store may stand here later."""

from __future__ import annotations

from typing import Protocol, final

from commitbus.commitlog.commit_log import CommitLog
from commitbus.commitlog.types import PhysicalOffset
from commitbus.flush.watermark_file import WatermarkFile


class FlushTarget(Protocol):
    """Makes what is appended durable, as `FlushService` asks for it."""

    def flush(self) -> PhysicalOffset:
        """Make durable what was appended before the call, note how far, and return that end.

        Raises:
            FlushFailedError: It failed, for good; appends are refused from then on.
            OutOfResourcesError: The process may open no more files. Trying again is right.
        """


@final
class LocalDisk:
    """The files of the log, and the watermark file beside them."""

    __slots__ = ("_file", "_log")

    def __init__(self, log: CommitLog, file: WatermarkFile) -> None:
        self._log, self._file = log, file

    def flush(self) -> PhysicalOffset:
        """Sync the log, then write its durable end to the watermark file. As `FlushTarget`."""
        end = self._log.flush()
        if end != self._file.value:
            self._file.publish(end)
        return end
