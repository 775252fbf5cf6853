"""The records of a batch as they travel: their bytes without gaps, and a table of lengths.

    lengths   +------+------------+------+------------+---
              | body | properties | body | properties | ...      u32 each, little-endian
              +------+------------+------+------------+---
    records   +========+============+========+============+---
              | body   | properties | body   | properties | ...
              +========+============+========+============+---

Both sides of the wire use this module. Properties are encoded as the log has them, by
`record_format.encode_properties`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

import numpy as np
from isal.isal_zlib import crc32

from commitbus.commitlog.kernels.columns import Int64s

_LENGTH: Final = np.dtype("<u4")
LENGTHS_BYTES: Final = 2 * _LENGTH.itemsize
"""Bytes of the table for each record."""

RECORDS_MAX: Final = 4096
"""Records of a batch. The broker stores a batch in one step, in which it serves nobody else."""


@final
class FramesError(ValueError):
    """The table of lengths does not fit the records."""


@final
@dataclass(frozen=True, slots=True)
class Frames:
    """The records of a batch."""

    records: memoryview
    body_bytes: Int64s
    """Shape (records,)."""
    properties_bytes: Int64s
    """Shape (records,)."""

    def __len__(self) -> int:
        """Return how many records these are."""
        return len(self.body_bytes)

    @property
    def ends(self) -> Int64s:
        """Where in `records` each record ends; shape (records,)."""
        ends: Int64s = np.cumsum(self.body_bytes + self.properties_bytes)
        return ends

    def properties(self) -> list[bytes]:
        """Return the properties of each record."""
        ends = self.ends
        bounds = zip((ends - self.properties_bytes).tolist(), ends.tolist(), strict=True)
        return [self.records[start:end].tobytes() for start, end in bounds]

    def bodies(self) -> list[bytes]:
        """Return the body of each record."""
        body_ends = self.ends - self.properties_bytes
        bounds = zip((body_ends - self.body_bytes).tolist(), body_ends.tolist(), strict=True)
        return [self.records[start:end].tobytes() for start, end in bounds]


def encode_frames(parts: Sequence[bytes]) -> tuple[bytes, bytes]:
    """Return `lengths` and `records` of a batch.

    Args:
        parts: Of each record its body, then its encoded properties.
    """
    assert len(parts) % 2 == 0, "a record has a body and properties"
    lengths = np.fromiter(map(len, parts), _LENGTH, len(parts)).tobytes()
    return lengths, b"".join(parts)


def decode_frames(lengths: bytes, records: bytes | memoryview) -> Frames:
    """Return the records of a batch.

    Raises:
        FramesError: The lengths are not those of the records.
    """
    if len(lengths) % LENGTHS_BYTES:
        raise FramesError(f"lengths of {len(lengths)} bytes are no multiple of {LENGTHS_BYTES}")
    table = np.frombuffer(lengths, _LENGTH).reshape(-1, 2).T.astype(np.int64, order="C")
    total = int(table.sum())
    if total != len(records):
        raise FramesError(f"the lengths add up to {total} bytes, but there are {len(records)}")
    return Frames(memoryview(records), table[0], table[1])


def checksum(lengths: bytes, records: bytes | memoryview) -> int:
    """Return the checksum of a batch."""
    return crc32(records, crc32(lengths))
