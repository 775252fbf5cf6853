"""A request in pieces is the request that protobuf makes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from commitbus.broker.client.requests import append_request
from commitbus.broker.rpc.proto import bulk_v1_pb2 as pb


@given(
    st.integers(0, (1 << 64) - 1),
    st.none() | st.integers(0, (1 << 31) - 1),
    st.binary(max_size=300),
    st.integers(0, 70_000),
)
def test_protobuf_reads_what_was_put_together(
    sequence: int, queue_id: int | None, lengths: bytes, records_bytes: int
) -> None:
    head = pb.AppendBatch(sequence=sequence, queue_id=queue_id, lengths=lengths)
    records = b"r" * records_bytes
    pieces = append_request(head, records)
    assert pieces[1] is records
    expected = pb.AppendRequest(batch=head)
    expected.batch.records = records
    assert pb.AppendRequest.FromString(b"".join(pieces)) == expected
