"""What a consumer gets is what protobuf would make of the stored message."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from commitbus.broker.core.outgoing import TIMESTAMP_MS_MAX, message_id
from commitbus.broker.core.properties import HIDDEN_KEYS
from commitbus.broker.filters.tag_filter import EVERYTHING, TagFilter
from commitbus.broker.messaging.delivered import response_encoder
from commitbus.broker.receiving.encoder import encode_message
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from commitbus.commitlog.errors import CorruptRecordError
from commitbus.commitlog.record_format import decode_record, encode_properties
from commitbus.commitlog.types import Host, PhysicalOffset, Record
from tests.records import encode_record

I32, I64 = (1 << 31) - 1, (1 << 63) - 1

texts = st.text(
    st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), max_size=150
)
names = st.one_of(st.sampled_from(sorted(HIDDEN_KEYS)), texts.filter(bool))
hosts = st.builds(
    Host,
    st.one_of(st.binary(min_size=4, max_size=4), st.binary(min_size=16, max_size=16)),
    st.one_of(st.integers(0, 65535), st.integers(-I32, -1)),
)
records = st.fixed_dictionaries(
    {
        "topic": st.text("abcXYZ-_%", min_size=1, max_size=200),
        "body": st.one_of(st.binary(min_size=1, max_size=300), st.just(bytes(2000))),
        "properties": st.dictionaries(names, texts, max_size=12),
        "queue_id": st.one_of(st.integers(0, 300), st.just(I32)),
        "queue_offset": st.one_of(st.integers(0, 300), st.just(I64)),
        "physical_offset": st.integers(0, I64),
        "born_timestamp": st.integers(-(1 << 63), I64),
        "born_host": hosts,
        "store_timestamp": st.integers(-(1 << 63), I64),
        "store_host": hosts,
        "sys_flag": st.sampled_from([0, 1]),
    }
)


def delivered(
    data: bytes, physical_offset: int, handle: str = "handle", attempt: int | None = 1
) -> pb.Message | None:
    """Return what a client makes of the response, and check that it is all of it."""
    queue_id = decode_record(memoryview(data), PhysicalOffset(physical_offset)).queue_id
    encode = response_encoder(queue_id, attempt)
    found = encode_message(
        encode, memoryview(data), PhysicalOffset(physical_offset), handle, EVERYTHING
    )
    assert found is not None
    response = pb.ReceiveMessageResponse.FromString(found[0])
    assert response.WhichOneof("content") == "message"
    assert found[1] == len(response.message.body)
    response.DiscardUnknownFields()
    assert len(response.SerializeToString()) == len(found[0]), "nothing unknown, nothing twice"
    return response.message


def made_by_protobuf(record: Record, handle: str = "handle", attempt: int | None = 1) -> pb.Message:
    """Return the same, field by field."""
    stored = record.properties
    message = pb.Message(body=record.body)
    message.topic.name = record.topic
    for name, value in stored.items():
        if name not in HIDDEN_KEYS:
            message.user_properties[name] = value
    system = message.system_properties
    system.message_id = message_id(record)
    system.message_type = type_of(stored)
    system.keys.extend(filter(None, stored.get("KEYS", "").split(" ")))
    system.body_encoding = pb.GZIP if record.sys_flag & 1 else pb.IDENTITY
    system.body_digest.type = pb.MD5
    system.body_digest.checksum = (
        hashlib.md5(record.body, usedforsecurity=False).hexdigest().upper()
    )
    for field, ms in (
        (system.born_timestamp, record.born_timestamp),
        (system.store_timestamp, record.store_timestamp),
    ):
        field.FromMilliseconds(min(max(ms, 0), TIMESTAMP_MS_MAX))
        field.SetInParent()
    system.born_host = stored.get("__BORNHOST") or record.born_host.address_text
    system.store_host = str(record.store_host)
    if handle:
        system.receipt_handle = handle
    if attempt is not None:
        system.delivery_attempt = attempt
    system.queue_id, system.queue_offset = record.queue_id, record.queue_offset
    optional: dict[str, Any] = {
        "tag": stored.get("TAGS"),
        "message_group": stored.get("__SHARDINGKEY"),
        "trace_context": stored.get("TRACE_CONTEXT"),
    }
    for name, value in optional.items():
        if value:
            setattr(system, name, value)
    if origin := stored.get("DLQ_ORIGIN_TOPIC"):
        system.dead_letter_queue.topic = origin
        system.dead_letter_queue.message_id = stored.get("DLQ_ORIGIN_MESSAGE_ID", "")
    return message


def type_of(stored: Mapping[str, str]) -> pb.MessageType:
    if stored.get("TRAN_MSG") == "true":
        return pb.TRANSACTION
    marks = {
        "TIMER_DELIVER_MS": pb.DELAY,
        "__SHARDINGKEY": pb.FIFO,
        "_SYS_MSG_PRIORITY_": pb.PRIORITY,
        "__LITE_TOPIC": pb.LITE,
    }
    return next((kind for name, kind in marks.items() if name in stored), pb.NORMAL)


@given(
    records, st.text(st.characters(codec="ascii"), max_size=300), st.none() | st.integers(1, I32)
)
def test_any_stored_message_is_delivered_as_protobuf_would_encode_it(
    fields: dict[str, Any], handle: str, attempt: int | None
) -> None:
    fields["properties"] = encode_properties(fields["properties"])
    data, offset = encode_record(**fields), fields["physical_offset"]
    record = decode_record(memoryview(data), offset)
    expected = made_by_protobuf(record, handle, attempt)
    assert delivered(data + b"next record", offset, handle, attempt) == expected


@given(st.binary(max_size=80).filter(lambda data: not data.endswith(b"\0")))
@example(b"a\x01\xff\x02b\x01\x01\x02\x01c\x02d\x02a\x01last")
def test_properties_that_are_not_as_they_should_be_are_delivered_as_they_are_read(
    properties: bytes,
) -> None:
    """RocketMQ's producers are not checked: text may be no UTF-8, and separators anywhere."""
    host = Host(b"\x7f\0\0\1", 1)
    data = encode_record(
        topic="T",
        body=b"b",
        properties=properties,
        queue_id=0,
        queue_offset=0,
        physical_offset=0,
        born_timestamp=1,
        born_host=host,
        store_timestamp=1,
        store_host=host,
    )
    record = decode_record(memoryview(data), PhysicalOffset(0))
    assert delivered(data, 0) == made_by_protobuf(record)


