"""The bytes of a record in the log: Apache RocketMQ's, versions 1 and 2, both IP families.

All integers are big-endian. Pure functions over bytes; nothing here knows files.

```
         0       4       8       12      16      20      28      36      40      48
         +-------+-------+-------+-------+-------+-------+-------+-------+-------+-----
         | size  | magic | body  | queue | flag  | queue | phys. | sys   | born  | born
         | u32   | u32   | crc   | id    | i32   | offset| offset| flag  | time  | host
         |       |       | u32   | i32   |       | i64   | i64   | i32   | i64   | 8|20
         +-------+-------+-------+-------+-------+-------+-------+-------+-------+-----
  -----+-------+-------+--------+----------+--------+------+-------+-------+-------+-------+
   born| store | store | recon- | prepared | body   | body | topic | topic | prop. | prop- |
   host| time  | host  | sumes  | transact.| length |      | length|       | length| erties|
       | i64   | 8|20  | i32    | offset   | u32    |      | u8|u16|       | i16   |       |
       |       |       |        | i64      |        |      |       |       |       |       |
  -----+-------+-------+--------+----------+--------+------+-------+-------+-------+-------+
```

- A host is its 4 or 16 address bytes, then the port as i32; bits 0x10 (born) and 0x20 (store) of
  the system flag say that it is 16.
- The topic length takes two bytes in version 2, which is used for topics longer than 127 bytes.
- The body CRC is CRC-32 (IEEE) without its top bit.
- A file ends with a blank record: the bytes that remain in the file (u32), `BLANK_MAGIC_CODE`.
- Properties are `name 0x01 value 0x02`, repeated.

Source: directories that Apache RocketMQ 5.4.0 wrote.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from struct import Struct
from typing import Final, NamedTuple, TypeAlias, final

from isal.isal_zlib import crc32

from commitbus.commitlog.errors import CorruptRecordError
from commitbus.commitlog.java_hash import java_string_hash
from commitbus.commitlog.types import DispatchRequest, Host, PhysicalOffset, QueueOffset, Record

MESSAGE_MAGIC_CODE_V1: Final = 0xDAA320A7
MESSAGE_MAGIC_CODE_V2: Final = 0xDAA320AB
BLANK_MAGIC_CODE: Final = 0xCBD43194
BLANK_RECORD_BYTES: Final = 8
"""Kept free at the end of a file, so that a blank record always fits."""

MAX_TOPIC_BYTES: Final = 255
"""Version 2 could carry more, but RocketMQ's topics stop here."""
MAX_PROPERTIES_BYTES: Final = 32_767
MAX_V1_TOPIC_BYTES: Final = 127
ZERO_RUN_BYTES: Final = 512
"""So many zeros in a row inside properties mean a disk sector that was never written."""
ZERO_RUN: Final = bytes(ZERO_RUN_BYTES)

BORN_HOST_IPV6_FLAG: Final = 0x10
STORE_HOST_IPV6_FLAG: Final = 0x20
HOST_FLAGS: Final = BORN_HOST_IPV6_FLAG | STORE_HOST_IPV6_FLAG
TRANSACTION_FLAGS: Final = 0xC
TRANSACTION_PREPARED: Final = 0x4
TRANSACTION_ROLLED_BACK: Final = 0xC

CRC_MASK: Final = 0x7FFF_FFFF

SIZE_AND_MAGIC: Final = Struct(">II")
SIZE: Final = Struct(">I")
_I64: Final = Struct(">q")
_PREFIX: Final = Struct(">IIIiiqqi")
"""The fields before the hosts, whose widths the last of these, the system flag, decides."""
PROPERTIES_LENGTH: Final = Struct(">H")
_unpack_u16 = PROPERTIES_LENGTH.unpack_from
_NAME_END, _VALUE_END = "\x01", "\x02"

HEADER_FORMATS: Final = {
    flags: Struct(
        f">IIIiiqqiq{16 if flags & BORN_HOST_IPV6_FLAG else 4}si"
        f"q{16 if flags & STORE_HOST_IPV6_FLAG else 4}siiqI"
    )
    for flags in (0, BORN_HOST_IPV6_FLAG, STORE_HOST_IPV6_FLAG, HOST_FLAGS)
}
"""The header from the size to the body length, by the host bits of the system flag."""
_TOPIC_AND_PROPERTIES_MAX: Final = 2 * (2 + 0xFFFF)
MIN_RECORD_BYTES: Final = HEADER_FORMATS[0].size + 1 + 1 + 2
"""Both hosts IPv4, no body, one byte of topic, no properties."""

