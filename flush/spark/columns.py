"""The columns of a message: what Spark is told, and the Arrow types that it then insists on.

| column            | Spark                | what it is                                            |
|-------------------|----------------------|-------------------------------------------------------|
| `topic`           | `string`             |                                                       |
| `queue_id`        | `int`                |                                                       |
| `queue_offset`    | `bigint`             | index in the queue, dense                             |
| `physical_offset` | `bigint`             | position in the log: unique, and the order of arrival |
| `store_timestamp` | `timestamp`          | when the broker stored it                             |
| `born_timestamp`  | `timestamp`          | by the producer's clock; null outside years 1 to 9999 |
| `store_host`      | `string`             | `address:port`, an IPv6 address in brackets           |
| `born_host`       | `string`             | likewise                                              |
| `tags`            | `string`             | null when the message has none                        |
| `keys`            | `array<string>`      | null when the message has none                        |
| `message_id`      | `string`             | UNIQ_KEY, without one the offset message id           |
| `properties`      | `map<string,string>` | all of them, those of the columns above included      |
| `body`            | `binary`             | as the producer gave it, unless `decompress` is false |
| `reconsume_times` | `int`                |                                                       |
| `sys_flag`        | `int`                | as stored: 0x1 stays set on a body that is plain again|

All are nullable for Spark, so that a schema of the user's own, which always is, means the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped] # pyarrow ships no types

_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")

SPARK_TYPES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "topic": "string",
        "queue_id": "int",
        "queue_offset": "bigint",
        "physical_offset": "bigint",
        "store_timestamp": "timestamp",
        "born_timestamp": "timestamp",
        "store_host": "string",
        "born_host": "string",
        "tags": "string",
        "keys": "array<string>",
        "message_id": "string",
        "properties": "map<string,string>",
        "body": "binary",
        "reconsume_times": "int",
        "sys_flag": "int",
    }
)
"""Spark's type of each column, in order."""

ALL_COLUMNS: Final = tuple(SPARK_TYPES)

_ARROW_TYPES: Final = MappingProxyType(
    {
        "string": pa.string(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "timestamp": _TIMESTAMP,
        "array<string>": pa.list_(pa.field("element", pa.string())),
        "map<string,string>": pa.map_(pa.string(), pa.string()),
        "binary": pa.binary(),
    }
)


def spark_ddl() -> str:
    """Return the schema as Spark's data definition language."""
    return ", ".join(f"{name} {spark_type}" for name, spark_type in SPARK_TYPES.items())


def arrow_schema(names: Sequence[str] = ALL_COLUMNS) -> pa.Schema:
    """Return the Arrow schema of the given columns: exactly Spark's own translation of its types.

    Spark 4.2 and later refuse a batch whose schema differs in type, order, nullability or zone.
    """
    return pa.schema([pa.field(name, _ARROW_TYPES[SPARK_TYPES[name]]) for name in names])
