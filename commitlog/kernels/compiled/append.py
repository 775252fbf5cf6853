"""Stores the records of a batch in the log."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from commitbus.commitlog.kernels.compiled.memory import (
    copy,
    crc32,
    kernel,
    store_i16,
    store_i32,
    store_i64,
)

# As in record_format; `numba_kernels` asserts that they are equal.
CRC_MASK: Final = 0x7FFF_FFFF


# With the GIL: a batch of 64 takes 10 us, and getting it back from reput took more than that.
@kernel(
    "int64(int64, int64, int64[::1], int64[::1],"
    " int64, int64, int64, int64, int64, int64, int64, int64)",
    nogil=False,
)
def append_records(
    address: int,
    records: int,
    body_bytes: Any,
    properties_bytes: Any,
    last_properties: int,
    last_properties_bytes: int,
    header: int,
    header_bytes: int,
    topic: int,
    topic_bytes: int,
    queue_offset: int,
    physical_offset: int,
) -> int:
    """Store records from an address on, the first one's size as 0; return their bytes."""
    at, last = address, len(body_bytes) - 1
    for row in range(last + 1):
        body_length, properties_length = body_bytes[row], properties_bytes[row]
        body = at + header_bytes
        tail = body + body_length
        properties = tail + topic_bytes + 2
        crc = crc32(np.uint32(0), records, np.uint64(body_length))
        copy(at, header, np.uint64(header_bytes))
        copy(body, records, np.uint64(body_length))
        copy(tail, topic, np.uint64(topic_bytes))
        copy(properties, records + body_length, np.uint64(properties_length))
        end = properties + properties_length
        if row == last:
            copy(end, last_properties, np.uint64(last_properties_bytes))
            end += last_properties_bytes
        store_i16(properties - 2, end - properties)
        if row:
            store_i32(at, end - at)
        store_i32(at + 8, np.int64(crc) & CRC_MASK)
        store_i64(at + 20, queue_offset + row)
        store_i64(at + 28, physical_offset + (at - address))
        store_i32(body - 4, body_length)
        records += body_length + properties_length
        at = end
    return at - address
