"""Requests put together by hand where protobuf would copy the records three times more."""

from __future__ import annotations

from typing import Final

from commitbus.broker.rpc.proto import bulk_v1_pb2 as pb

_LENGTH_DELIMITED: Final = 2


def append_request(head: pb.AppendBatch, records: bytes) -> tuple[bytes, bytes]:
    """Return an `AppendRequest` in two pieces, the second of which is `records` as it is.

    Protobuf takes the fields of a message in any order, so `records` may come last.

    Args:
        head: The batch without its records.
        records: What is to be its field of that name.
    """
    fields = head.SerializeToString()
    records_tag = _tag(pb.AppendBatch.RECORDS_FIELD_NUMBER) + _varint(len(records))
    batch_bytes = len(fields) + len(records_tag) + len(records)
    batch_tag = _tag(pb.AppendRequest.BATCH_FIELD_NUMBER) + _varint(batch_bytes)
    return batch_tag + fields + records_tag, records


def _tag(field_number: int) -> bytes:
    return _varint(field_number << 3 | _LENGTH_DELIMITED)


def _varint(number: int) -> bytes:
    """Return 7 bits a byte, the lowest first, the top bit set in all but the last byte."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
