"""A stored message as a consumer gets it: from its record's bytes to those of the response.

To make protobuf's objects of every message would take twice as long. The bytes of a protobuf
message are those of its fields, one after the other, so they can be made in pieces: what many
messages have in common by protobuf and once, the rest by hand.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Final

from commitbus.broker.core import properties as names
from commitbus.broker.core.kinds import KINDS, kind_stored
from commitbus.broker.core.outgoing import SYS_FLAG_COMPRESSED
from commitbus.broker.messaging.message_codec import set_timestamp
from commitbus.broker.messaging.message_types import TYPES
from commitbus.broker.receiving.encoder import Encode
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from commitbus.broker.rpc.proto.wire_format import delimited, key_of, length, varint
from commitbus.commitlog.record_format import (
    HEADER_FORMATS,
    HOST_FLAGS,
    CheckedRecord,
    offset_message_id,
)
from commitbus.commitlog.types import Host

_MESSAGE: Final = key_of(pb.ReceiveMessageResponse, "message")
assert key_of(pb.PullMessageResponse, "message") == _MESSAGE, "both are made here"
_SYSTEM_PROPERTIES: Final = key_of(pb.Message, "system_properties")
_BODY: Final = key_of(pb.Message, "body")
_TAG: Final = key_of(pb.SystemProperties, "tag")
_KEYS: Final = key_of(pb.SystemProperties, "keys")
_MESSAGE_ID: Final = key_of(pb.SystemProperties, "message_id")
_RECEIPT_HANDLE: Final = key_of(pb.SystemProperties, "receipt_handle")
_QUEUE_OFFSET: Final = key_of(pb.SystemProperties, "queue_offset")

_GZIP: Final = pb.SystemProperties(body_encoding=pb.GZIP).SerializeToString()
_IDENTITY: Final = pb.SystemProperties(body_encoding=pb.IDENTITY).SerializeToString()
_NORMAL: Final = pb.SystemProperties(message_type=pb.NORMAL).SerializeToString()
_MD5_DIGITS: Final = 32
_MD5_HEAD: Final = pb.SystemProperties(
    body_digest=pb.Digest(type=pb.MD5, checksum="0" * _MD5_DIGITS)
).SerializeToString()[:-_MD5_DIGITS]
"""The digest up to the hexadecimal digits that end it."""

_PLAIN_KEYS: Final = names.HIDDEN_KEYS - {
    *(kind.property for kind in KINDS.values()),
    *(names.TRACE_CONTEXT, names.DEAD_LETTER_ORIGIN_TOPIC),
}
"""A message that has no other properties is a normal one, and has none of its producer's own."""


def response_encoder(queue_id: int, delivery_attempt: int | None) -> Encode[bytes]:
    """Return what makes the responses of ReceiveMessage and PullMessage: an `Encoder`."""
    system = pb.SystemProperties(queue_id=queue_id, delivery_attempt=delivery_attempt)
    return partial(_encode_response, system.SerializeToString())


def _encode_response(
    run: bytes,
    view: memoryview,
    parts: CheckedRecord,
    stored: Mapping[str, str],
    receipt_handle: str,
) -> bytes:
    """Return the response that delivers a record, with the fields that `run` has encoded."""
    _, _, queue_offset, sys_flag, store_ms, topic, body_start, body_end, _, _ = parts
    get = stored.get
    header = HEADER_FORMATS[sys_flag & HOST_FLAGS].unpack_from(view)
    physical_offset, _, born_ms, born_address, _, _, store_address, store_port = header[6:14]
    front, common = _topic(topic), _NORMAL
    if not _PLAIN_KEYS.issuperset(stored):
        front, common = front + _user_properties(stored), _special_properties(stored)
    message_id = get(names.UNIQUE_KEY) or offset_message_id(
        Host(store_address, store_port), physical_offset
    )
    body = view[body_start:body_end]
    # Over the bytes as transferred, compressed ones too. MD5, because the official clients do not
    # agree on the text of a CRC-32.
    digest = hashlib.md5(body, usedforsecurity=False).hexdigest().upper()
    system = b"".join(
        (
            common,
            run,
            delimited(_TAG, tag.encode()) if (tag := get(names.TAGS)) else b"",
            _encoded_keys(keys) if (keys := get(names.KEYS)) else b"",
            delimited(_MESSAGE_ID, message_id.encode()),
            _MD5_HEAD,
            digest.encode(),
            _GZIP if sys_flag & SYS_FLAG_COMPRESSED else _IDENTITY,
            _born(get(names.BORN_HOST) or born_address, born_ms),
            _stored(store_address, store_port, store_ms),
            delimited(_RECEIPT_HANDLE, receipt_handle.encode()) if receipt_handle else b"",
            _QUEUE_OFFSET,
            varint(queue_offset),
        )
    )
    before_body = b"".join((front, _SYSTEM_PROPERTIES, length(system), system))
    if body:
        before_body += _BODY + length(body)
    size = varint(len(before_body) + len(body))
    return b"".join((_MESSAGE, size, before_body, body))


def _encoded_keys(keys: str) -> bytes:
    return b"".join([delimited(_KEYS, key.encode()) for key in names.split_keys(keys)])


# Messages that are read together were sent together: most of these are the same for them all.


@lru_cache(maxsize=4096)
def _topic(name: str) -> bytes:
    return pb.Message(topic=pb.Resource(name=name)).SerializeToString()


@lru_cache(maxsize=4096)
def _born(host: str | bytes, ms: int) -> bytes:
    """Return when and where a message was born: a host as its producer said it, or its address."""
    text = host if isinstance(host, str) else Host(host, 0).address_text
    system = pb.SystemProperties(born_host=text)
    set_timestamp(system.born_timestamp, ms)
    return system.SerializeToString()


@lru_cache(maxsize=4096)
def _stored(address: bytes, port: int, ms: int) -> bytes:
    system = pb.SystemProperties(store_host=str(Host(address, port)))
    set_timestamp(system.store_timestamp, ms)
    return system.SerializeToString()


def _user_properties(stored: Mapping[str, str]) -> bytes:
    own = {name: value for name, value in stored.items() if name not in names.HIDDEN_KEYS}
    return pb.Message(user_properties=own).SerializeToString()


def _special_properties(stored: Mapping[str, str]) -> bytes:
    """Return a message's type, and what few messages have."""
    system = pb.SystemProperties(message_type=TYPES[kind_stored(stored).type])
    if group := stored.get(names.SHARDING_KEY):
        system.message_group = group
    if trace_context := stored.get(names.TRACE_CONTEXT):
        system.trace_context = trace_context
    if origin := stored.get(names.DEAD_LETTER_ORIGIN_TOPIC):
        system.dead_letter_queue.topic = origin
        system.dead_letter_queue.message_id = stored.get(names.DEAD_LETTER_ORIGIN_MESSAGE_ID, "")
    return system.SerializeToString()
