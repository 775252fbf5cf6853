"""The properties of many messages at once: `record_format.decode_properties`, in numpy.

Names and values are slices of one buffer, so that no text is copied before Arrow gathers it:

```
      name  0x01  value  0x02  name  0x01  value  0x02 | name ...
      ^start   ^middle  ^end   ^start                  row boundary: may lack the last 0x02
```
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped] # pyarrow ships no types
import pyarrow.compute as pc  # type: ignore[import-untyped] # pyarrow ships no types

from commitbus.commitlog.record_fields import Int64s


def slices(data: pa.Buffer, boundaries: Int64s) -> pa.Array:
    """Return the binary array whose item i is `data[boundaries[i]:boundaries[i + 1]]`, no copy."""
    assert boundaries.size > 0, "an array of no items still has a boundary"
    assert boundaries[-1] < 1 << 31, "Arrow counts in 32 bits; BATCH_BYTES_MAX keeps below"
    offsets = pa.py_buffer(boundaries.astype(np.int32))
    return pa.Array.from_buffers(pa.binary(), boundaries.size - 1, [None, offsets, data])


def as_text(data: pa.Array) -> pa.Array:
    """Return binaries as strings; what is no UTF-8 becomes U+FFFD, as everywhere in the store."""
    try:
        return data.cast(pa.string())
    except pa.ArrowInvalid:
        decoded = (None if v is None else v.decode("utf-8", "replace") for v in data.to_pylist())
        return pa.array(decoded, pa.string())


@final
class PropertyColumns:
    """The properties of N rows, as columns of N items.

    Args:
        encoded: Binary array of N items without nulls.
    """

    def __init__(self, encoded: pa.Array) -> None:
        assert encoded.offset == 0, "a gathered array begins with its buffers"
        self._rows = len(encoded)
        _, offsets, data = encoded.buffers()
        data = pa.py_buffer(b"") if data is None else data
        bounds = np.frombuffer(offsets, np.int32, self._rows + 1).astype(np.int64)
        start, middle, end = _entries(np.frombuffer(data, np.uint8, bounds[-1]), bounds)
        row = np.searchsorted(bounds, start, side="right") - 1
        if start.size:
            boundaries = np.column_stack((start, middle, middle + 1, end)).ravel()
            parts = slices(data, boundaries)
            every_fourth = np.arange(0, 4 * start.size, 4)
            names, values = parts.take(every_fourth), parts.take(every_fourth + 2)
        else:
            names = values = pa.array([], pa.binary())
        self._row, self._names, self._values = _last_of_equal_names(
            row, as_text(names), as_text(values)
        )

    @cached_property
    def maps(self) -> pa.Array:
        """All properties of each row, as a map of string to string."""
        offsets = np.searchsorted(self._row, np.arange(self._rows + 1)).astype(np.int32)
        return pa.MapArray.from_arrays(pa.array(offsets), self._names, self._values)

    def values(self, name: str) -> pa.Array:
        """Return one property of each row as strings, null where it has none."""
        found = np.flatnonzero(pc.equal(self._names, name).to_numpy(zero_copy_only=False))
        where = np.full(self._rows, -1, np.int64)
        where[self._row[found]] = found
        return self._values.take(pa.array(where, mask=where < 0))


def _entries(data: np.ndarray[Any, np.dtype[np.uint8]], bounds: Int64s) -> tuple[Int64s, ...]:
    """Return start, middle (the 0x01) and end of each property, in order.

    Args:
        data: The properties of all rows, one behind the other.
        bounds: Where each row begins, and where the last one ends.
    """
    is_end = np.append(data == 2, False)
    row_ends = bounds[1:][np.diff(bounds) > 0]
    unfinished = row_ends[~is_end[row_ends - 1]]
    end = np.sort(np.concatenate((np.flatnonzero(is_end), unfinished)))
    # A property begins behind the one before it: behind its 0x02, or where the row begins.
    start = np.concatenate((bounds[:1], (end + is_end[end])[:-1])) if end.size else end
    ones = np.append(np.flatnonzero(data == 1), data.size)
    middle = ones[np.searchsorted(ones, start)]
    is_property = (middle < end) & (middle > start)
    return start[is_property], middle[is_property], end[is_property]


def _last_of_equal_names(
    row: Int64s, names: pa.Array, values: pa.Array
) -> tuple[Int64s, pa.Array, pa.Array]:
    """Drop what is overridden: of equal names in a row the last one counts."""
    codes = names.dictionary_encode()
    identity = row * max(len(codes.dictionary), 1) + codes.indices.to_numpy()
    _, first_from_behind = np.unique(identity[::-1], return_index=True)
    if first_from_behind.size == identity.size:
        return row, names, values
    kept = np.sort(identity.size - 1 - first_from_behind)
    return row[kept], names.take(kept), values.take(kept)