# RocketMQ's default messageDelayLevel, "1s 5s 10s 30s 1m ... 2h": the tags code of a message that
# waits in the schedule topic is the time it is due.
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
_DELAY_LEVELS_S: Final = (
    *(1, 5, 10, 30),
    *(60 * minutes for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120)),
)  # fmt: skip


# Properties


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Return `name 0x01 value 0x02` for each property, in the mapping's order.

    Raises:
        ValueError: A name is empty, or a name or value holds one of the two separators: it would
            be read back as other properties than were given. Or it is not encodable as UTF-8.
    """
    parts: list[str] = []
    for name, value in properties.items():
        parts += (name, _NAME_END, value, _VALUE_END)
    text = "".join(parts)
    count = len(properties)
    if text.count(_NAME_END) != count or text.count(_VALUE_END) != count or "" in properties:
        raise ValueError("a property name is empty, or a name or value holds U+0001 or U+0002")
    return text.encode()


def decode_properties(data: bytes) -> dict[str, str]:
    """Return the properties in their stored order; of equal names the last one counts.

    Tolerant as RocketMQ is: a missing last separator, items without a name and bytes that are no
    UTF-8 (they become U+FFFD) are no error.
    """
    properties: dict[str, str] = {}
    for item in data.decode("utf-8", "replace").split(_VALUE_END):
        name, separator, value = item.partition(_NAME_END)
        if separator and name:
            properties[name] = value
    return properties


def _property(text: str, name: str) -> str:
    """Return one property of `text`, which begins with a value end; empty when missing."""
    start = text.rfind(f"{_VALUE_END}{name}{_NAME_END}")
    if start < 0:
        return ""
    start += len(name) + 2
    end = text.find(_VALUE_END, start)
    return text[start:] if end < 0 else text[start:end]


# Tags may be long: of the longest so many take 16 MB.
@lru_cache(maxsize=1024)
def tags_code(tags: str) -> int:
    """Return the tags code of a consume queue unit: Java's hash, 0 for no tags."""
    return java_string_hash(tags)


# Encoding


@final
class EncodedTopic(NamedTuple):
    """What a topic contributes to each of its records."""

    magic_code: int
    prefixed: bytes
    """The topic's length, then the topic."""


def encode_topic(topic: bytes) -> EncodedTopic:
    """Return the part of a record that is the same for all messages of a topic.

    Args:
        topic: UTF-8, 1 to `MAX_TOPIC_BYTES` bytes.
    """
    assert 0 < len(topic) <= MAX_TOPIC_BYTES, "limits are checked before encoding"
    if len(topic) <= MAX_V1_TOPIC_BYTES:
        return EncodedTopic(MESSAGE_MAGIC_CODE_V1, bytes((len(topic),)) + topic)
    return EncodedTopic(MESSAGE_MAGIC_CODE_V2, len(topic).to_bytes(2, "big") + topic)


def host_flags(born_host: Host, store_host: Host) -> int:
    """Return the bits of the system flag that tell the widths of the two hosts."""
    return (BORN_HOST_IPV6_FLAG if len(born_host.address) == 16 else 0) | (
        STORE_HOST_IPV6_FLAG if len(store_host.address) == 16 else 0
    )


# Decoding


CheckedRecord: TypeAlias = tuple[int, int, int, int, int, str, int, int, int, int]
"""size_bytes, queue_id, queue_offset, sys_flag, store_timestamp, topic, body_start, body_end,
properties_start, end; the last four are positions in the view. A bare tuple, because it is made
once per record of a recovery and naming its fields would cost a fifth of the whole check."""

_topics: dict[bytes, str] = {}
"""Topics seen, because decoding one takes longer than looking it up. Cleared when it is full."""
_TOPICS_MAX: Final = 4096


def _learn_topic(topic: bytes, physical_offset: int) -> str:
    try:
        text = topic.decode()
    except UnicodeDecodeError:
        text = ""
    if not text or "\0" in text:
        raise CorruptRecordError(physical_offset, "its topic is not text")
    if len(_topics) >= _TOPICS_MAX:
        _topics.clear()
    _topics[topic] = text
    return text


# Only what checking needs; 'x' fields cost nothing.
_CHECKED_FIELDS: Final = {
    flags: Struct(
        f">IIIi4xqqi8x{20 if flags & BORN_HOST_IPV6_FLAG else 8}x"
        f"q{20 if flags & STORE_HOST_IPV6_FLAG else 8}x12xI"
    )
    for flags in HEADER_FORMATS
}
_unpack_ipv4 = _CHECKED_FIELDS[0].unpack_from
_IPV4_HEADER_BYTES: Final = HEADER_FORMATS[0].size
_TOPIC_LENGTH_BYTES: Final = {MESSAGE_MAGIC_CODE_V1: 1, MESSAGE_MAGIC_CODE_V2: 2}


