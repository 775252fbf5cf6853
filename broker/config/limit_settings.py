"""The settings of what clients may do, and of how much of it at a time."""

from __future__ import annotations

from dataclasses import dataclass, field

from commitbus.broker.config.setting import documented
from commitbus.broker.config.store_settings import DAY_MS, FILE_BYTES_MAX
from commitbus.broker.progress.queue_progress import IN_FLIGHT_MAX_DEFAULT


@dataclass(frozen=True)
class LimitSettings:
    """Limits, and how messages are delivered."""

    auto_create_topics: bool = field(
        default=False,
        metadata=documented(
            unit="true or false",
            reason="off: a misspelt topic is an error, not a second topic",
            danger="every client can make topics, and each takes disk space",
            aliases=("autoCreateTopicEnable",),
        ),
    )
    max_body_bytes: int = field(
        default=4 * 1024 * 1024,
        metadata=documented(
            unit="bytes",
            reason="the limit of RocketMQ's proxy, which clients assume",
            danger="a body is held in memory several times on its way",
            aliases=("maxMessageSize",),
            allowed=(1, FILE_BYTES_MAX),
        ),
    )
    held_back_max: int = field(
        default=100_000,
        metadata=documented(
            unit="messages of a queue, for each group that locks message groups",
            reason="40 MB; behind as many of locked message groups no other one is looked for",
            danger="each takes 400 bytes of memory; if it is low, stuck message groups stop others",
            allowed=(32, 100_000_000),
        ),
    )
    progress_save_interval_ms: int = field(
        default=100,
        metadata=documented(
            unit="milliseconds",
            reason="one small SQLite transaction for all groups; the journal covers the time since",
            danger="a long one makes the journal, and with it a restart, longer",
            aliases=("flushConsumerOffsetInterval",),
            allowed=(1, DAY_MS),
        ),
    )
    progress_sync: bool = field(
        default=False,
        metadata=documented(
            unit="true or false",
            reason="what was acknowledged survives a kill; seconds of it may come again after a "
            "power cut, as with RocketMQ",
            danger="with it each acknowledgement waits for the disk, many for the same sync",
        ),
    )
    retry_percent: int = field(
        default=20,
        metadata=documented(
            unit="percent",
            reason="RocketMQ's: of 100 receives that find both, 20 begin with the retries",
            danger="0: retries wait while new messages come; 100: the other way round",
            aliases=("popFromRetryProbability",),
            allowed=(0, 100),
        ),
    )
    in_flight_max: int = field(
        default=IN_FLIGHT_MAX_DEFAULT,
        metadata=documented(
            unit="messages of a queue, for each group",
            reason="far above what consumers work on at a time, and 80 MB at most",
            danger="a consumer that never acknowledges takes 400 bytes a message; a low one stops "
            "groups of many slow consumers",
            aliases=("popInflightMessageThreshold",),
            allowed=(1, 10_000_000),
        ),
    )
