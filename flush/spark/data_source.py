"""`spark.read.format("commitlog").load(DIR)`: the log as a DataFrame, one row per message.

There is no `pushFilters`: Spark refuses a reader that has one unless
`spark.sql.python.filterPushdown.enabled` is set, and by default it is not. What it would do is
offered as options (`topics`, `startingOffset`, `startingTimestamp`, ...); see `read_options`.
Column pruning is a schema of the user's own: `spark.read.schema("topic string, body binary")`
decodes only these columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast, final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from commitbus.commitlog.file_system import RealFileSystem
from commitbus.flush.spark.columns import SPARK_TYPES, spark_ddl
from commitbus.flush.spark.log_ranges import LogRange, plan_ranges
from commitbus.flush.spark.range_reader import read_range
from commitbus.flush.spark.read_options import ReadOptions, parse_read_options, store_directory

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped] # pyarrow ships no types


@final
class LogPartition(InputPartition):
    """A range of the log, as the work of one task. None stands for a log without messages."""

    def __init__(self, log_range: LogRange | None) -> None:
        self.log_range = log_range


@final
class CommitLogDataSource(DataSource):
    """Reads the log of a store directory, ours or Apache RocketMQ's.

    A read sees the log up to the durable watermark of the moment when Spark plans it.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "commitlog"

    def schema(self) -> str:
        """Return all columns.

        Raises:
            ValueError: An option makes no sense.
        """
        store_directory(self.options)
        parse_read_options(self.options)
        return spark_ddl()

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of the columns in `schema`.

        Raises:
            ValueError: A column does not exist or has another type, or an option makes no sense.
        """
        for field in schema.fields:
            spark_type = field.dataType.simpleString()
            if SPARK_TYPES.get(field.name) != spark_type:
                raise ValueError(
                    f"the log has no column {field.name} {spark_type}; it has {spark_ddl()}"
                )
        options = parse_read_options(self.options)
        return CommitLogReader(store_directory(self.options), options, tuple(schema.names))


@final
class CommitLogReader(DataSourceReader):
    """Plans a read on the driver and performs it in the tasks, to which it is pickled."""

    def __init__(self, store: Path, options: ReadOptions, columns: tuple[str, ...]) -> None:
        self._store, self._options, self._columns = store, options, columns

    def partitions(self) -> list[InputPartition]:
        """Return the ranges of the log that are asked for.

        Raises:
            NotAStoreError: The directory holds no log.
            CorruptRecordError: A log file is missing or too short.
            ReadFailedError: The disk does not give back what the planning has to read.
        """
        options = self._options
        ranges = plan_ranges(
            self._store,
            RealFileSystem(),
            split_bytes=options.split_bytes,
            starting_offset=options.starting_offset,
            ending_offset=options.ending_offset,
        )
        # Without any partition Spark would make one up.
        return [LogPartition(log_range) for log_range in ranges] or [LogPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of one range.

        Raises:
            CorruptRecordError: A record is not intact, and the mode is FAILFAST.
            ReadFailedError: A block cannot be read, and the mode is FAILFAST.
        """
        log_range = cast("LogPartition", partition).log_range
        if log_range is not None:
            yield from read_range(log_range, RealFileSystem(), self._options, self._columns)
