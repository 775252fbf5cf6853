"""The bytes of a record."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitbus.commitlog import record_format
from commitbus.commitlog.errors import CorruptRecordError
from commitbus.commitlog.record_format import (
    MESSAGE_MAGIC_CODE_V1,
    MESSAGE_MAGIC_CODE_V2,
    decode_properties,
    decode_record,
    decode_store_timestamp,
    encode_properties,
    offset_message_id,
    parse_offset_message_id,
    tags_code,
)
from commitbus.commitlog.types import Host, PhysicalOffset
from tests.records import decode_dispatch_request, encode_record, record_size

V4 = Host.parse("10.1.2.3", 4567)
V6 = Host.parse("2001:db8::7", 10911)
AT = PhysicalOffset(1 << 40)
NO_SEPARATORS = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]))


def record(**changes: Any) -> bytes:
    fields: dict[str, Any] = {
        "topic": "topic",
        "body": b"some body",
        "properties": encode_properties({"TAGS": "a", "KEYS": "k1 k2", "UNIQ_KEY": "u"}),
        "queue_id": 3,
        "queue_offset": 9,
        "physical_offset": AT,
        "born_timestamp": 1_700_000_000_000,
        "born_host": V4,
        "store_timestamp": 1_700_000_000_123,
        "store_host": V4,
        "flag": -7,
        "reconsume_times": 2,
        "prepared_transaction_offset": 77,
    }
    return encode_record(**(fields | changes))


def messages_of(shared_dir: Path, name: str) -> list[dict[str, Any]]:
    text = (shared_dir / "fixtures" / f"{name}-store.expected.json").read_text()
    messages: list[dict[str, Any]] = json.loads(text)["messages"]
    return messages


def log_bytes(store: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((store / "commitlog").iterdir()))


# What RocketMQ wrote


@pytest.mark.shared
@pytest.mark.parametrize("name", ["broker", "directA"])
def test_every_message_that_rocketmq_wrote_is_read_as_it_reads_it(
    name: str, shared_dir: Path, rocketmq_stores: dict[str, Path]
) -> None:
    """All fields, the consume queue's tags code and the index's keys equal RocketMQ's own."""
    log = memoryview(log_bytes(rocketmq_stores[name]))
    for expected in messages_of(shared_dir, name):
        offset = PhysicalOffset(expected["commitLogOffset"])
        got = decode_record(log[offset:], offset)
        assert {
            "topic": got.topic,
            "queueId": got.queue_id,
            "queueOffset": got.queue_offset,
            "storeSize": got.size_bytes,
            "flag": got.flag,
            "sysFlag": got.sys_flag,
            "bodyCRC": got.body_crc,
            "bodySize": len(got.body),
            "bodySha256": hashlib.sha256(got.body).hexdigest(),
            "bornTimestamp": got.born_timestamp,
            "storeTimestamp": got.store_timestamp,
            "reconsumeTimes": got.reconsume_times,
            "preparedTransactionOffset": got.prepared_transaction_offset,
            "properties": got.properties,
            "magic": f"0x{got.magic_code:08x}",
        }.items() <= expected.items()
        assert got.born_host == parse_java_host(expected["bornHost"])
        assert got.store_host == parse_java_host(expected["storeHost"])
        assert offset_message_id(got.store_host, offset) == expected["msgId"]
        assert parse_offset_message_id(expected["msgId"]) == (got.store_host, offset)
        assert decode_store_timestamp(log[offset:], offset) == got.store_timestamp
        request = decode_dispatch_request(log[offset:], offset)
        assert (request.tags_code, request.size_bytes, request.topic) == (
            expected["cqTagsCode"],
            expected["cqSize"],
            expected["cqTopic"],
        )
        keys = [request.unique_key] if request.unique_key else []
        assert keys + request.keys.split() == expected["indexedKeys"]


def parse_java_host(text: str) -> Host:
    address, _, port = text.lstrip("/").rpartition(":")
    return Host.parse(address.strip("[]"), int(port))


