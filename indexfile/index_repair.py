"""Bringing an index file back to what it was at some earlier message.

Needed after an unclean stop: a killed process leaves slots that are older or newer than the header,
a power cut any mixture of pages from different times.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from commitbus.indexfile.index_reader import IndexReader

_CHUNK_ENTRIES = 1 << 18


def intact_count(file: IndexReader) -> int:
    """Return up to which index the entries of a file are as they were appended.

    A page that a power cut kept from the disk is as it was at some earlier time: zeros, or valid
    entries and then zeros. An entry has a positive hash and comes at or after its predecessor in
    the log, so the first entry that lost bytes shows; except that the last one may lack its end.
    (A key whose hash is 0, one in 2^31, ends the search too early, which costs only time.)

    Raises:
        ReadFailedError: The disk does not give an entry back.
    """
    last_offset = 0
    for start in range(1, file.header.index_count, _CHUNK_ENTRIES):
        end = min(start + _CHUNK_ENTRIES, file.header.index_count)
        entries = file.entries(start, end)
        offsets = entries["physical_offset"].astype(np.int64)
        sound = (entries["key_hash"] > 0) & (entries["seconds"] >= 0)
        sound &= (entries["previous"] >= 0) & (entries["previous"] < np.arange(start, end))
        sound &= np.diff(offsets, prepend=last_offset) >= 0
        if not sound.all():
            return start + int(np.argmin(sound))
        last_offset = int(offsets[-1])
    return file.header.index_count


def slot_heads(file: IndexReader, index_count: int) -> npt.NDArray[np.int32]:
    """Return what the slots are when the entries below `index_count` are all there are.

    Returns:
        Shape (slot_count,): the newest entry of each slot, 0 for none.

    Raises:
        ReadFailedError: The disk does not give an entry back.
    """
    heads = np.zeros(file.slot_count, dtype=np.int32)
    for start in range(1, index_count, _CHUNK_ENTRIES):
        end = min(start + _CHUNK_ENTRIES, index_count)
        slots = file.entries(start, end)["key_hash"].astype(np.int32) % file.slot_count
        np.maximum.at(heads, slots, np.arange(start, end, dtype=np.int32))
    return heads
