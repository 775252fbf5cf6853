"""Records made and decoded one at a time: what tests compare the log's own code with."""

from __future__ import annotations

from isal.isal_zlib import crc32

from commitbus.commitlog.record_format import (
    CRC_MASK,
    HEADER_FORMATS,
    HOST_FLAGS,
    MAX_V1_TOPIC_BYTES,
    PROPERTIES_LENGTH,
    EncodedTopic,
    check_record,
    dispatch_request,
    encode_topic,
    host_flags,
)
from commitbus.commitlog.types import DispatchRequest, Host, PhysicalOffset


def encode_payload(body: bytes, topic: EncodedTopic, properties: bytes) -> bytes:
    """Return everything of a record behind its header."""
    return b"".join((body, topic.prefixed, PROPERTIES_LENGTH.pack(len(properties)), properties))


def record_size(
    topic_bytes: int, body_bytes: int, properties_bytes: int, *, sys_flag: int = 0
) -> int:
    """Return the size of a record in bytes from the sizes of its parts and its host bits."""
    return (
        HEADER_FORMATS[sys_flag & HOST_FLAGS].size
        + body_bytes
        + (1 if topic_bytes <= MAX_V1_TOPIC_BYTES else 2)
        + topic_bytes
        + 2
        + properties_bytes
    )


def encode_record(
    *,
    topic: str,
    body: bytes,
    properties: bytes,
    queue_id: int,
    queue_offset: int,
    physical_offset: int,
    born_timestamp: int,
    born_host: Host,
    store_timestamp: int,
    store_host: Host,
    flag: int = 0,
    sys_flag: int = 0,
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
) -> bytes:
    """Return a whole record. The host bits of `sys_flag` are set from the hosts.

    The log's own append writes the same header format and payload in place instead.
    """
    encoded_topic = encode_topic(topic.encode())
    payload = encode_payload(body, encoded_topic, properties)
    sys_flag = sys_flag & ~HOST_FLAGS | host_flags(born_host, store_host)
    layout = HEADER_FORMATS[sys_flag & HOST_FLAGS]
    header = layout.pack(
        layout.size + len(payload),
        encoded_topic.magic_code,
        crc32(body) & CRC_MASK,
        queue_id,
        flag,
        queue_offset,
        physical_offset,
        sys_flag,
        born_timestamp,
        *born_host,
        store_timestamp,
        *store_host,
        reconsume_times,
        prepared_transaction_offset,
        len(body),
    )
    return header + payload


def decode_dispatch_request(view: memoryview, physical_offset: PhysicalOffset) -> DispatchRequest:
    """Return what reput needs of the record that begins with `view`, without its checksum.

    Raises:
        CorruptRecordError: The bytes are not a whole record.
    """
    checked = check_record(view, 0, physical_offset, verify_crc=False)
    return dispatch_request(view, physical_offset, checked)
