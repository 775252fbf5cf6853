"""Rows are the messages, all of them, whatever the store looks like."""

from __future__ import annotations

import hashlib
import json
import logging
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from commitbus.commitlog import record_fields
from commitbus.commitlog.errors import CorruptRecordError
from commitbus.commitlog.file_system import RealFileSystem
from commitbus.commitlog.record_format import decode_record
from commitbus.commitlog.types import Host, PhysicalOffset
from commitbus.flush.spark import message_batch
from commitbus.flush.spark.columns import ALL_COLUMNS, arrow_schema
from commitbus.flush.spark.log_ranges import LogRange, RangeEnd, plan_ranges
from commitbus.flush.spark.range_reader import read_range
from commitbus.flush.spark.read_options import OnDamage, ReadOptions
from tests.records import encode_record

FILE_SYSTEM = RealFileSystem()
AS_STORED = ReadOptions(decompress=False)
DROP = ReadOptions(on_damage=OnDamage.DROPMALFORMED)


def read(
    path: Path, options: ReadOptions = AS_STORED, *, split_bytes: int | None = None
) -> list[Any]:
    return [
        batch
        for part in plan_ranges(path, FILE_SYSTEM, split_bytes=split_bytes)
        for batch in read_range(part, FILE_SYSTEM, options)
    ]


def offsets(path: Path, options: ReadOptions = AS_STORED, **plan: Any) -> list[int]:
    return [row for b in read(path, options, **plan) for row in b["physical_offset"].to_pylist()]


# RocketMQ's own stores


def java_host(text: str) -> str:
    address, _, port = text.removeprefix("/").rpartition(":")
    return str(Host.parse(address.strip("[]"), int(port)))


@pytest.mark.shared
@pytest.mark.parametrize("split_bytes", [None, 1, 1000, 30_000])
@pytest.mark.parametrize("name", ["broker", "directA"])
def test_every_message_that_rocketmq_wrote(
    *,
    name: str,
    split_bytes: int | None,
    fixture_stores: dict[str, Path],
    shared_dir: Path,
    rows_of: Callable[..., list[dict[str, Any]]],
) -> None:
    """Each equals what RocketMQ's own classes decoded, however the log is cut."""
    text = (shared_dir / "fixtures" / f"{name}-store.expected.json").read_text()
    expected = sorted(json.loads(text)["messages"], key=lambda m: m["commitLogOffset"])
    rows = rows_of(read(fixture_stores[name], split_bytes=split_bytes))
    assert len(rows) == len(expected)
    for row, message in zip(rows, expected, strict=True):
        properties, keys = message["properties"], message["properties"].get("KEYS")
        assert hashlib.sha256(row.pop("body")).hexdigest() == message["bodySha256"]
        assert row == {
            "topic": message["topic"],
            "queue_id": message["queueId"],
            "queue_offset": message["queueOffset"],
            "physical_offset": message["commitLogOffset"],
            "store_timestamp": message["storeTimestamp"],
            "born_timestamp": message["bornTimestamp"],
            "store_host": java_host(message["storeHost"]),
            "born_host": java_host(message["bornHost"]),
            "tags": properties.get("TAGS"),
            "keys": keys.split() if keys else None,
            "message_id": properties.get("UNIQ_KEY", message["msgId"]),
            "properties": properties,
            "reconsume_times": message["reconsumeTimes"],
            "sys_flag": message["sysFlag"],
        }


@pytest.mark.shared
def test_compressed_bodies_come_out_plain(fixture_stores: dict[str, Path]) -> None:
    """The remoting client compresses from 4 KiB on; the property `size` tells what it was given."""
    store = fixture_stores["broker"]
    compressed = 0
    for stored, plain in zip(read(store), read(store, ReadOptions()), strict=True):
        for flag, before, after, properties in zip(
            *(stored["sys_flag"].to_pylist(), stored["body"].to_pylist()),
            *(plain["body"].to_pylist(), plain["properties"].to_pylist()),
            strict=True,
        ):
            if flag & 1:
                compressed += 1
                assert zlib.decompress(before) == after
                size = dict(properties).get("size")
                assert size is None or len(after) == int(size)
            else:
                assert before == after
    assert compressed == 15


# Random stores

