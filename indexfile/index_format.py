"""The bytes of an index file: a hash table of keys on disk, chained through its entries.

    position            bytes   what
    0                   40      header
    40                  4 * S   slots: the newest entry of each chain, 0 = empty chain
    40 + 4 * S          20 * E  entries, appended in log order; entry 0 is never used

    header   0   8  begin_timestamp         store timestamp (ms) of the first entry
             8   8  end_timestamp           store timestamp (ms) of the last entry
            16   8  begin_physical_offset   of the first entry's message
            24   8  end_physical_offset     of the last entry's message
            32   4  slot_count              slots in use
            36   4  index_count             entries, counting the unused entry 0: starts at 1

    entry    0   4  key_hash                abs(Java hash of the key text), 0 for -2^31
             4   8  physical_offset         of the message
            12   4  seconds                 since begin_timestamp
            16   4  previous                the entry before this one in the same slot, 0 = none

All integers are big-endian and signed. An entry belongs to slot `key_hash % S`. A file whose
index_count has reached E takes no more, so it holds E - 1 entries.
"""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from typing import NamedTuple, final

import numpy as np

from commitbus.commitlog.index_keys import index_key_texts, key_hash, key_hashes
from commitbus.commitlog.types import DispatchRequest

__all__ = [
    "ENTRY",
    "ENTRY_BYTES",
    "ENTRY_DTYPE",
    "HEADER",
    "HEADER_BYTES",
    "SECONDS_MAX",
    "SLOT",
    "SLOT_BYTES",
    "SLOT_DTYPE",
    "IndexHeader",
    "KeyKind",
    "entry_position",
    "file_name",
    "index_file_bytes",
    "is_file_name",
    "key_hash",
    "key_hashes",
    "key_text",
    "key_texts",
]

HEADER_BYTES = 40
SLOT_BYTES = 4
ENTRY_BYTES = 20
SECONDS_MAX = 0x7FFFFFFF

HEADER = struct.Struct(">qqqqii")
SLOT = struct.Struct(">i")
ENTRY = struct.Struct(">iqii")
SLOT_DTYPE = np.dtype(">i4")
ENTRY_DTYPE = np.dtype(
    [("key_hash", ">i4"), ("physical_offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")]
)
assert HEADER.size == HEADER_BYTES
assert ENTRY.size == ENTRY_DTYPE.itemsize == ENTRY_BYTES


@final
class KeyKind(Enum):
    """Which of a message's names a query looks for."""

    KEY = auto()
    """A word of KEYS, or the unique key."""
    TAG = auto()
    """The whole of TAGS."""


@final
class IndexHeader(NamedTuple):
    """The first 40 bytes of an index file."""

    begin_timestamp: int = 0
    end_timestamp: int = 0
    begin_physical_offset: int = 0
    end_physical_offset: int = 0
    slot_count: int = 0
    index_count: int = 1


def index_file_bytes(slot_count: int, entry_count: int) -> int:
    """Return the size of an index file of so many slots and entries."""
    return entry_position(slot_count, entry_count)


def entry_position(slot_count: int, index: int) -> int:
    """Return where an entry lies in a file of so many slots."""
    return HEADER_BYTES + SLOT_BYTES * slot_count + ENTRY_BYTES * index


def file_name(now_ms: int, newest: str) -> str:
    """Return the name of a file made now: yyyyMMddHHmmssSSS in local time, as RocketMQ has it.

    A millisecond after `newest` (empty when there is none) where the clock would not give a later
    name: files of one millisecond, or of the hour that the end of summer time repeats.
    """
    moment = (datetime.fromtimestamp(0, tz=UTC) + timedelta(milliseconds=now_ms)).astimezone()
    name = _format_name(moment)
    if name > newest:
        return name
    return _format_name(_parse_name(newest) + timedelta(milliseconds=1))


def is_file_name(name: str) -> bool:
    """Return whether a name is of the form that `file_name` gives."""
    if len(name) != 17 or not name.isascii() or not name.isdigit():
        return False
    try:
        # Back again, because parsing takes 1321 for the 3rd of January, 21 hours.
        return _format_name(_parse_name(name)) == name
    except ValueError:
        return False


def _format_name(moment: datetime) -> str:
    return f"{moment:%Y%m%d%H%M%S}{moment.microsecond // 1000:03d}"


def _parse_name(name: str) -> datetime:
    # The zone does not matter: a name is only compared with and counted up from other names.
    return datetime.strptime(name, "%Y%m%d%H%M%S%f").replace(tzinfo=UTC)


def key_text(topic: str, key: str, kind: KeyKind) -> str:
    """Return the text whose hash stands for a key of a topic."""
    return f"{topic}#T#{key}" if kind is KeyKind.TAG else f"{topic}#{key}"


def key_texts(request: DispatchRequest) -> list[str]:
    """Return the texts under which a message is indexed, in the order of its entries."""
    return index_key_texts(
        request.topic, request.sys_flag, request.unique_key, request.keys, request.tags
    )
