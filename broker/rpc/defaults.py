"""What every transport grants unless it is told otherwise."""

from __future__ import annotations

from typing import Final

MAX_MESSAGE_BYTES: Final = 130 * 1024 * 1024
"""RocketMQ's limit for one request message: no method may take more."""
REQUEST_BYTES_MAX: Final = 4 * 1024 * 1024
"""What of it a method takes unless it says otherwise; gRPC's own default."""
SMALL_REQUEST_BYTES_MAX: Final = 256 * 1024
"""For methods whose requests are names and numbers; a filter may have 64 KB."""
REQUEST_FIELDS_MAX: Final = 4096
"""Fields of one request, as `field_count` counts them, unless a method says otherwise: a parser
makes up to 280 bytes of each."""
COMPRESSED_FIELDS_MIN: Final = 1024
COMPRESSED_FIELDS_PER_BYTE: Final = 4
"""A compressed request may have so many fields, and so many more for each of its bytes on the wire:
gzip makes one byte of 500 empty fields."""
CONCURRENT_CALLS_MAX: Final = 20_000
"""With grpcio, parked ones counted: each costs 20 KB there, so many 400 MB."""
TRIO_CALLS_MAX: Final = 30_000
"""On trio, where each costs 3 KB. An address may have two of three, a connection one of two, but
never more than HTTP/2's own limit of 10,000."""
DRAIN_GRACE_S: Final = 1.0
"""For unary calls in flight when the server stops."""
