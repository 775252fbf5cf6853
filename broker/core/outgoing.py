"""Messages as the log takes them: new ones, and copies of stored ones."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from commitbus.broker.core import properties as names
from commitbus.broker.core.kinds import NORMAL
from commitbus.broker.core.message_kind import NO_PROPERTIES, MessageKind
from commitbus.broker.core.validation import NewMessage
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
    message: NewMessage,
    kind: MessageKind,
    topic: str,
    queue_id: int,
    cluster: str,
    *,
    peer: str,
    now_ms: int,
) -> OutgoingMessage:
    """Return a message as the log takes it, which may be in the topic that holds its kind.

    Args:
        message: a message that `check_message` let pass.
        kind: the kind that `check_message` returned.
        topic: where it belongs, a name that was checked too.
        queue_id: the queue that the broker chose.
        cluster: the cluster's name, which RocketMQ stores with each message.
        peer: the producer's address and port, stored as the born host.
        now_ms: the born time of a message that says none, or none that can be.
    """
    body, _, _, _, _, _, born_ms, born_host_text, is_compressed, _ = message
    if not 0 < born_ms <= TIMESTAMP_MS_MAX:
        born_ms = now_ms
    if len(born_host_text) > _BORN_HOST_LENGTH_MAX or not born_host_text.isprintable():
        born_host_text = ""  # it cannot be stored
    born_host, common = _of_producer(topic, cluster, peer, born_host_text)
    text = _properties(message, kind, born_ms)
    if kind.held_in:
        text += _encoded({names.REAL_TOPIC: topic, names.REAL_QUEUE_ID: str(queue_id)})
        topic, queue_id = kind.held_in, 0
    sys_flag = SYS_FLAG_COMPRESSED if is_compressed else 0
    return _new(
        OutgoingMessage,
        (topic, queue_id, body, common + text.encode(), born_ms, born_host, 0, sys_flag, 0, 0),
    )


def _properties(message: NewMessage, kind: MessageKind, born_ms: int) -> str:
    """Return the properties of a message as they are stored, but for those of its producer.

    Text that was checked has no separators, so nothing needs to look for them again.
    """
    _, message_id, tag, keys, trace_context, user_properties, _, _, _, special = message
    text = f"{names.UNIQUE_KEY}\1{message_id}\2{names.BORN_TIMESTAMP}\1{born_ms}\2"
    if tag:
        text += f"{names.TAGS}\1{tag}\2"
    if "" in keys:
        keys = [key for key in keys if key]
    if keys:
        text += f"{names.KEYS}\1{names.KEY_SEPARATOR.join(keys)}\2"
    own: Mapping[str, str] = NO_PROPERTIES
    if trace_context:
        own = {names.TRACE_CONTEXT: trace_context}
    if kind is not NORMAL and special is not None:
        own = {**own, **kind.properties(special)}
    if own:
        text += _encoded(own)
    if user_properties:
        if own:
            # All other names that are written here are reserved.
            user_properties = {k: v for k, v in user_properties.items() if k not in own}
        text += _encoded(user_properties)
    return text


def _encoded(properties: Mapping[str, str]) -> str:
    return "".join([f"{name}\1{value}\2" for name, value in properties.items()])


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
