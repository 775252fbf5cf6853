"""Finding the fields of many records at once: what `record_format.check_record` does, in numpy.

Two steps. `follow_chain` hops from size to size, so that only what lies on the chain is ever looked
at. `locate` reads the fixed fields of all those records with a few gathers and computes where the
variable ones lie. A record that may break a rule is given to `check_record`, whose word counts.

A gather reads one item at each of N positions through a view of overlapping items: neither a copy
of the log nor a loop in Python.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final, TypeAlias, final

import numpy as np

from commitbus.commitlog.errors import CorruptRecordError
from commitbus.commitlog.record_format import (
    BORN_HOST_IPV6_FLAG,
    MESSAGE_MAGIC_CODE_V1,
    MESSAGE_MAGIC_CODE_V2,
    MIN_RECORD_BYTES,
    SIZE,
    STORE_HOST_IPV6_FLAG,
    ZERO_RUN_BYTES,
    check_record,
)

Int64s: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
Booleans: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]
Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]

BATCH_RECORDS_MAX: Final = 4096
"""Bigger batches were measured to be slower: they leave the second-level cache."""
BATCH_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bounds the memory of a batch, apart from a single record that is larger."""

_INT32_MAX: Final = 0x7FFF_FFFF
"""A size is one of Java's ints, and Arrow counts a batch's bytes in as many bits."""

# Field offsets and widths as in record_format's diagram.
_PREFIX: Final = np.dtype(
    [
        *(("size", ">u4"), ("magic", ">u4"), ("body_crc", ">u4"), ("queue_id", ">i4")),
        *(("flag", ">i4"), ("queue_offset", ">i8"), ("physical_offset", ">i8")),
        *(("sys_flag", ">i4"), ("born_timestamp", ">i8")),
    ]
)
_SUFFIX: Final = np.dtype([("reconsume_times", ">i4"), ("prepared", ">i8"), ("body_bytes", ">u4")])
_I64: Final = np.dtype(">i8")
_U16: Final = np.dtype(">u2")
_IPV4_HOST_BYTES: Final = 8
_IPV6_HOST_BYTES: Final = 20


@final
class DamagedRecordsError(Exception):
    """Some of the records are not intact. Never leaves the range reader."""

    def __init__(self, positions: Int64s, first: CorruptRecordError) -> None:
        self.positions, self.first = positions, first
        super().__init__(str(first))


@final
@dataclass(frozen=True, slots=True)
class RecordFields:
    """Where N records and their fields lie, and the values of the fixed ones; arrays of N items.

    Positions count from the beginning of the bytes in which they were found.
    """

    position: Int64s
    prefix: np.ndarray[Any, np.dtype[np.void]]
    """The fields up to the born timestamp, by name, big-endian."""
    store_timestamp: Int64s
    """Milliseconds since 1970."""
    reconsume_times: np.ndarray[Any, np.dtype[np.int32]]
    born_host_start: Int64s
    born_host_end: Int64s
    store_host_start: Int64s
    store_host_end: Int64s
    body_start: Int64s
    body_end: Int64s
    topic_start: Int64s
    topic_end: Int64s
    properties_start: Int64s
    end: Int64s

    def at(self, rows: Booleans | slice) -> RecordFields:
        """Return only the given rows."""
        return RecordFields(*(getattr(self, field.name)[rows] for field in fields(self)))


def gather(data: Bytes, positions: Int64s, dtype: np.dtype[Any]) -> np.ndarray[Any, np.dtype[Any]]:
    """Return a copy of the items that lie at `positions` of `data`, aligned or not."""
    if not positions.size:
        return np.empty(0, dtype)
    windows = np.ndarray(
        (data.size - dtype.itemsize + 1,), f"V{dtype.itemsize}", data, strides=(1,)
    )
    return windows[positions].view(dtype)