def check_record(
    view: memoryview, position: int, physical_offset: int, *, verify_crc: bool
) -> CheckedRecord:
    """Check the record at `position` of `view` and return where its parts lie.

    Checked: the magic code, every length against the record's size and the view's end, the stored
    physical offset, that the topic is text, and with `verify_crc` the body's checksum. Properties
    carry no checksum; their end and long runs of zeros in them tell a write that was torn.

    Raises:
        CorruptRecordError: Something does not hold.
    """
    if len(view) - position < MIN_RECORD_BYTES:
        raise CorruptRecordError(physical_offset, "fewer bytes follow than the smallest record has")
    # Nearly all hosts are IPv4, so their layout is tried before the flag that tells is known.
    (
        size, magic, crc, queue_id, queue_offset, stored_offset, sys_flag, store_timestamp,
        body_bytes,
    ) = _unpack_ipv4(view, position)  # fmt: skip
    body_start = position + _IPV4_HEADER_BYTES
    length_bytes = _TOPIC_LENGTH_BYTES.get(magic, 0)
    end = position + size
    if sys_flag & HOST_FLAGS and length_bytes and end <= len(view):
        layout = _CHECKED_FIELDS[sys_flag & HOST_FLAGS]
        body_start = position + layout.size
        if body_start > end:
            raise CorruptRecordError(physical_offset, f"size {size} has no room for IPv6 hosts")
        store_timestamp, body_bytes = layout.unpack_from(view, position)[-2:]
    body_end = body_start + body_bytes
    topic_start = body_end + length_bytes
    if (
        stored_offset != physical_offset
        or end > len(view)
        or topic_start + 3 > end
        or not length_bytes
    ):
        raise _no_record(physical_offset, size, magic, stored_offset, body_bytes)
    topic_end = topic_start + view[body_end]
    if length_bytes == 2:
        topic_end += 255 * view[body_end] + view[body_end + 1]
    if topic_end + 2 > end or topic_end + 2 + _unpack_u16(view, topic_end)[0] != end:
        raise CorruptRecordError(physical_offset, "the lengths of its parts do not add up")
    topic_data = view[topic_start:topic_end].tobytes()
    topic = _topics.get(topic_data) or _learn_topic(topic_data, physical_offset)
    if topic_end + 2 < end and (
        view[end - 1] == 0
        or (end - topic_end > ZERO_RUN_BYTES and ZERO_RUN in view[topic_end:end].tobytes())
    ):
        raise CorruptRecordError(physical_offset, "its properties were not written whole")
    if verify_crc and crc32(view[body_start:body_end]) & CRC_MASK != crc:
        raise CorruptRecordError(physical_offset, "its body does not match its checksum")
    return (
        size, queue_id, queue_offset, sys_flag, store_timestamp, topic,
        body_start, body_end, topic_end + 2, end,
    )  # fmt: skip


def _no_record(
    physical_offset: int, size: int, magic: int, stored_offset: int, body_bytes: int
) -> CorruptRecordError:
    """Return the error that says which of the header's fields is impossible."""
    if magic not in _TOPIC_LENGTH_BYTES:
        reason = f"magic code 0x{magic:08x} is not a message's"
    elif stored_offset != physical_offset:
        reason = f"it says that it lies at {stored_offset}"
    else:
        reason = f"size {size} with a body of {body_bytes} is impossible here"
    return CorruptRecordError(physical_offset, reason)


def decode_record(
    view: memoryview, physical_offset: PhysicalOffset, *, verify: bool = True
) -> Record:
    """Return the record that begins with `view`; bytes behind it are ignored.

    Args:
        view: From the record's first byte on.
        physical_offset: Where it lies; the record must say the same.
        verify: Whether to check the body's checksum.

    Raises:
        CorruptRecordError: The bytes are not a whole, intact record.
    """
    *_, topic, body_start, body_end, properties_start, end = check_record(
        view, 0, physical_offset, verify_crc=verify
    )
    (
        size, magic, crc, queue_id, flag, queue_offset, _, sys_flag, born_timestamp,
        born_address, born_port, store_timestamp, store_address, store_port,
        reconsume_times, prepared_transaction_offset, _,
    ) = HEADER_FORMATS[_PREFIX.unpack_from(view)[-1] & HOST_FLAGS].unpack_from(view)  # fmt: skip
    return Record(
        physical_offset, size, magic, crc, queue_id, flag, QueueOffset(queue_offset), sys_flag,
        born_timestamp, _host(born_address, born_port),
        store_timestamp, _host(store_address, store_port),
        reconsume_times, prepared_transaction_offset,
        body=view[body_start:body_end].tobytes(),
        topic=topic,
        properties=decode_properties(view[properties_start:end].tobytes()),
    )  # fmt: skip


