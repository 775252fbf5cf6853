"""Requests put together by hand where protobuf would copy the records three times more."""

from __future__ import annotations

from commitbus.broker.rpc.proto import bulk_v1_pb2 as pb
from commitbus.broker.wire.large_field import before_field


def append_request(head: pb.AppendBatch, records: bytes) -> tuple[bytes, bytes]:
    """Return an `AppendRequest` in two pieces, the second of which is `records` as it is.

    Protobuf takes the fields of a message in any order, so `records` may come last.

    Args:
        head: The batch without its records.
        records: What is to be its field of that name.
    """
    before_records = before_field(
        head.SerializeToString(), pb.AppendBatch.RECORDS_FIELD_NUMBER, len(records)
    )
    batch_bytes = len(before_records) + len(records)
    before = before_field(b"", pb.AppendRequest.BATCH_FIELD_NUMBER, batch_bytes)
    return before + before_records, records