def follow_chain(view: memoryview, position: int, end: int, base_offset: int) -> Int64s:
    """Return the positions of the next batch of records; none if none lies at `position`.

    Each ends where the next begins, none reaches beyond `end`, each has the magic code of a message
    and names the physical offset at which it lies.

    Args:
        view: A log file, or a piece of one.
        position: Where to begin.
        end: Where to stop.
        base_offset: Physical offset of the view's first byte.
    """
    positions: list[int] = []
    size_at = SIZE.unpack_from
    last_start = min(end - MIN_RECORD_BYTES, position + BATCH_BYTES_MAX)
    following = position
    # The one loop per record: it only hops, what it hopped over is checked afterwards.
    for _ in range(BATCH_RECORDS_MAX):
        if following > last_start:
            break
        positions.append(following)
        following += size_at(view, following)[0]
    found = np.array(positions, np.int64)
    prefix = gather(np.frombuffer(view, np.uint8), found, _PREFIX)
    size = prefix["size"].astype(np.int64)
    is_v1 = prefix["magic"] == MESSAGE_MAGIC_CODE_V1
    is_message = is_v1 | (prefix["magic"] == MESSAGE_MAGIC_CODE_V2)
    is_size = (size >= MIN_RECORD_BYTES) & (found + size <= min(end, position + _INT32_MAX))
    wrong = ~is_message | ~is_size | (prefix["physical_offset"] != base_offset + found)
    return found[: wrong.argmax()] if wrong.any() else found


def locate(view: memoryview, positions: Int64s, base_offset: int) -> RecordFields:
    """Return the fields of the records that `follow_chain` found.

    Raises:
        DamagedRecordsError: Some are not intact. Not checked here: topics, bodies.
    """
    data = np.frombuffer(view, np.uint8)
    prefix = gather(data, positions, _PREFIX)
    end = positions + prefix["size"]
    sys_flag = prefix["sys_flag"]
    born_host_start = positions + _PREFIX.itemsize
    born_host_end = born_host_start + _host_bytes(sys_flag, BORN_HOST_IPV6_FLAG)
    store_host_start = born_host_end + _I64.itemsize
    store_host_end = store_host_start + _host_bytes(sys_flag, STORE_HOST_IPV6_FLAG)
    body_start = store_host_end + _SUFFIX.itemsize
    is_v2 = prefix["magic"] == MESSAGE_MAGIC_CODE_V2
    after_body = 4 + is_v2  # the lengths of topic and properties, and a topic of a byte
    _require(body_start + after_body <= end, view, positions, base_offset)

    suffix = gather(data, store_host_end, _SUFFIX)
    body_end = body_start + suffix["body_bytes"]
    _require(body_end + after_body <= end, view, positions, base_offset)

    topic_bytes = np.where(is_v2, gather(data, body_end, _U16), data[body_end])
    topic_start = body_end + 1 + is_v2
    topic_end = topic_start + topic_bytes
    _require((topic_bytes > 0) & (topic_end + 2 <= end), view, positions, base_offset)

    properties_start = topic_end + 2
    properties_bytes = gather(data, topic_end, _U16).astype(np.int64)
    # A page that was never written leaves zeros, which properties never end with.
    is_plain = (properties_bytes < ZERO_RUN_BYTES) & (data[end - 1] != 0) | (properties_bytes == 0)
    is_sound = (properties_start + properties_bytes == end) & is_plain
    _require(is_sound, view, positions, base_offset)
    return RecordFields(
        position=positions,
        prefix=prefix,
        store_timestamp=gather(data, born_host_end, _I64).astype(np.int64),
        reconsume_times=suffix["reconsume_times"].astype(np.int32),
        born_host_start=born_host_start,
        born_host_end=born_host_end,
        store_host_start=store_host_start,
        store_host_end=store_host_end,
        body_start=body_start,
        body_end=body_end,
        topic_start=topic_start,
        topic_end=topic_end,
        properties_start=properties_start,
        end=end,
    )


def _host_bytes(sys_flag: np.ndarray[Any, np.dtype[np.int32]], ipv6_flag: int) -> Int64s:
    return np.where(sys_flag & ipv6_flag, _IPV6_HOST_BYTES, _IPV4_HOST_BYTES)


def _require(is_sound: Booleans, view: memoryview, positions: Int64s, base_offset: int) -> None:
    if not is_sound.all():
        examine(view, positions[~is_sound], base_offset, verify=False)


def examine(view: memoryview, positions: Int64s, base_offset: int, *, verify: bool) -> None:
    """Have suspicious records checked one by one.

    Raises:
        DamagedRecordsError: Some are not intact.
    """
    bad, errors = [], []
    for position in positions.tolist():
        try:
            check_record(view, position, base_offset + position, verify_crc=verify)
        except CorruptRecordError as error:
            bad.append(position)
            errors.append(error)
    if errors:
        raise DamagedRecordsError(np.array(bad, np.int64), errors[0])