@pytest.mark.shared
@pytest.mark.parametrize("name", ["broker", "directA"])
def test_encoding_what_was_decoded_gives_rocketmqs_bytes(
    name: str, shared_dir: Path, rocketmq_stores: dict[str, Path]
) -> None:
    """Decoding loses nothing, and encoding differs from RocketMQ's in no byte."""
    log = memoryview(log_bytes(rocketmq_stores[name]))
    for expected in messages_of(shared_dir, name):
        offset = PhysicalOffset(expected["commitLogOffset"])
        got = decode_record(log[offset:], offset)
        again = encode_record(
            topic=got.topic,
            body=got.body,
            properties=encode_properties(got.properties),
            queue_id=got.queue_id,
            queue_offset=got.queue_offset,
            physical_offset=offset,
            born_timestamp=got.born_timestamp,
            born_host=got.born_host,
            store_timestamp=got.store_timestamp,
            store_host=got.store_host,
            flag=got.flag,
            sys_flag=got.sys_flag,
            reconsume_times=got.reconsume_times,
            prepared_transaction_offset=got.prepared_transaction_offset,
        )
        assert again == log[offset : offset + got.size_bytes]


# Round trips


FIELDS = st.fixed_dictionaries(
    {
        "topic": NO_SEPARATORS.filter(lambda t: 0 < len(t.encode()) <= 255 and "\0" not in t),
        "body": st.binary(max_size=300),
        "born_host": st.sampled_from([V4, V6]),
        "store_host": st.sampled_from([V4, V6]),
        "store_timestamp": st.integers(0, 1 << 62),
        "queue_id": st.integers(-(1 << 31), (1 << 31) - 1),
        "reconsume_times": st.integers(0, (1 << 31) - 1),
    }
)


@given(FIELDS, st.dictionaries(NO_SEPARATORS.filter(bool), NO_SEPARATORS, max_size=5))
def test_what_is_encoded_is_decoded(fields: dict[str, Any], properties: dict[str, str]) -> None:
    """Every field survives, for both versions and all pairs of host families."""
    encoded = encode_properties(properties)
    data = record(properties=encoded, **fields)
    got = decode_record(memoryview(data + b"what follows does not matter"), AT)
    assert {name: getattr(got, name) for name in fields} == fields
    assert (got.properties, got.flag, got.queue_offset) == (properties, -7, 9)
    topic_bytes = len(got.topic.encode())
    assert got.magic_code == (MESSAGE_MAGIC_CODE_V2 if topic_bytes > 127 else MESSAGE_MAGIC_CODE_V1)
    assert got.size_bytes == len(data)
    assert got.size_bytes == record_size(
        topic_bytes, len(got.body), len(encoded), sys_flag=got.sys_flag
    )
    request = decode_dispatch_request(memoryview(data), AT)
    assert request.tags == properties.get("TAGS", "")


@given(st.dictionaries(NO_SEPARATORS.filter(bool), NO_SEPARATORS))
def test_properties_come_back_in_order(properties: dict[str, str]) -> None:
    """Names, values and order survive; the last separator may be missing."""
    data = encode_properties(properties)
    assert list(decode_properties(data).items()) == list(properties.items())
    assert decode_properties(data[:-1]) == properties


@pytest.mark.parametrize("bad", [{"": "v"}, {"a\x01": "v"}, {"a": "v\x02TAGS\x01forged"}])
def test_properties_that_would_read_back_differently_are_refused(bad: dict[str, str]) -> None:
    """A value cannot smuggle in another property."""
    with pytest.raises(ValueError, match="property"):
        encode_properties(bad)


def test_properties_of_others_are_read_tolerantly() -> None:
    """Items without a name or separator are passed over; the last of equal names counts."""
    assert decode_properties(b"a\x01\x02x\x02\x01v\x02b\x011\x02b\x012") == {"a": "", "b": "2"}
    assert decode_properties(b"a\x01\xff") == {"a": "\ufffd"}


# Damage


