"""Messages that came together: as columns, as objects, or as an Arrow batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, final

import numpy as np

from commitbus.broker.client.errors import ClientError
from commitbus.broker.core import properties as names
from commitbus.commitlog.kernels.columns import Int64s
from commitbus.commitlog.record_fields import DamagedRecordsError, RecordFields, locate
from commitbus.commitlog.record_format import decode_properties, offset_message_id
from commitbus.commitlog.types import Host, PhysicalOffset

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped] # pyarrow ships no types

_SIZE: Final = np.dtype("<u4")

ARROW_COLUMNS: Final = (
    *("topic", "queue_id", "queue_offset", "physical_offset", "store_timestamp"),
    *("born_timestamp", "tags", "keys", "message_id", "properties", "body"),
)


@final
@dataclass(frozen=True, slots=True)
class Message:
    """One message as it is stored."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    """Byte position in the broker's log."""
    body: bytes
    tag: str
    """Empty without one."""
    keys: tuple[str, ...]
    properties: Mapping[str, str]
    """All that are stored, tag and keys included."""
    born_timestamp: int
    """Milliseconds since 1970, by the producer's clock."""
    store_timestamp: int
    """Milliseconds since 1970, by the broker's clock."""
    message_id: str
    """The unique key; of a message without one its broker's address and physical offset."""


@final
class MessageBatch:
    """Messages of one queue, in its order. Columns are arrays of shape (len(batch),).

    Nothing is decoded before it is looked at.
    """

    def __init__(
        self, data: bytes, place: slice, sizes: bytes, *, queue_id: int, next_offset: int
    ) -> None:
        """Take whole records that lie back to back.

        Args:
            data: What was received.
            place: Where in it the records are.
            sizes: Of each record, u32 little-endian.
            queue_id: Of all of them.
            next_offset: The queue offset behind them.
        """
        self._data, self._start = data, place.start
        self.records: Final = memoryview(data)[place]
        """As the broker stores them."""
        self.queue_id: Final = queue_id
        self.next_offset: Final = next_offset
        """The queue offset to go on from behind this batch."""
        self._sizes = np.frombuffer(sizes, _SIZE)

    def __len__(self) -> int:
        """Return how many messages these are."""
        return len(self._sizes)

    def __iter__(self) -> Iterator[Message]:
        """Yield each message as an object: takes ten times as long as the columns."""
        fields, records = self._fields, self.records
        rows = zip(
            self.queue_offsets.tolist(),
            self.physical_offsets.tolist(),
            self.store_timestamps.tolist(),
            self.born_timestamps.tolist(),
            *(
                column.tolist()
                for column in (fields.body_start, fields.body_end, fields.topic_start)
            ),
            *(
                column.tolist()
                for column in (fields.topic_end, fields.properties_start, fields.end)
            ),
            zip(fields.store_host_start.tolist(), fields.store_host_end.tolist(), strict=True),
            strict=True,
        )
        for (
            queue_offset, physical_offset, stored, born, body, body_end, topic, topic_end,
            properties_start, end, host,
        ) in rows:  # fmt: skip
            properties = decode_properties(records[properties_start:end].tobytes())
            message_id = properties.get(names.UNIQUE_KEY)
            if message_id is None:
                message_id = _offset_id(records[host[0] : host[1]], physical_offset)
            yield Message(
                topic=records[topic:topic_end].tobytes().decode(),
                queue_id=self.queue_id,
                queue_offset=queue_offset,
                physical_offset=physical_offset,
                body=records[body:body_end].tobytes(),
                tag=properties.get(names.TAGS, ""),
                keys=tuple(names.split_keys(properties.get(names.KEYS, ""))),
                properties=properties,
                born_timestamp=born,
                store_timestamp=stored,
                message_id=message_id,
            )

    def bodies(self) -> list[bytes]:
        """Return the body of each message."""
        # Cut out of bytes: of a memoryview it takes two objects each, and twice the time.
        data = self._data
        starts, ends = self.body_starts + self._start, self.body_ends + self._start
        bounds = zip(starts.tolist(), ends.tolist(), strict=True)
        return [data[start:end] for start, end in bounds]

    @property
    def queue_offsets(self) -> Int64s:
        """Index in the queue, dense but for what a tag filter left out."""
        return self._fields.prefix["queue_offset"].astype(np.int64)

    @property
    def physical_offsets(self) -> Int64s:
        """Byte position in the broker's log."""
        return self._fields.prefix["physical_offset"].astype(np.int64)

    @property
    def store_timestamps(self) -> Int64s:
        """Milliseconds since 1970, by the broker's clock."""
        return self._fields.store_timestamp

    @property
    def born_timestamps(self) -> Int64s:
        """Milliseconds since 1970, by the producer's clock."""
        return self._fields.prefix["born_timestamp"].astype(np.int64)

    @property
    def body_starts(self) -> Int64s:
        """Where in `records` each body begins."""
        return self._fields.body_start

    @property
    def body_ends(self) -> Int64s:
        """Where in `records` each body ends."""
        return self._fields.body_end

    def to_arrow(self, columns: Sequence[str] = ARROW_COLUMNS) -> pa.RecordBatch:
        """Return the named columns as Arrow, with the names and types that Spark gets them with.

        Raises:
            ImportError: pyarrow is not installed.
            ClientError: The records are not intact.
        """
        # Imported here only: pyarrow is large, and only who asks for Arrow needs it.
        from commitbus.flush.spark.message_batch import (  # noqa: PLC0415 - see above
            MessageBatch as ArrowBuilder,
        )

        builder = ArrowBuilder(self.records, self._fields)
        return builder.build(columns, decompress=False)

    @cached_property
    def _fields(self) -> RecordFields:
        ends = np.cumsum(self._sizes, dtype=np.int64)
        if ends[-1:] != len(self.records):
            raise ClientError("records were received that are not whole")
        try:
            fields = locate(self.records, ends - self._sizes, 0)
        except DamagedRecordsError as error:
            raise ClientError(f"a record was received that is not intact: {error}") from None
        if not np.array_equal(fields.end, ends):
            raise ClientError("records were received that have other sizes than was said")
        return fields


def _offset_id(host: memoryview, physical_offset: int) -> str:
    store_host = Host(host[:-4].tobytes(), int.from_bytes(host[-4:], "big", signed=True))
    return offset_message_id(store_host, PhysicalOffset(physical_offset))
