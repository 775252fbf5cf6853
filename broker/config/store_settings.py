"""The settings of the store: its directory, durability, sizes of files, retention."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from commitbus.broker.config.setting import documented
from commitbus.commitlog.retention import NEVER_PERCENT
from commitbus.flush.policy import FlushMode

FILE_BYTES_MAX: Final = 2**31 - 1
"""RocketMQ addresses a file's bytes with a signed 32-bit number."""
DAY_MS: Final = 24 * 3600 * 1000
HOURS_MAX: Final = 100 * 366 * 24


@dataclass(frozen=True)
class StoreSettings:
    """How messages are kept on the disk, and how long."""

    store_directory: Path = field(
        default=Path("commitbus-store"),
        metadata=documented(
            unit="path",
            reason="beside the work at hand, so that a first try needs no rights and no set-up",
            danger="a relative path depends on where the process is started: set an absolute one "
            "for a service",
            aliases=("storePathRootDir",),
        ),
    )
    flush_mode: FlushMode = field(
        default=FlushMode.ASYNC_FLUSH,
        metadata=documented(
            unit="SYNC_FLUSH or ASYNC_FLUSH",
            reason="RocketMQ's default; an acknowledged message survives the process in both",
            danger="ASYNC_FLUSH loses up to flush_interval_ms of acknowledged messages at a power "
            "cut; SYNC_FLUSH makes each send wait for the disk",
            aliases=("flushDiskType",),
        ),
    )
    flush_interval_ms: int = field(
        default=500,
        metadata=documented(
            unit="milliseconds",
            reason="RocketMQ's default",
            danger="with ASYNC_FLUSH, this much is lost at a power cut",
            aliases=("flushIntervalCommitLog",),
            allowed=(1, DAY_MS),
        ),
    )
    log_file_bytes: int = field(
        default=1024 * 1024 * 1024,
        metadata=documented(
            unit="bytes",
            reason="RocketMQ's default; files are allocated in full",
            danger="for a new store only: one that exists keeps the size of its files",
            aliases=("mappedFileSizeCommitLog",),
            allowed=(1, FILE_BYTES_MAX),
        ),
    )
    queue_file_bytes: int = field(
        default=300_000 * 20,
        metadata=documented(
            unit="bytes, a multiple of 20",
            reason="RocketMQ's default: 300,000 messages of one queue",
            danger="for a new store only: one that exists keeps what its files say",
            aliases=("mappedFileSizeConsumeQueue",),
            allowed=(20, FILE_BYTES_MAX),
        ),
    )
    warm_queue_files: bool = field(
        default=False,
        metadata=documented(
            unit="true or false",
            reason="off: a start reads next to nothing, and what is consumed is read when it is",
            danger="on, a start reads the newest file of every queue from the disk, and those "
            "displace other files from memory",
        ),
    )
    index_slots: int = field(
        default=5_000_000,
        metadata=documented(
            unit="hash slots in an index file",
            reason="RocketMQ's default",
            danger="for a new store only: one that exists keeps what its files say",
            aliases=("maxHashSlotNum",),
            allowed=(1, FILE_BYTES_MAX // 8),
        ),
    )
    index_entries: int = field(
        default=20_000_000,
        metadata=documented(
            unit="keys in an index file",
            reason="RocketMQ's default: a file of 420 MB, allocated when first needed",
            danger="for a new store only: one that exists keeps what its files say",
            aliases=("maxIndexNum",),
            allowed=(2, FILE_BYTES_MAX // 40),
        ),
    )
    file_reserved_hours: int = field(
        default=48,
        metadata=documented(
            unit="hours",
            reason="two days, as in RocketMQ's example; counted from a log file's last message",
            danger="what no consumer has fetched by then is deleted with the rest",
            aliases=("fileReservedTime",),
            allowed=(0, HOURS_MAX),
        ),
    )
    delete_when: str = field(
        default="04",
        metadata=documented(
            unit="hours of the day, local time, separated by semicolons",
            reason="RocketMQ's default: at night, because deleting large files loads the disk",
            danger="between these hours expired files fill the disk, up to disk_delete_percent",
            aliases=("deleteWhen",),
        ),
    )
    disk_delete_percent: int = field(
        default=75,
        metadata=documented(
            unit="percent of the disk in use, 100 for never",
            reason="RocketMQ's default: from here on expired files go at any hour",
            danger="a high one leaves little room before sends are refused",
            aliases=("diskMaxUsedSpaceRatio",),
            allowed=(1, NEVER_PERCENT),
        ),
    )
    disk_force_percent: int = field(
        default=100,
        metadata=documented(
            unit="percent of the disk in use, 100 for never",
            reason="never: what is acknowledged and unexpired is not deleted because somebody else "
            "fills the disk; sends are refused instead",
            danger="with RocketMQ's 85, on a disk that is 85 % full already, every message goes "
            "within seconds of its file's end",
            aliases=("diskSpaceCleanForciblyRatio",),
            allowed=(1, NEVER_PERCENT),
        ),
    )
    disk_refuse_percent: int = field(
        default=90,
        metadata=documented(
            unit="percent of the disk in use, 100 for never",
            reason="RocketMQ's default: sends are refused until less is used",
            danger="with 100, queues, progress and everybody else on the disk find it full",
            aliases=("diskSpaceWarningLevelRatio",),
            allowed=(1, NEVER_PERCENT),
        ),
    )
    seal_after_s: int = field(
        default=0,
        metadata=documented(
            unit="seconds since a log file's first message",
            reason="0: a file ends when it is full",
            danger="a file takes its full size on the disk however early it ends: with a short "
            "time, set a small log_file_bytes",
            aliases=("sealAfter",),
            allowed=(0, HOURS_MAX * 3600),
        ),
    )
