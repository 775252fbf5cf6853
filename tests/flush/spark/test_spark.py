"""The log as Spark sees it: a real session, which takes a JVM some ten seconds to start."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from commitbus.flush.spark.columns import ALL_COLUMNS, arrow_schema
from commitbus.flush.spark.java import spark_session

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """One session for all: starting it takes longer than everything done with it."""
    with pytest.MonkeyPatch.context() as environment:
        # What the session sets is undone when it stops.
        for name in ("JAVA_HOME", "PYSPARK_PYTHON"):
            environment.setenv(name, os.environ.get(name, ""))
        session = spark_session(
            "tests",
            **{
                "spark.sql.shuffle.partitions": "2",
                "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            },
        )
        yield session
        session.stop()


def load(spark: SparkSession, path: Path, **options: str) -> Any:
    return spark.read.format("commitlog").options(**options).load(str(path))


def rows(frame: Any) -> list[dict[str, Any]]:
    found = [row.asDict() for row in frame.orderBy("physical_offset").collect()]
    for row in found:
        row["body"] = bytes(row["body"])
        for name in ("store_timestamp", "born_timestamp"):
            row[name] = round(row[name].timestamp() * 1000)
    return found


def test_spark_reads_every_message(
    spark: SparkSession, small_store: Any, expected_rows: Any
) -> None:
    """With no registration, in parallel, all columns."""
    frame = load(spark, small_store.path, splitBytes="4096")
    assert frame.rdd.getNumPartitions() > 3
    assert frame.columns == list(ALL_COLUMNS)
    assert rows(frame) == expected_rows(small_store.records)


def test_the_types_are_those_that_spark_insists_on(spark: SparkSession, small_store: Any) -> None:
    """Spark compares the schema of a batch with its own translation, to the letter."""
    schema = load(spark, small_store.path).schema
    assert to_arrow_schema(schema, timezone="UTC").equals(arrow_schema(), check_metadata=True)


@pytest.mark.shared
def test_spark_reads_what_rocketmq_wrote(
    spark: SparkSession, fixture_stores: dict[str, Path]
) -> None:
    """Both record versions, both IP families."""
    assert load(spark, fixture_stores["broker"]).count() == 177
    hosts = load(spark, fixture_stores["directA"]).groupBy("store_host").count().collect()
    assert sorted(map(tuple, hosts)) == [("127.0.0.1:10911", 21), ("[::1]:10911", 21)]


def test_sql_reads_a_view(spark: SparkSession, small_store: Any) -> None:
    """`CREATE TEMPORARY VIEW ... USING commitlog`, with options."""
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW messages USING commitlog "
        f"OPTIONS (path '{small_store.path}', topics 'Orders')"
    )
    found = spark.sql(
        "SELECT queue_id, count(*), max(properties['n']), array_contains(first(keys), 'shared') "
        "FROM messages WHERE tags <> 'tag0' GROUP BY queue_id ORDER BY queue_id"
    ).collect()
    orders = [r for r in small_store.records if r.topic == "Orders"]
    tagged = [r for r in orders if r.properties["TAGS"] != "tag0"]
    assert [tuple(row) for row in found] == [
        (
            queue,
            sum(r.queue_id == queue for r in tagged),
            max(r.properties["n"] for r in tagged if r.queue_id == queue),
            True,
        )
        for queue in sorted({r.queue_id for r in tagged})
    ]


def test_a_schema_of_the_users_own_prunes_columns(spark: SparkSession, small_store: Any) -> None:
    """In its order; what the log has not is refused."""
    reader = spark.read.format("commitlog")
    frame = reader.schema("body binary, topic string").load(str(small_store.path))
    assert [(bytes(body), topic) for body, topic in frame.collect()] == [
        (r.body, r.topic) for r in small_store.records
    ]
    for schema in ("topic string, price double", "queue_id bigint"):
        with pytest.raises(AnalysisException, match="the log has no column"):
            reader.schema(schema).load(str(small_store.path)).collect()


def test_only_the_durable_part_is_read(spark: SparkSession, small_store: Any) -> None:
    """As of the moment of each action."""
    frame = load(spark, small_store.path)
    before = frame.count()
    small_store.append()
    assert frame.count() == before
    small_store.set_watermark(small_store.end)
    assert load(spark, small_store.path).count() == before + 1


def test_a_log_without_messages_is_an_empty_frame(spark: SparkSession, make_store: Any) -> None:
    """Not an error."""
    assert load(spark, make_store().path).collect() == []


def test_what_cannot_be_read_says_why(
    spark: SparkSession, small_store: Any, tmp_path: Path
) -> None:
    """A wrong directory, a wrong option, no directory."""
    with pytest.raises(AnalysisException, match="is not a store: it has no directory commitlog"):
        load(spark, tmp_path / "nowhere").collect()
    with pytest.raises(AnalysisException, match="option mode is FAILFAST or DROPMALFORMED"):
        load(spark, small_store.path, mode="whatever").collect()
    with pytest.raises(AnalysisException, match="Give its directory"):
        spark.read.format("commitlog").load().collect()


def test_damage_names_the_file_and_the_offset(spark: SparkSession, small_store: Any) -> None:
    """Unless the user wants to have what is left."""
    damaged = small_store.records[5]
    small_store.overwrite(damaged.physical_offset + 88, b"\xff")
    with pytest.raises(PythonException) as failure:
        load(spark, small_store.path).collect()
    assert f"no intact record at physical offset {damaged.physical_offset}" in str(failure.value)
    assert str(small_store.path / "commitlog" / f"{0:020}") in str(failure.value)
    left = load(spark, small_store.path, mode="DROPMALFORMED").count()
    assert left == len(small_store.records) - 1
