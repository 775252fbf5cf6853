"""The one append-only log that every topic shares."""

from commitbus.commitlog.clock import Clock, SystemClock
from commitbus.commitlog.commit_log import CommitLog
from commitbus.commitlog.errors import (
    CorruptRecordError,
    DiskFullError,
    FlushFailedError,
    MessageRefusedError,
    NotAStoreError,
    OffsetOutOfRangeError,
    StoreClosedError,
    StoreDamagedError,
    StoreError,
    StoreLockedError,
    StoreReadOnlyError,
)
from commitbus.commitlog.file_system import FileSystem, RealFileSystem
from commitbus.commitlog.mapped_file_queue import detect_file_size
from commitbus.commitlog.recovery import (
    Progress,
    RecoveryOutcome,
    no_progress,
    recover_abnormally,
    recover_normally,
)
from commitbus.commitlog.types import (
    AppendResult,
    DispatchRequest,
    Host,
    OutgoingMessage,
    PhysicalOffset,
    QueueOffset,
    Record,
)

__all__ = [
    "AppendResult",
    "Clock",
    "CommitLog",
    "CorruptRecordError",
    "DiskFullError",
    "DispatchRequest",
    "FileSystem",
    "FlushFailedError",
    "Host",
    "MessageRefusedError",
    "NotAStoreError",
    "OffsetOutOfRangeError",
    "OutgoingMessage",
    "PhysicalOffset",
    "Progress",
    "QueueOffset",
    "RealFileSystem",
    "Record",
    "RecoveryOutcome",
    "StoreClosedError",
    "StoreDamagedError",
    "StoreError",
    "StoreLockedError",
    "StoreReadOnlyError",
    "SystemClock",
    "detect_file_size",
    "no_progress",
    "recover_abnormally",
    "recover_normally",
]