hosts = st.builds(
    Host,
    st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16),
    st.integers(0, 65535),
)
names = st.text(st.characters(exclude_characters="\x00\x01\x02", codec="utf-8"), min_size=1)
times = st.integers(0, 4_000_000_000_000)
messages = st.fixed_dictionaries(
    {
        "topic": st.sampled_from(["a", "b" * 127, "c" * 128, "é" * 127]),
        "body": st.binary(max_size=300),
        "properties": st.dictionaries(
            st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "x"]) | names, names, max_size=4
        ),
        "queue_id": st.integers(0, 3),
        "born_timestamp": times,
        "born_host": hosts,
        "store_timestamp": times,
        "store_host": hosts,
        "flag": st.integers(-(1 << 31), (1 << 31) - 1),
        "sys_flag": st.sampled_from([0, 4, 8, 12, 0x301]),
        "reconsume_times": st.integers(0, 20),
        "queued": st.booleans(),
    }
)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    log=st.lists(messages, max_size=30),
    file_bytes=st.sampled_from([4096, 16_384]),
    split_bytes=st.sampled_from([None, 1, 300, 3000]),
)
def test_random_stores_equal_the_struct_decoder(
    *,
    log: list[dict[str, Any]],
    file_bytes: int,
    split_bytes: int | None,
    make_store: Any,
    expected_rows: Any,
    rows_of: Any,
) -> None:
    """Both versions, both IP families mixed, messages that no queue names, any cut."""
    store = make_store(file_bytes)
    # Folder names must be plain, and consume queues are folders.
    for message in log:
        plain = not message["queued"] or message["topic"].isascii()
        store.append(**(message | {"queued": message["queued"] and plain}))
    store.set_watermark(store.end)
    batches = read(store.path, split_bytes=split_bytes)
    assert rows_of(batches) == expected_rows(store.records)
    assert {batch.schema for batch in batches} <= {arrow_schema()}


