"""When appended bytes are flushed, and what may be shown before they are."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import final


@final
class FlushMode(StrEnum):
    """RocketMQ's `flushDiskType`. It is the broker's, not the topic's."""

    SYNC_FLUSH = "SYNC_FLUSH"
    """An append is acknowledged, and shown, once it is durable: it survives a power cut."""
    ASYNC_FLUSH = "ASYNC_FLUSH"
    """An append is acknowledged, and shown, at once: it survives the process, and a power cut if
    that comes later than the flush interval."""


@final
@dataclass(frozen=True, slots=True)
class FlushPolicy:
    """How a `FlushService` decides that it is time."""

    mode: FlushMode = FlushMode.ASYNC_FLUSH
    interval_ms: int = 500
    """ASYNC_FLUSH: the longest that an appended byte waits. RocketMQ's `flushIntervalCommitLog`."""
    pending_bytes_max: int = 4 << 20
    """ASYNC_FLUSH: flush before the interval is over once this many bytes wait. A bound on what
    one fdatasync has to write, so that it does not stall the appends behind it."""

    def __post_init__(self) -> None:
        if self.interval_ms < 1:
            raise ValueError(f"the flush interval is {self.interval_ms} ms, at least 1 is needed")
        if self.pending_bytes_max < 1:
            raise ValueError(f"pending_bytes_max is {self.pending_bytes_max}, at least 1 is needed")
