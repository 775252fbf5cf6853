"""Times as the protocol writes them."""

from __future__ import annotations

from google.protobuf.timestamp_pb2 import Timestamp

from commitbus.broker.core.outgoing import TIMESTAMP_MS_MAX


def timestamp_ms(timestamp: Timestamp) -> int:
    """Return milliseconds since 1970."""
    return timestamp.seconds * 1000 + timestamp.nanos // 1_000_000


def set_timestamp(timestamp: Timestamp, ms: int) -> None:
    """Set a field to milliseconds since 1970, within what clients can read."""
    if not 0 <= ms <= TIMESTAMP_MS_MAX:
        ms = min(max(ms, 0), TIMESTAMP_MS_MAX)
    timestamp.seconds, timestamp.nanos = ms // 1000, ms % 1000 * 1_000_000