SHAPES: dict[str, dict[str, Any]] = {
    "version 1": {},
    "version 2": {"topic": "t" * 200},
    "IPv6": {"born_host": V6, "store_host": V6},
    "no body": {"body": b"", "properties": b""},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_truncated_record_is_corrupt(shape: str) -> None:
    """However many bytes are missing, nothing but the one error comes of it."""
    data = memoryview(record(**SHAPES[shape]))
    for length in range(len(data)):
        with pytest.raises(CorruptRecordError):
            decode_record(data[:length], AT)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("change", [0xFF, 0x01, 0x80])
def test_a_flipped_byte_is_an_error_or_another_record(shape: str, change: int) -> None:
    """No byte value leads to any other exception; the size and the body are always guarded."""
    intact = record(**SHAPES[shape])
    body_start = intact.find(b"some body")
    for index in range(len(intact)):
        data = bytearray(intact)
        data[index] ^= change
        view = memoryview(data)
        try:
            decode_record(view, AT)
            decode_dispatch_request(view, AT)
            guarded = range(8), range(28, 36), range(body_start, body_start + 9)
            assert not any(index in part for part in guarded if part.start >= 0), index
        except CorruptRecordError:
            continue


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_corrupt(data: bytes) -> None:
    """Noise is refused, also with a plausible size and magic code in front."""
    for view in (data, MAGIC_START + data):
        with pytest.raises(CorruptRecordError):
            decode_record(memoryview(view), AT)


MAGIC_START = (150).to_bytes(4, "big") + MESSAGE_MAGIC_CODE_V1.to_bytes(4, "big")


@pytest.mark.parametrize("lost", [512, 4096])
def test_a_sector_that_was_never_written_is_noticed_in_the_properties(lost: int) -> None:
    """No checksum covers properties, so a long run of zeros is what betrays a torn write."""
    properties = encode_properties({"long": "x" * 3 * lost})
    data = bytearray(record(properties=properties))
    start = len(data) - 2 * lost
    data[start : start + lost] = bytes(lost)
    with pytest.raises(CorruptRecordError, match="not written whole"):
        decode_record(memoryview(data), AT)
    data = bytearray(record())
    data[-1] = 0
    with pytest.raises(CorruptRecordError, match="not written whole"):
        decode_record(memoryview(data), AT)


def test_the_checksum_can_be_left_out() -> None:
    """Reput reads what was just appended; it pays for no second checksum."""
    data = bytearray(record())
    data[data.find(b"some body")] ^= 1
    with pytest.raises(CorruptRecordError, match="checksum"):
        decode_record(memoryview(data), AT)
    assert decode_record(memoryview(data), AT, verify=False).topic == "topic"


@pytest.mark.parametrize("topic", [b"t\0pic", b"\xff\xfe\xfd\xfc\xfb"])
def test_a_topic_that_is_no_text_is_corrupt(topic: bytes) -> None:
    """Whatever becomes a directory name must at least be text."""
    data = record().replace(b"topic", topic)
    with pytest.raises(CorruptRecordError, match="topic"):
        decode_record(memoryview(data), AT)


def test_remembered_topics_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A million topics in one log do not stay in memory for ever."""
    monkeypatch.setattr(record_format, "_TOPICS_MAX", 4)
    record_format._topics.clear()
    for number in range(10):
        topic = f"bounded-{number}"
        assert decode_record(memoryview(record(topic=topic)), AT).topic == topic
    assert len(record_format._topics) <= 4


def test_store_timestamp_needs_a_message() -> None:
    """A blank record or a fragment has none."""
    for data in (bytes(200), b"\0" * 10):
        with pytest.raises(CorruptRecordError):
            decode_store_timestamp(memoryview(data), AT)


# Dispatching


def test_a_scheduled_message_is_queued_by_its_due_time() -> None:
    """In the schedule topic the tags code is the store time plus the level's delay."""

    def code(level: str) -> int:
        properties = encode_properties({"DELAY": level, "TAGS": "a"})
        data = record(topic="SCHEDULE_TOPIC_XXXX", properties=properties, store_timestamp=1000)
        return decode_dispatch_request(memoryview(data), AT).tags_code

    assert code("1") == 2_000
    assert code("18") == code("99") == 1000 + 7_200_000
    for none in ("0", "x", "²", "9" * 30):
        assert code(none) == tags_code("a")


def test_the_last_of_equal_properties_is_dispatched() -> None:
    """As when decoding all of them; and a name is not found inside another or in a value."""
    properties = b"XTAGS\x01no\x02TAGS\x01first\x02TAGS\x01last\x02v\x01TAGS\x02"
    request = decode_dispatch_request(memoryview(record(properties=properties)), AT)
    assert (request.tags, request.keys, request.unique_key) == ("last", "", "")
    assert request.tags_code == tags_code("last")


@pytest.mark.parametrize("text", ["", "0" * 31, "g" * 32, "0" * 33, "0 " * 16, "\uff10" * 32])
def test_a_malformed_offset_message_id_is_refused(text: str) -> None:
    """Ids come from operators; whatever they type, it is a `ValueError`."""
    with pytest.raises(ValueError, match=r"."):
        parse_offset_message_id(text)


@pytest.mark.parametrize("host", [V4, V6])
def test_offset_message_ids_round_trip(host: Host) -> None:
    """Both families, 32 and 56 digits."""
    text = offset_message_id(host, AT)
    assert parse_offset_message_id(text) == (host, AT)
    assert len(text) == (56 if host.is_ipv6 else 32)
