"""Building Arrow batches from located records.

The fields that vary in length are contiguous within a record, and records are contiguous in the
log. So one binary array without a copy, whose offsets interleave the boundaries of all fields,
holds every field of a batch, and a column is a gather of every tenth item of it:

```
      | born | store | store |        |      |        |       |        | proper- | next | born
      | host | time  | host  | suffix | body | length | topic | length | ties    | head | host ...
 item    0       1      2        3       4       5        6       7         8       9     10
```
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Final, final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped] # pyarrow ships no types
import pyarrow.compute as pc  # type: ignore[import-untyped] # pyarrow ships no types

from commitbus.commitlog.record_fields import (
    Booleans,
    Int64s,
    RecordFields,
)
from commitbus.commitlog.types import Host
from commitbus.flush.spark.columns import arrow_schema
from commitbus.flush.spark.compression import COMPRESSED_FLAG, plain_body
from commitbus.flush.spark.properties import PropertyColumns, as_text, slices

BODIES_BYTES_MAX: Final = 64 * 1024 * 1024
"""Of decompressed bodies in one batch of more than one row."""

# The times that Spark can represent, in ms: 0001-01-01 up to and without 10000-01-01.
_FIRST_MS: Final = -62_135_596_800_000
_BEHIND_LAST_MS: Final = 253_402_300_800_000

_BORN_HOST, _STORE_HOST, _BODY, _TOPIC, _PROPERTIES, _ITEMS = 0, 2, 4, 6, 8, 10


@final
class TooManyBytesError(Exception):
    """The bodies of the batch are too large together: build it in halves."""


@final
class MessageBatch:
    """The columns of N messages, built when asked for.

    Args:
        view: Bytes that hold the records.
        fields: N located records, at least one.
    """

    def __init__(self, view: memoryview, fields: RecordFields) -> None:
        assert fields.position.size > 0, "a batch without a row has no bytes to point to"
        self._view, self.fields = view, fields

    def at(self, rows: Booleans | slice) -> MessageBatch | None:
        """Return the batch of only the given rows, None if they are none."""
        fields = self.fields.at(rows)
        return MessageBatch(self._view, fields) if fields.position.size else None

    def build(self, columns: Sequence[str], *, decompress: bool) -> pa.RecordBatch:
        """Return the named columns with the types of `columns.arrow_schema`.

        Args:
            columns: Which.
            decompress: Whether bodies that were compressed are handed out plain.

        Raises:
            TooManyBytesError: Bodies were decompressed to more than `BODIES_BYTES_MAX`.
        """
        builders = self._builders(decompress=decompress)
        arrays = [builders[name]() for name in columns]
        return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns))

    def _builders(self, *, decompress: bool) -> dict[str, Callable[[], pa.Array]]:
        return {
            "topic": self._topic_column,
            "queue_id": partial(self._number_column, "queue_id"),
            "queue_offset": partial(self._number_column, "queue_offset"),
            "physical_offset": partial(self._number_column, "physical_offset"),
            "store_timestamp": self._store_timestamp_column,
            "born_timestamp": self._born_timestamp_column,
            "store_host": self._store_host_column,
            "born_host": self._born_host_column,
            "tags": self._tags_column,
            "keys": self._keys_column,
            "message_id": self._message_id_column,
            "properties": self._properties_column,
            "body": partial(self._body_column, decompress=decompress),
            "reconsume_times": self._reconsume_times_column,
            "sys_flag": partial(self._number_column, "sys_flag"),
        }

    @cached_property
    def topics(self) -> pa.Array:
        """Topics as a dictionary array of binaries."""
        return self._gathered(_TOPIC).dictionary_encode()

    @cached_property
    def _items(self) -> pa.Array:
        fields = self.fields
        first = int(fields.born_host_start[0])
        boundaries = np.column_stack(
            (
                *(fields.born_host_start, fields.born_host_end),
                *(fields.store_host_start, fields.store_host_end),
                *(fields.body_start, fields.body_end, fields.topic_start, fields.topic_end),
                *(fields.properties_start, fields.end),
            )
        )
        data = pa.py_buffer(self._view[first : int(fields.end[-1])])
        return slices(data, boundaries.ravel() - first)

    def _gathered(self, item: int) -> pa.Array:
        rows = self.fields.position.size
        return self._items.take(pa.array(np.arange(item, _ITEMS * rows, _ITEMS)))

    @cached_property
    def _properties(self) -> PropertyColumns:
        return PropertyColumns(self._gathered(_PROPERTIES))

    def _topic_column(self) -> pa.Array:
        return as_text(self.topics.dictionary_decode())

    def _number_column(self, name: str) -> pa.Array:
        values = self.fields.prefix[name]
        return pa.array(values.astype(values.dtype.newbyteorder("=")))

    def _reconsume_times_column(self) -> pa.Array:
        return pa.array(self.fields.reconsume_times)

    def _store_timestamp_column(self) -> pa.Array:
        return _timestamps(self.fields.store_timestamp)

    def _born_timestamp_column(self) -> pa.Array:
        return _timestamps(self.fields.prefix["born_timestamp"].astype(np.int64))

    def _store_host_column(self) -> pa.Array:
        return _host_texts(self._gathered(_STORE_HOST))

    def _born_host_column(self) -> pa.Array:
        return _host_texts(self._gathered(_BORN_HOST))

    def _tags_column(self) -> pa.Array:
        return self._properties.values("TAGS")

    def _keys_column(self) -> pa.Array:
        words = pc.split_pattern(self._properties.values("KEYS"), " ")
        # Two spaces in a row separate no key.
        if not pc.any(pc.equal(words.flatten(), "")).as_py():
            return words
        return pa.array(
            [None if row is None else [key for key in row if key] for row in words.to_pylist()],
            pa.list_(pa.string()),
        )

    def _message_id_column(self) -> pa.Array:
        ids = self._properties.values("UNIQ_KEY")
        missing = ids.is_null().to_numpy(zero_copy_only=False)
        if not missing.any():
            return ids
        # As record_format.offset_message_id, but of the stored bytes, whatever port they say.
        rows = pa.array(np.flatnonzero(missing))
        hosts = self._gathered(_STORE_HOST).take(rows).to_pylist()
        offsets = self.fields.prefix["physical_offset"][missing].tolist()
        offset_ids = np.empty(len(ids), object)
        offset_ids[missing] = [
            (host + offset.to_bytes(8, "big")).hex().upper()
            for host, offset in zip(hosts, offsets, strict=True)
        ]
        return pc.coalesce(ids, pa.array(offset_ids, pa.string()))

    def _properties_column(self) -> pa.Array:
        return self._properties.maps

    def _body_column(self, *, decompress: bool) -> pa.Array:
        bodies = self._gathered(_BODY)
        compressed = np.flatnonzero(self.fields.prefix["sys_flag"] & COMPRESSED_FLAG)
        if not decompress or not compressed.size:
            return bodies
        plain: list[bytes] = bodies.to_pylist()
        total_bytes = 0
        for row in compressed.tolist():
            plain[row] = plain_body(plain[row])
            total_bytes += len(plain[row])
            if total_bytes > BODIES_BYTES_MAX and len(plain) > 1:
                raise TooManyBytesError
        return pa.array(plain, pa.binary())


def _host(raw: bytes) -> Host:
    return Host(raw[:-4], int.from_bytes(raw[-4:], "big", signed=True))


def _host_texts(hosts: pa.Array) -> pa.Array:
    # A log knows few hosts, so each is put into words once.
    encoded = hosts.dictionary_encode()
    texts = [str(_host(host)) for host in encoded.dictionary.to_pylist()]
    return pa.array(texts, pa.string()).take(encoded.indices)


def _timestamps(milliseconds: Int64s) -> pa.Array:
    outside = (milliseconds < _FIRST_MS) | (milliseconds >= _BEHIND_LAST_MS)
    microseconds = np.where(outside, 0, milliseconds) * 1000
    return pa.array(microseconds, mask=outside).view(pa.timestamp("us", tz="UTC"))
