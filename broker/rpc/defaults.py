"""What every transport grants unless it is told otherwise."""

from __future__ import annotations

from typing import Final

MAX_MESSAGE_BYTES: Final = 130 * 1024 * 1024
"""RocketMQ's limit for one request message."""
REQUEST_BYTES_MAX: Final = 4 * 1024 * 1024
"""What of it a method takes unless it asks for more; gRPC's own default."""
CONCURRENT_CALLS_MAX: Final = 20_000
"""Parked ones counted: each costs 20 KB with grpcio, 1.5 KB on trio; so many 400 MB, or 30 MB."""
DRAIN_GRACE_S: Final = 1.0
"""For unary calls in flight when the server stops."""