def test_messages_that_rocketmq_stored_are_delivered(rocketmq_store: Any) -> None:
    """All of both stores."""
    log = b"".join(
        path.read_bytes() for path in sorted((rocketmq_store.path / "commitlog").iterdir())
    )
    assert rocketmq_store.requests
    for request in rocketmq_store.requests:
        start = request.physical_offset
        data = log[start : start + request.size_bytes]
        record = decode_record(memoryview(data), start)
        assert delivered(data, start) == made_by_protobuf(record)


def test_a_message_with_another_tag_is_not_delivered(record_data: bytes) -> None:
    """A hash that tags share has let it through."""
    encode = response_encoder(0, 1)
    wanted, other = (TagFilter(frozenset({tag})) for tag in ("t", "u"))
    view = memoryview(record_data)
    assert encode_message(encode, view, PhysicalOffset(0), "h", wanted) is not None
    assert encode_message(encode, view, PhysicalOffset(0), "h", other) is None


def test_a_damaged_record_is_not_delivered(record_data: bytes) -> None:
    """Neither its body nor its lengths are believed."""
    damaged = record_data.replace(b"body", b"bxdy")
    with pytest.raises(CorruptRecordError):
        encode_message(
            response_encoder(0, 1), memoryview(damaged), PhysicalOffset(0), "h", EVERYTHING
        )


@pytest.fixture
def record_data() -> bytes:
    """A record with the tag `t`."""
    host = Host(b"\x7f\0\0\1", 1)
    return encode_record(
        topic="T",
        body=b"body",
        properties=encode_properties({"TAGS": "t"}),
        queue_id=0,
        queue_offset=0,
        physical_offset=0,
        born_timestamp=1,
        born_host=host,
        store_timestamp=1,
        store_host=host,
    )
