"""The bytes of a batch of messages as they lie in the log. A single one `append` encodes itself."""

from __future__ import annotations

from collections.abc import Sequence

from isal.isal_zlib import crc32

from commitbus.commitlog.errors import MessageRefusedError
from commitbus.commitlog.record_format import (
    BORN_HOST_IPV6_FLAG,
    CRC_MASK,
    HEADER_FORMATS,
    HOST_FLAGS,
    MAX_PROPERTIES_BYTES,
    PROPERTIES_LENGTH,
    STORE_HOST_IPV6_FLAG,
    TRANSACTION_PREPARED,
    ZERO_RUN,
    ZERO_RUN_BYTES,
)
from commitbus.commitlog.topics import Topic, Topics
from commitbus.commitlog.types import (
    AppendResult,
    Host,
    OutgoingMessage,
)

_pack_properties_length = PROPERTIES_LENGTH.pack
_new = tuple.__new__
"""Half the cost of calling a `NamedTuple`, as it bypasses a `__new__` written in Python."""


def check_sizes(body: bytes, properties: bytes, max_body_bytes: int) -> None:
    """Refuse what the format does not take.

    Raises:
        MessageRefusedError: The body or the properties are too long, or hold a run of zeros.
    """
    if len(body) > max_body_bytes:
        raise MessageRefusedError("the body", len(body), max_body_bytes)
    if len(properties) > MAX_PROPERTIES_BYTES:
        raise MessageRefusedError("the properties", len(properties), MAX_PROPERTIES_BYTES)
    if ZERO_RUN in properties:
        # Recovery would take such a record for one whose pages were only partly written.
        raise MessageRefusedError(
            "a run of zeros in the properties", ZERO_RUN_BYTES, ZERO_RUN_BYTES - 1
        )


def encode_batch(
    messages: Sequence[OutgoingMessage],
    topics: Topics,
    store_host: Host,
    max_body_bytes: int,
    physical_offset: int,
    *,
    timestamp: int,
) -> tuple[list[bytes], list[AppendResult], dict[tuple[Topic, int], int]]:
    """Return the records as they lie from an offset on, where each lies, and the queues' new ends.

    The first record's size is 0, which hides the batch until that is replaced. Raises as
    `check_sizes`.
    """
    parts: list[bytes] = []
    results: list[AppendResult] = []
    ends: dict[tuple[Topic, int], int] = {}
    store_address, store_port = store_host
    store_flag = STORE_HOST_IPV6_FLAG if len(store_address) == 16 else 0
    for message in messages:
        (
            name, queue_id, body, properties, born_timestamp, (born_address, born_port),
            flag, sys_flag, reconsume_times, prepared_transaction_offset,
        ) = message  # fmt: skip
        topic = topics[name]
        body_bytes, properties_bytes = len(body), len(properties)
        if body_bytes > max_body_bytes or properties_bytes >= ZERO_RUN_BYTES:
            check_sizes(body, properties, max_body_bytes)
        assert not properties or properties[-1] == 2, "properties end with a separator"
        sys_flag = sys_flag & ~HOST_FLAGS | store_flag
        if len(born_address) == 16:
            sys_flag |= BORN_HOST_IPV6_FLAG
        header = HEADER_FORMATS[sys_flag & HOST_FLAGS]
        size = header.size + body_bytes + len(topic.prefixed) + 2 + properties_bytes
        queue_offset = 0
        if not sys_flag & TRANSACTION_PREPARED:
            key = topic, queue_id
            queue_offset = ends[key] if key in ends else topic.queue_ends.get(queue_id, 0)
            ends[key] = queue_offset + 1
        parts += (
            header.pack(
                size if results else 0, topic.magic_code, crc32(body) & CRC_MASK, queue_id,
                flag, queue_offset, physical_offset, sys_flag, born_timestamp,
                born_address, born_port, timestamp, store_address, store_port,
                reconsume_times, prepared_transaction_offset, body_bytes,
            ),
            body,
            topic.prefixed,
            _pack_properties_length(properties_bytes),
            properties,
        )  # fmt: skip
        results.append(_new(AppendResult, (physical_offset, size, queue_offset, timestamp)))
        physical_offset += size
    return parts, results, ends
