"""A message between its two shapes: the protocol's and the log's."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from google.protobuf.timestamp_pb2 import Timestamp

from commitbus.broker.messaging import properties as names
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from commitbus.commitlog.record_format import encode_properties, offset_message_id
from commitbus.commitlog.types import Host, OutgoingMessage, Record

SYS_FLAG_COMPRESSED: Final = 0x1
TIMESTAMP_MS_MAX: Final = 253_402_300_799_999
"""The end of the year 9999, where a protobuf Timestamp ends. Official clients raise an error at a
later one, and could never consume a message that has it."""
_BORN_HOST_LENGTH_MAX: Final = 255
_UNKNOWN_HOST: Final = Host(b"\0\0\0\0", 0)


def timestamp_ms(timestamp: Timestamp) -> int:
    """Return milliseconds since 1970."""
    return timestamp.seconds * 1000 + timestamp.nanos // 1_000_000


def set_timestamp(timestamp: Timestamp, ms: int) -> None:
    """Set a field to milliseconds since 1970, within what clients can read."""
    if not 0 <= ms <= TIMESTAMP_MS_MAX:
        ms = min(max(ms, 0), TIMESTAMP_MS_MAX)
    timestamp.seconds, timestamp.nanos = ms // 1000, ms % 1000 * 1_000_000


# A broker hears from the same few peers, and `ipaddress` is slow enough to show in a send.
@lru_cache(maxsize=4096)
def peer_host(peer: str) -> Host:
    """Return the address of a peer; 0.0.0.0:0 when it has none, as on a local socket."""
    address, _, port = peer.rpartition(":")
    try:
        return Host.parse(address.strip("[]"), int(port))
    except ValueError:
        return _UNKNOWN_HOST


@lru_cache(maxsize=4096)
def _address_text(host: Host) -> str:
    return host.address_text


@lru_cache(maxsize=4096)
def _host_text(host: Host) -> str:
    return str(host)


def to_outgoing(
    message: pb.Message, *, queue_id: int, cluster: str, peer: str, now_ms: int
) -> OutgoingMessage:
    """Return a validated message as the log takes it.

    Args:
        message: what the producer sent; `validate.check_message` has accepted it.
        queue_id: the queue that the broker chose.
        cluster: the cluster's name, which RocketMQ stores with each message.
        peer: the producer's address and port, stored as the born host.
        now_ms: the born time of a message that says none, or none that can be.
    """
    system = message.system_properties
    topic, born_host = message.topic.name, peer_host(peer)
    born_ms = timestamp_ms(system.born_timestamp)
    if not 0 < born_ms <= TIMESTAMP_MS_MAX:
        born_ms = now_ms
    born_host_text = _born_host_text(system.born_host) or _address_text(born_host)
    properties = {names.UNIQUE_KEY: system.message_id, names.BORN_TIMESTAMP: str(born_ms)}
    if tag := system.tag:
        properties[names.TAGS] = tag
    # A slice of the repeated field is a list, whose items come at a third of the cost.
    if keys := names.KEY_SEPARATOR.join(filter(None, system.keys[:])):
        properties[names.KEYS] = keys
    if trace_context := system.trace_context:
        properties[names.TRACE_CONTEXT] = trace_context
    if message.user_properties:
        for key, value in message.user_properties.items():
            properties.setdefault(key, value)
    return OutgoingMessage(
        topic=topic,
        queue_id=queue_id,
        body=message.body,
        properties=_common_properties(topic, cluster, born_host_text)
        + encode_properties(properties),
        born_timestamp=born_ms,
        born_host=born_host,
        sys_flag=SYS_FLAG_COMPRESSED if system.body_encoding == pb.GZIP else 0,
    )


@lru_cache(maxsize=4096)
def _common_properties(topic: str, cluster: str, born_host: str) -> bytes:
    """Return the properties that all messages of a producer to a topic have, encoded.

    They have reserved names, so that none of a message's own can be among them.
    """
    return encode_properties(
        {
            names.PRODUCER_GROUP: topic,
            names.RECONSUME_TIME: "0",
            names.BORN_HOST: born_host,
            names.CLUSTER: cluster,
            names.MESSAGE_REGION: names.DEFAULT_REGION,
            names.TRACE_ON: "true",
        }
    )


def message_id(record: Record) -> str:
    """Return the id that the producer's client made; without one, the place in the log."""
    return record.properties.get(names.UNIQUE_KEY) or offset_message_id(
        record.store_host, record.physical_offset
    )


def to_delivered(
    record: Record, *, receipt_handle: str, delivery_attempt: int
) -> pb.ReceiveMessageResponse:
    """Return a stored message as a consumer gets it, within the response that carries it."""
    stored = record.properties
    response = pb.ReceiveMessageResponse()
    # In place: to make the message first and the response of it would copy the message.
    message = response.message
    message.topic.name, message.body = record.topic, record.body
    for key in stored:
        if key not in names.HIDDEN_KEYS:
            message.user_properties[key] = stored[key]
    system = message.system_properties
    system.message_id = message_id(record)
    system.message_type = message_type_of(stored)
    if tag := stored.get(names.TAGS):
        system.tag = tag
    if keys := stored.get(names.KEYS):
        system.keys.extend(keys.split())
    system.body_encoding = pb.GZIP if record.sys_flag & SYS_FLAG_COMPRESSED else pb.IDENTITY
    # Over the bytes as transferred, compressed ones too. MD5, because the official clients do not
    # agree on the text of a CRC-32.
    digest = system.body_digest
    digest.type = pb.MD5
    digest.checksum = hashlib.md5(record.body, usedforsecurity=False).hexdigest().upper()
    set_timestamp(system.born_timestamp, record.born_timestamp)
    system.born_host = stored.get(names.BORN_HOST) or _address_text(record.born_host)
    set_timestamp(system.store_timestamp, record.store_timestamp)
    system.store_host = _host_text(record.store_host)
    system.receipt_handle = receipt_handle
    system.queue_id = record.queue_id
    system.queue_offset = record.queue_offset
    system.delivery_attempt = delivery_attempt
    _set_optional(system, stored)
    return response


def message_type_of(stored: Mapping[str, str]) -> pb.MessageType:
    """Return a message's type, derived from its stored properties."""
    if stored.get(names.TRANSACTION_PREPARED) == "true":
        return pb.TRANSACTION
    if names.DELIVERY_TIME_MS in stored:
        return pb.DELAY
    if names.SHARDING_KEY in stored:
        return pb.FIFO
    if names.PRIORITY in stored:
        return pb.PRIORITY
    if names.LITE_TOPIC in stored:
        return pb.LITE
    return pb.NORMAL


def _set_optional(system: pb.SystemProperties, stored: Mapping[str, str]) -> None:
    if group := stored.get(names.SHARDING_KEY):
        system.message_group = group
    if trace_context := stored.get(names.TRACE_CONTEXT):
        system.trace_context = trace_context
    if origin := stored.get(names.DEAD_LETTER_ORIGIN_TOPIC):
        system.dead_letter_queue.topic = origin
        system.dead_letter_queue.message_id = stored.get(names.DEAD_LETTER_ORIGIN_MESSAGE_ID, "")


def _born_host_text(text: str) -> str:
    """Return what a producer says of its host if it can be stored, else an empty text."""
    return text if text.isprintable() and len(text) <= _BORN_HOST_LENGTH_MAX else ""
