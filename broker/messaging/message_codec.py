"""A message from the protocol's shape to the log's, and the values that both write differently."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from google.protobuf.timestamp_pb2 import Timestamp

from commitbus.broker.messaging import properties as names
from commitbus.broker.messaging.validate import CheckedMessage
from commitbus.broker.metadata.topics import MessageType
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from commitbus.commitlog.record_format import encode_properties, offset_message_id
from commitbus.commitlog.types import Host, OutgoingMessage, Record

SYS_FLAG_COMPRESSED: Final = 0x1
TIMESTAMP_MS_MAX: Final = 253_402_300_799_999
"""The end of the year 9999, where a protobuf Timestamp ends. Official clients raise an error at a
later one, and could never consume a message that has it."""
_BORN_HOST_LENGTH_MAX: Final = 255
_new = tuple.__new__
"""Half the cost of calling a `NamedTuple`, as it bypasses a `__new__` written in Python."""
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


def to_outgoing(
    message: CheckedMessage, topic: str, queue_id: int, cluster: str, *, peer: str, now_ms: int
) -> OutgoingMessage:
    """Return a message as the log takes it.

    Args:
        message: what the producer sent.
        topic: where it belongs, a name that was checked too.
        queue_id: the queue that the broker chose.
        cluster: the cluster's name, which RocketMQ stores with each message.
        peer: the producer's address and port, stored as the born host.
        now_ms: the born time of a message that says none, or none that can be.
    """
    message_type, message_id, body, tag, keys, trace_context, user_properties, system = message
    born = system.born_timestamp
    born_ms = born.seconds * 1000 + born.nanos // 1_000_000
    if not 0 < born_ms <= TIMESTAMP_MS_MAX:
        born_ms = now_ms
    born_host_text = system.born_host
    if len(born_host_text) > _BORN_HOST_LENGTH_MAX or not born_host_text.isprintable():
        born_host_text = ""  # it cannot be stored
    born_host, common = _of_producer(topic, cluster, peer, born_host_text)
    # Text that was checked has no separators, so nothing needs to look for them again.
    text = f"{names.UNIQUE_KEY}\1{message_id}\2{names.BORN_TIMESTAMP}\1{born_ms}\2"
    if tag:
        text += f"{names.TAGS}\1{tag}\2"
    if keys:
        text += f"{names.KEYS}\1{keys}\2"
    if trace_context:
        text += f"{names.TRACE_CONTEXT}\1{trace_context}\2"
    message_group = "" if message_type is MessageType.NORMAL else system.message_group
    if message_group:
        text += f"{names.SHARDING_KEY}\1{message_group}\2"
    for name, value in user_properties.items() if user_properties else ():
        # All other names that are written here are reserved.
        if (name != names.TRACE_CONTEXT or not trace_context) and (
            name != names.SHARDING_KEY or not message_group
        ):
            text += f"{name}\1{value}\2"
    sys_flag = SYS_FLAG_COMPRESSED if system.body_encoding == pb.GZIP else 0
    properties = common + text.encode()
    return _new(
        OutgoingMessage,
        (topic, queue_id, body, properties, born_ms, born_host, 0, sys_flag, 0, 0),
    )


@lru_cache(maxsize=4096)
def _of_producer(topic: str, cluster: str, peer: str, born_host_text: str) -> tuple[Host, bytes]:
    """Return the born host, and encoded the properties that are the same with every message.

    They have reserved names, so that none of a message's own can be among them.
    """
    born_host = peer_host(peer)
    return born_host, encode_properties(
        {
            names.PRODUCER_GROUP: topic,
            names.RECONSUME_TIME: "0",
            names.BORN_HOST: born_host_text or born_host.address_text,
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


def stored_again(
    record: Record,
    topic: str,
    queue_id: int,
    properties: Mapping[str, str],
    *,
    reconsume_times: int = 0,
) -> OutgoingMessage:
    """Return a copy of a stored message for another queue, with these properties.

    RocketMQ does not check its remoting producers: a value of theirs may hold the separator, and
    could not be stored again. The rest of the message can.
    """
    storable = {name: value for name, value in properties.items() if "\x01" not in value}
    return OutgoingMessage(
        topic=topic,
        queue_id=queue_id,
        body=record.body,
        properties=encode_properties(storable),
        born_timestamp=record.born_timestamp,
        born_host=record.born_host,
        flag=record.flag,
        sys_flag=record.sys_flag,
        reconsume_times=reconsume_times,
    )
