"""What Spark is given to plan and to run, seen without a JVM."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from commitbus.flush.spark.columns import arrow_schema, spark_ddl
from commitbus.flush.spark.data_source import CommitLogDataSource

TOPIC = StructType([StructField("topic", StringType())])


def test_spark_finds_the_source_by_its_name() -> None:
    """In a top-level package named `pyspark_*`, in a class named `DefaultSource`."""
    from pyspark_commitlog import DefaultSource  # noqa: PLC0415 - what Spark does, too

    assert DefaultSource is CommitLogDataSource
    assert DefaultSource.name() == "commitlog"


def test_the_schema_is_all_columns_and_options_are_checked() -> None:
    """At `load`, before anything is planned."""
    assert CommitLogDataSource({"path": "x"}).schema() == spark_ddl()
    with pytest.raises(ValueError, match="Give its directory"):
        CommitLogDataSource({}).schema()
    with pytest.raises(ValueError, match="option mode"):
        CommitLogDataSource({"path": "x", "mode": "y"}).schema()


def test_columns_that_the_log_has_not_are_refused() -> None:
    """By name and by type."""
    source = CommitLogDataSource({"path": "x"})
    for field in (StructField("price", IntegerType()), StructField("queue_id", LongType())):
        with pytest.raises(ValueError, match=f"no column {field.name}"):
            source.reader(StructType([field]))


def test_a_log_without_messages_is_one_partition_without_rows(make_store: Any) -> None:
    """Spark would make up a partition of its own for none."""
    reader = CommitLogDataSource({"path": str(make_store().path)}).reader(TOPIC)
    (partition,) = reader.partitions()
    assert list(reader.read(partition)) == []


def test_a_reader_travels_to_its_tasks(small_store: Any) -> None:
    """Spark pickles the reader and the ranges."""
    source = CommitLogDataSource({"path": str(small_store.path), "splitBytes": "4096"})
    reader = source.reader(TOPIC)
    copy, partitions = pickle.loads(  # noqa: S301 - pickled in the same line
        pickle.dumps((reader, reader.partitions()))
    )
    batches = [batch for partition in partitions for batch in copy.read(partition)]
    assert sum(batch.num_rows for batch in batches) == len(small_store.records)
    assert {batch.schema for batch in batches} == {arrow_schema(["topic"])}
