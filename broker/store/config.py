"""How a store is laid out and flushed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from commitbus.commitlog.retention import RetentionPolicy
from commitbus.commitlog.types import Host
from commitbus.flush.policy import FlushPolicy


@final
@dataclass(frozen=True, slots=True)
class StoreConfig:
    """The sizes of a new store's files, and what each start may choose anew.

    The first four describe files: a store that exists already keeps the sizes it was made with,
    which are read from its files, whatever is said here.
    """

    log_file_bytes: int = 1 << 30
    """`mappedFileSizeCommitLog`. A record never spans two files, so it bounds the message."""
    queue_file_bytes: int = 300_000 * 20
    """`mappedFileSizeConsumeQueue`, a multiple of 20."""
    index_slots: int = 5_000_000
    """`maxHashSlotNum`."""
    index_entries: int = 20_000_000
    """`maxIndexNum`. With the default slots a file takes 420 MB, once the first key comes."""
    max_body_bytes: int = 4 << 20
    flush: FlushPolicy = field(default_factory=FlushPolicy)
    store_host: Host = field(default_factory=lambda: Host.parse("127.0.0.1", 10911))
    """What records and offset message ids name as the broker's address."""
    warm_queue_files: bool = False
    """Read the newest file of each queue into memory at the start, before the store is open: the
    first consumers meet no disk, and the start takes as long as reading those files does."""
    checkpoint_interval_ms: int = 1000
    """How often queues, index and checkpoint are flushed while messages arrive. Recovery after an
    unclean stop derives the queues anew from a little before the last checkpoint."""
    retention: RetentionPolicy | None = None
    """Which log files go, and when messages are refused. None: all stay, and none is refused."""
    seal_after_s: int = 0
    """Age of its first record at which a log file is ended before it is full; 0 for never."""
