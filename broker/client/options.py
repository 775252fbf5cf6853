"""What can be set about a producer or a consumer."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    """How a producer batches, how much it holds, and when it gives up."""

    linger_s: float = 0.0
    """How long the first message of a batch waits for others. With 0 a batch is what gathers while
    the ones before it are on their way, which is enough when many tasks send."""
    batch_bytes: int = 256 * 1024
    """Of bodies and properties: a batch that has so many is sent without waiting."""
    in_flight_max: int = 32
    """Batches of a topic that are sent and not acknowledged, at most 64. With SYNC_FLUSH one fsync
    is for all that are at the broker."""
    buffer_bytes: int = 16 * 1024 * 1024
    """Of messages of a topic that are not acknowledged yet: beyond it producing waits."""
    delivery_timeout_s: float = 120.0
    """After which a message that is not acknowledged has failed."""
    connect_timeout_s: float = 10.0
    """For the first connection to stand."""
    durable: bool = False
    """Acknowledged means on the disk, even if the broker's flush mode promises less."""
    tls: ssl.SSLContext | None = None
    """TLS context with the trusted certificates; None for plaintext, unused on a Unix socket."""
    server_name: str = ""
    """The name that the broker's certificate must have; the endpoint's host if empty."""

    def __post_init__(self) -> None:
        if not 0 < self.in_flight_max <= 64:
            raise ValueError(f"in_flight_max is {self.in_flight_max}, not 1 to 64")
        if self.batch_bytes <= 0 or self.buffer_bytes <= 0:
            raise ValueError("batch_bytes and buffer_bytes must be more than 0")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions:
    """How far a consumer reads ahead, and when it gives up."""

    read_ahead_bytes: int = 16 * 1024 * 1024
    """That the broker may send before they are taken."""
    slice_bytes: int = 512 * 1024
    """Of a batch: smaller ones cost more calls, larger ones leave the processor's cache. At most 4
    MiB; a longer message is a batch of its own."""
    connect_timeout_s: float = 10.0
    """For the first connection to stand."""
    reconnect_timeout_s: float = 120.0
    """Without the broker, or with one that answers each attempt with an error, after which
    consuming fails."""
    tls: ssl.SSLContext | None = None
    """TLS context with the trusted certificates; None for plaintext, unused on a Unix socket."""
    server_name: str = ""
    """The name that the broker's certificate must have; the endpoint's host if empty."""

    def __post_init__(self) -> None:
        if self.read_ahead_bytes <= 0 or self.slice_bytes <= 0:
            raise ValueError("read_ahead_bytes and slice_bytes must be more than 0")