# Looking one up takes a third of making it, and a log names few.
_host: Final = lru_cache(maxsize=4096)(Host)


def dispatch_request(
    view: memoryview, physical_offset: PhysicalOffset, checked: CheckedRecord
) -> DispatchRequest:
    """Return what reput needs of a record that `check_record` found in `view`."""
    (
        size, queue_id, queue_offset, sys_flag, store_timestamp, topic, _, _, properties_start, end,
    ) = checked  # fmt: skip
    code, unique_key, keys, tags = find_names(
        view[properties_start:end].tobytes(), topic, store_timestamp
    )
    return DispatchRequest(
        physical_offset,
        size,
        topic,
        queue_id,
        QueueOffset(queue_offset),
        code,
        store_timestamp,
        sys_flag,
        unique_key,
        keys,
        tags,
    )


def find_names(properties: bytes, topic: str, store_timestamp: int) -> tuple[int, str, str, str]:
    """Return the tags code, UNIQ_KEY, KEYS and TAGS of a message; "" for what it has not."""
    text = _VALUE_END + properties.decode("utf-8", "replace")
    tags = _property(text, "TAGS")
    code = tags_code(tags)
    if topic == SCHEDULE_TOPIC:
        code = _due_time_ms(_property(text, "DELAY"), store_timestamp) or code
    return code, _property(text, "UNIQ_KEY"), _property(text, "KEYS"), tags


def _due_time_ms(delay_level: str, store_timestamp: int) -> int | None:
    """Return when a message of a delay level is due, None when it has no level."""
    if not (delay_level.isascii() and delay_level.isdecimal()) or len(delay_level) > 9:
        return None
    level = min(int(delay_level), len(_DELAY_LEVELS_S))
    return store_timestamp + _DELAY_LEVELS_S[level - 1] * 1000 if level > 0 else None


def claimed_size(view: memoryview) -> int:
    """Return how long the record at the start of a view says it is, if its lengths make sense.

    0 if they do not, or if the view is shorter than a header. For a caller that reads the record
    in pieces, and must not allocate a gigabyte because of one damaged number.
    """
    if len(view) < MIN_RECORD_BYTES:
        return 0
    size, magic, *_, sys_flag = _PREFIX.unpack_from(view)
    layout = HEADER_FORMATS[sys_flag & HOST_FLAGS]
    if magic not in _TOPIC_LENGTH_BYTES or len(view) < layout.size:
        return 0
    rest: int = size - layout.size - layout.unpack_from(view)[-1]
    return size if 0 < rest <= _TOPIC_AND_PROPERTIES_MAX else 0


def decode_store_timestamp(view: memoryview, physical_offset: PhysicalOffset) -> int:
    """Return the store timestamp of the record that begins with `view`, unchecked otherwise.

    Raises:
        CorruptRecordError: The magic code is not a message's, or the view is too short.
    """
    if len(view) < MIN_RECORD_BYTES:
        raise CorruptRecordError(physical_offset, "fewer bytes follow than the smallest record has")
    magic, sys_flag = _PREFIX.unpack_from(view)[1::6]
    if magic not in (MESSAGE_MAGIC_CODE_V1, MESSAGE_MAGIC_CODE_V2):
        raise CorruptRecordError(physical_offset, f"magic code 0x{magic:08x} is not a message's")
    timestamp: int = _I64.unpack_from(view, 68 if sys_flag & BORN_HOST_IPV6_FLAG else 56)[0]
    return timestamp


# Offset message ids: hex of address, port (i32), physical offset (i64)


def offset_message_id(host: Host, physical_offset: PhysicalOffset) -> str:
    """Return the id that names a message by the broker that stores it and its place there."""
    tail = host.port.to_bytes(4, "big", signed=True) + _I64.pack(physical_offset)
    return (host.address + tail).hex().upper()


def parse_offset_message_id(text: str) -> tuple[Host, PhysicalOffset]:
    """Return the store host and the physical offset of an offset message id.

    Raises:
        ValueError: It is not 32 (IPv4) or 56 (IPv6) hexadecimal digits.
    """
    if len(text) not in (32, 56) or not text.isalnum():
        raise ValueError(f"an offset message id has 32 or 56 hexadecimal digits, this has {text!r}")
    data = bytes.fromhex(text)
    host = Host(data[:-12], int.from_bytes(data[-12:-8], "big", signed=True))
    return host, PhysicalOffset(_I64.unpack(data[-8:])[0])
