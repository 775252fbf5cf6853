"""Many records for one queue in one buffer: what a bulk producer sends, and the log takes at once.

```
    records          +--------+--------------+--------+--------------+---
                     | body 0 | properties 0 | body 1 | properties 1 | ...      no gaps
                     +--------+--------------+--------+--------------+---
    body_bytes         [0]                     [1]
    properties_bytes            [0]                     [1]
```
Nothing is made of a single record: the lengths are checked as columns, and a kernel copies bodies
and properties from the buffer to where they will lie, with a header around each.

What is the same for all records of a batch is said once: topic, queue, producer, born timestamp.
Their `flag`, `sys_flag` (but for the widths of the hosts) and `reconsume_times` are 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from commitbus.commitlog.errors import MessageRefusedError
from commitbus.commitlog.kernels.columns import Int64s
from commitbus.commitlog.record_format import (
    HEADER_FORMATS,
    HOST_FLAGS,
    MAX_PROPERTIES_BYTES,
    PROPERTIES_LENGTH,
    ZERO_RUN,
    ZERO_RUN_BYTES,
    host_flags,
)
from commitbus.commitlog.types import Host


@final
@dataclass(frozen=True, slots=True)
class FramedBatch:
    """Records that are about to be appended to one queue, next to each other."""

    topic: str
    queue_id: int
    records: bytes | memoryview
    """Of each record its body, then its properties as `encode_properties` returns them."""
    body_bytes: Int64s
    """Shape (records,)."""
    properties_bytes: Int64s
    """Shape (records,)."""
    born_timestamp: int
    """Milliseconds since 1970, as the producer said."""
    born_host: Host
    last_properties: bytes = b""
    """What the last record has behind its properties in `records`."""

    def __len__(self) -> int:
        """Return how many records these are."""
        return len(self.body_bytes)

    def check(self, max_body_bytes: int) -> None:
        """Check all lengths, and the properties as far as `CommitLog.append` does.

        Raises:
            MessageRefusedError: A record breaks a limit.
            ValueError: The lengths are not those of the buffer.
        """
        if self.body_bytes.shape != self.properties_bytes.shape or self.body_bytes.ndim != 1:
            raise ValueError("there are not as many lengths of bodies as of properties")
        if not len(self):
            if self.records or self.last_properties:
                raise ValueError(f"{len(self.records)} bytes are of no record")
            return
        self._check_limit("a body", self.body_bytes, max_body_bytes)
        self._check_limit("the properties", self.properties_bytes, MAX_PROPERTIES_BYTES)
        last_bytes = int(self.properties_bytes[-1]) + len(self.last_properties)
        if last_bytes > MAX_PROPERTIES_BYTES:
            raise MessageRefusedError("the properties", last_bytes, MAX_PROPERTIES_BYTES)
        ends = np.cumsum(self.body_bytes + self.properties_bytes)
        if ends[-1] != len(self.records):
            raise ValueError(
                f"the lengths add up to {ends[-1]} bytes, but there are {len(self.records)}"
            )
        separators = np.frombuffer(self.records, np.uint8)[ends[self.properties_bytes > 0] - 1]
        if (separators != 2).any() or self.last_properties[-1:] not in (b"", b"\x02"):
            raise ValueError("properties do not end with a separator")
        for row in np.flatnonzero(self.properties_bytes >= ZERO_RUN_BYTES).tolist():
            end = int(ends[row])
            if ZERO_RUN in bytes(self.records[end - int(self.properties_bytes[row]) : end]):
                raise MessageRefusedError(
                    "a run of zeros in the properties", ZERO_RUN_BYTES, ZERO_RUN_BYTES - 1
                )

    def header(self, magic_code: int, store_timestamp: int, store_host: Host) -> bytes:
        """Return the header that all records have, with 0 where they differ."""
        flags = host_flags(self.born_host, store_host)
        return HEADER_FORMATS[flags & HOST_FLAGS].pack(
            0, magic_code, 0, self.queue_id, 0, 0, 0, flags, self.born_timestamp, *self.born_host,
            store_timestamp, *store_host, 0, 0, 0,
        )  # fmt: skip

    def stored_bytes(self, topic_bytes: int, store_host: Host) -> tuple[int, int]:
        """Return the bytes that all records take in a log, and the first one.

        `topic_bytes`: of the topic with the length before it.
        """
        # Bytes of every record besides its body and properties.
        header = HEADER_FORMATS[host_flags(self.born_host, store_host)]
        more = header.size + topic_bytes + PROPERTIES_LENGTH.size
        total = len(self.records) + len(self.last_properties) + more * len(self)
        if len(self) == 1:
            return total, total
        return total, int(self.body_bytes[0] + self.properties_bytes[0]) + more

    def _check_limit(self, what: str, sizes: Int64s, maximum: int) -> None:
        if sizes.min() < 0:
            raise ValueError(f"a length is {sizes.min()}")
        if sizes.max() > maximum:
            raise MessageRefusedError(what, int(sizes.max()), maximum)