@pytest.mark.parametrize("records_max", [1, 2, 7])
def test_batches_of_any_size_hold_the_same_rows(
    records_max: int, small_store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch ends at a number of records, or of bytes, and the next goes on there."""
    whole = offsets(small_store.path)
    assert whole == [record.physical_offset for record in small_store.records]
    monkeypatch.setattr(record_fields, "BATCH_RECORDS_MAX", records_max)
    assert offsets(small_store.path) == whole
    monkeypatch.setattr(record_fields, "BATCH_BYTES_MAX", 500)
    assert offsets(small_store.path) == whole


def test_bodies_that_unpack_to_much_come_in_smaller_batches(
    make_store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a batch stays bounded whatever producers compressed."""
    store = make_store()
    plain = [bytes([i]) * 1000 for i in range(20)]
    for body in plain:
        store.append(body=zlib.compress(body), sys_flag=1)
    store.set_watermark(store.end)
    monkeypatch.setattr(message_batch, "BODIES_BYTES_MAX", 2500)
    batches = read(store.path, ReadOptions())
    assert [body for batch in batches for body in batch["body"].to_pylist()] == plain
    assert max(batch.num_rows for batch in batches) == 2


def test_only_the_columns_asked_for(small_store: Any) -> None:
    """In the order asked for, with the types of the whole."""
    (part, *_) = plan_ranges(small_store.path, FILE_SYSTEM, split_bytes=None)
    for columns in (("body", "topic"), *((name,) for name in ALL_COLUMNS)):
        (batch,) = read_range(part, FILE_SYSTEM, AS_STORED, columns)
        assert batch.schema == arrow_schema(columns)
        assert batch.num_rows > 0


def test_times_that_spark_cannot_hold_are_null(make_store: Any) -> None:
    """The producer's clock may say anything."""
    store = make_store()
    last = 253_402_300_799_999
    for born in (-1 << 63, -62_135_596_800_001, -62_135_596_800_000, last, last + 1, (1 << 63) - 1):
        store.append(born_timestamp=born)
    store.set_watermark(store.end)
    (batch,) = read(store.path)
    assert [time is None for time in batch["born_timestamp"].to_pylist()] == [
        *(True, True, False, False, True, True)
    ]


def test_spaces_between_keys_are_no_keys(make_store: Any) -> None:
    """As for the index."""
    store = make_store()
    for keys in ("a", " a  b ", " "):
        store.append(properties={"KEYS": keys})
    store.append()
    store.set_watermark(store.end)
    (batch,) = read(store.path)
    assert batch["keys"].to_pylist() == [["a"], ["a", "b"], [], None]


# What is asked for


@pytest.mark.parametrize("split_bytes", [None, 1])
def test_filters_choose_rows(small_store: Any, split_bytes: int | None) -> None:
    """By topic, offset and time; bounds include the start and exclude the end."""
    records = small_store.records
    path = small_store.path
    low, high = records[10], records[20]

    def chosen(**bounds: Any) -> list[int]:
        return offsets(path, ReadOptions(**bounds), split_bytes=split_bytes)

    assert chosen(topics=frozenset({"Orders", "none"})) == [
        r.physical_offset for r in records if r.topic == "Orders"
    ]
    assert chosen(topics=frozenset()) == []
    between = [r.physical_offset for r in records[10:20]]
    assert (
        chosen(starting_offset=low.physical_offset, ending_offset=high.physical_offset) == between
    )
    assert (
        chosen(starting_timestamp=low.store_timestamp, ending_timestamp=high.store_timestamp)
        == between
    )
    after = chosen(starting_offset=low.physical_offset + 1)
    assert after == [r.physical_offset for r in records[11:]]


# The end of the log


def test_nothing_behind_the_watermark_is_read(small_store: Any) -> None:
    """At whatever record it stands, in whatever file."""
    whole = [record.physical_offset for record in small_store.records]
    (small_store.path / "commitbus" / "watermark").unlink()
    for i in range(len(whole)):
        small_store.set_watermark(whole[i])
        assert offsets(small_store.path, split_bytes=1000) == whole[:i]


def test_without_a_watermark_the_whole_intact_log_is_read(make_store: Any) -> None:
    """A store that was stopped cleanly ends in zeros, anything else there is damage."""
    store = make_store()
    for _ in range(10):
        store.append(body=bytes(1000))
    whole = [record.physical_offset for record in store.records]
    assert offsets(store.path) == whole
    store.overwrite(store.end, b"rest of something")
    with pytest.raises(CorruptRecordError) as damage:
        offsets(store.path)
    assert damage.value.physical_offset == store.end


def test_a_torn_end_is_the_end(make_store: Any, caplog: pytest.LogCaptureFixture) -> None:
    """An abort file tells that the writer was killed, or runs; its last write may be cut short."""
    store = make_store()
    for _ in range(3):
        store.append(properties={"KEYS": "k"})
    (store.path / "abort").write_text("1")
    whole = [record.physical_offset for record in store.records]
    last = whole[-1]
    image = bytes(store.log[last : store.end])
    with caplog.at_level(logging.WARNING):
        for length in range(len(image)):
            store.overwrite(last, image[:length] + bytes(len(image) - length))
            assert offsets(store.path) == whole[:2]
    assert f"physical offset {last}" in caplog.text
    store.overwrite(last, image)
    assert offsets(store.path) == whole


def test_the_end_may_be_a_few_bytes_before_the_end_of_the_file(make_store: Any) -> None:
    """Fewer than a blank record takes."""
    store = make_store(500)
    store.append(body=b"x" * 396)
    assert store.end == 492
    assert offsets(store.path) == [0]
    log = store.path / "commitlog" / f"{0:020}"
    log.write_bytes(log.read_bytes()[: store.end + 3])
    assert offsets(store.path) == [0]


# Damage


def flip(store: Any, offset: int) -> None:
    store.overwrite(offset, bytes([store.log[offset] ^ 0x40]))


def test_any_flipped_byte_that_the_struct_decoder_sees_is_seen(
    make_store: Any, expected_rows: Any, rows_of: Any
) -> None:
    """The rows are never other than those of the struct decoder, which raises where we raise."""
    store = make_store()
    for i in range(3):
        store.append(body=bytes([i]) * 5, properties={"KEYS": f"k{i}"})
    store.set_watermark(store.end)
    middle, behind = store.records[1].physical_offset, store.records[2].physical_offset
    image = bytes(store.log)
    seen = 0
    for offset in range(middle, behind):
        flip(store, offset)
        view = memoryview(bytes(store.log[middle : store.end]))
        try:
            record = decode_record(view, PhysicalOffset(middle))
            assert record.size_bytes == behind - middle
        except (CorruptRecordError, AssertionError):
            seen += 1
            with pytest.raises(CorruptRecordError) as damage:
                read(store.path)
            assert damage.value.physical_offset == middle
            assert str(store.path / "commitlog") in str(damage.value)
            kept = [store.records[0].physical_offset, behind]
            assert offsets(store.path, DROP) == kept
        else:
            changed = [store.records[0], record, store.records[2]]
            assert rows_of(read(store.path)) == expected_rows(changed)
        store.overwrite(middle, image[middle:behind])
    assert seen > 30


def test_bodies_are_not_verified_if_not_asked_for(make_store: Any) -> None:
    """The option `verify`."""
    store = make_store()
    store.append(body=b"body")
    store.set_watermark(store.end)
    flip(store, 88)
    with pytest.raises(CorruptRecordError, match="checksum"):
        read(store.path)
    (batch,) = read(store.path, replace(AS_STORED, verify=False))
    assert batch["body"].to_pylist() == [b"\x22ody"]


def test_a_forged_record_in_a_body_is_never_a_row(make_store: Any) -> None:
    """Not with any cut, and not when the damage before it makes the reader look for the next."""
    store = make_store()
    first = store.append()
    host = first.born_host
    forged_offset = store.end + 88
    forged = encode_record(
        topic="Forged", body=b"x" * 500, properties=b"", queue_id=0, queue_offset=0,
        physical_offset=forged_offset, born_timestamp=0, born_host=host, store_timestamp=0,
        store_host=host,
    )  # fmt: skip
    outer = store.append(body=forged).physical_offset
    last = store.append().physical_offset
    store.set_watermark(store.end)
    for split_bytes in (None, *range(1, store.end, 7)):
        assert offsets(store.path, split_bytes=split_bytes) == [0, outer, last]
    store.overwrite(outer, bytes(4))
    assert offsets(store.path, DROP) == [0, last]


def test_a_queue_that_names_a_forged_record_makes_the_read_fail(make_store: Any) -> None:
    """Whoever reads the range before it does not meet the cut: an error, never a wrong row."""
    store = make_store()
    first = store.append()
    host = first.born_host
    forged_offset = store.end + 88
    forged = encode_record(
        topic="Forged", body=b"", properties=b"", queue_id=0, queue_offset=0,
        physical_offset=forged_offset, born_timestamp=0, born_host=host, store_timestamp=0,
        store_host=host,
    )  # fmt: skip
    outer = store.append(body=forged)
    store.set_watermark(store.end)
    queue = store.path / "consumequeue" / "Topic" / "0" / f"{0:020}"
    queue.write_bytes(queue.read_bytes() + struct.pack(">qiq", forged_offset, len(forged), 0))
    with pytest.raises(CorruptRecordError, match="reaches beyond") as damage:
        offsets(store.path, split_bytes=1)
    assert damage.value.physical_offset == outer.physical_offset


def test_a_topic_that_is_no_text_is_damage(make_store: Any) -> None:
    """Topics are names, so their bytes are checked."""
    store = make_store()
    for topic in ("Same", "Other", "Same"):
        store.append(topic=topic)
    store.set_watermark(store.end)
    offset = store.records[1].physical_offset
    store.overwrite(store.log.index(b"Other"), b"\xffther")
    with pytest.raises(CorruptRecordError, match="topic") as damage:
        read(store.path)
    assert damage.value.physical_offset == offset
    assert offsets(store.path, DROP) == [0, store.records[2].physical_offset]


def test_properties_of_which_a_page_is_missing_are_damage(make_store: Any) -> None:
    """They carry no checksum, but they hold no runs of zeros."""
    store = make_store()
    store.append(properties={"x": "y" * 2000})
    store.append(properties={"x": "y" * 2000})
    store.set_watermark(store.end)
    assert len(offsets(store.path)) == 2
    store.overwrite(1000, bytes(512))
    with pytest.raises(CorruptRecordError, match="properties"):
        read(store.path)


def test_a_file_that_has_shrunk_is_damage(small_store: Any) -> None:
    """It would be a fault of the mapping otherwise."""
    (part, *_) = plan_ranges(small_store.path, FILE_SYSTEM, split_bytes=None)
    part.path.write_bytes(part.path.read_bytes()[:-1])
    with pytest.raises(CorruptRecordError, match="shorter"):
        list(read_range(part, FILE_SYSTEM, AS_STORED))


def test_a_file_that_retention_deleted_is_an_error(small_store: Any) -> None:
    """Rows that were planned are not left out silently."""
    part: LogRange = plan_ranges(small_store.path, FILE_SYSTEM, split_bytes=None)[0]
    assert part.end_is is RangeEnd.EXACT
    part.path.unlink()
    with pytest.raises(FileNotFoundError, match=part.path.name):
        list(read_range(part, FILE_SYSTEM, AS_STORED))
