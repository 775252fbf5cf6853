"""The hand-made fields are those that protobuf makes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from commitbus.broker.rpc.proto.wire_format import delimited, key_of, length, read_varint, varint


@given(st.one_of(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-300, 300)))
def test_integers_are_protobufs(value: int) -> None:
    field = key_of(pb.SystemProperties, "queue_offset") + varint(value)
    assert field == pb.SystemProperties(queue_offset=value).SerializeToString()


@given(st.integers(0, (1 << 64) - 1), st.binary(max_size=3))
def test_an_integer_is_read_back(value: int, before: bytes) -> None:
    data = before + varint(value)
    assert read_varint(memoryview(data + b"\x01"), len(before)) == (value, len(data))


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff" * 9, b"\x80" * 10 + b"\x01"])
def test_an_integer_without_an_end_is_none(data: bytes) -> None:
    with pytest.raises(LookupError):
        read_varint(memoryview(data), 0)


@pytest.mark.parametrize("size", [1, 127, 128, 16_383, 16_384, 3_000_000])
def test_bytes_are_protobufs(size: int) -> None:
    body = bytes(size)
    key = key_of(pb.Message, "body")
    assert delimited(key, body) == pb.Message(body=body).SerializeToString()
    assert key + length(memoryview(body)) + body == delimited(key, body)


def test_an_empty_text_is_a_field_too() -> None:
    """Where protobuf knows whether a field is there."""
    expected = pb.SystemProperties(tag="").SerializeToString()
    assert delimited(key_of(pb.SystemProperties, "tag"), b"") == expected


def test_a_key_is_made_only_for_the_types_that_are_known() -> None:
    with pytest.raises(AssertionError, match="multiplier"):
        key_of(pb.ExponentialBackoff, "multiplier")
