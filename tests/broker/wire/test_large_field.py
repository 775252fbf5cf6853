"""The field that is put in and taken out by hand is the one that protobuf reads and writes."""

from __future__ import annotations

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from commitbus.broker.rpc.proto import bulk_v1_pb2 as pb
from commitbus.broker.wire.large_field import FIELDS_MAX, before_field, take_out

RECORDS = pb.FetchResponse.RECORDS_FIELD_NUMBER


@given(
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.integers(0, 70_000),
    st.binary(max_size=300),
    st.none() | st.integers(0, (1 << 32) - 1),
)
def test_both_ways_agree_with_protobuf(
    first_offset: int, records_bytes: int, sizes: bytes, checksum: int | None
) -> None:
    head = pb.FetchResponse(first_offset=first_offset, sizes=sizes, checksum=checksum)
    records = b"r" * records_bytes
    whole = pb.FetchResponse(records=records)
    whole.MergeFrom(head)
    by_hand = before_field(head.SerializeToString(), RECORDS, len(records)) + records
    assert pb.FetchResponse.FromString(by_hand) == whole
    # Protobuf puts the records before the sizes and the checksum.
    for encoded in (by_hand, whole.SerializeToString()):
        others, place = take_out(memoryview(encoded), RECORDS)
        assert encoded[place] == records
        assert pb.FetchResponse.FromString(others) == head


fields = st.sampled_from(
    [
        pb.FetchResponse(queue_id=-1).SerializeToString(),
        pb.FetchResponse(sizes=b"abcd", checksum=1 << 31).SerializeToString(),
        pb.FetchResponse(records=b"records").SerializeToString(),
        pb.FetchResponse(records=b"").SerializeToString(),
        b"\xfa\x01\x02no",  # a number that is not known
        b"\x61eightsay",
    ]
)


@given(st.lists(fields | st.binary(max_size=6), max_size=5).map(b"".join))
def test_whatever_comes_is_what_protobuf_makes_of_it_or_refused(data: bytes) -> None:
    """In any order, repeated, unknown, damaged."""
    try:
        others, place = take_out(memoryview(data), RECORDS)
        found = pb.FetchResponse.FromString(others)
    except DecodeError:
        return
    found.records = data[place]
    expected = pb.FetchResponse.FromString(data)
    for message in (found, expected):
        message.DiscardUnknownFields()
    assert found == expected


def test_of_a_field_that_comes_twice_the_last_one_counts() -> None:
    data = b"".join(before_field(b"", RECORDS, 1) + value for value in (b"a", b"b"))
    others, place = take_out(memoryview(data), RECORDS)
    assert (others, data[place]) == (b"", b"b")
    assert pb.FetchResponse.FromString(data).records == b"b"


@pytest.mark.parametrize(
    "damaged",
    [
        before_field(b"", RECORDS, 2) + b"x",
        before_field(b"", RECORDS, 300)[:-1],
        b"\x80" * 11 + b"\x01",
        b"\x33",
        b"\x09short",
        b"\x08\x01" * (FIELDS_MAX + 1),
    ],
)
def test_what_is_no_message_is_refused(damaged: bytes) -> None:
    with pytest.raises(DecodeError):
        take_out(memoryview(damaged), RECORDS)
