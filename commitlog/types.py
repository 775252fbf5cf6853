"""The values that every layer of the store speaks in.

Offsets come in two kinds that must never be mixed up, so each is a type of its own:
a `PhysicalOffset` is a byte position in the log, a `QueueOffset` an index in a consume queue.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import NamedTuple, NewType, final

PhysicalOffset = NewType("PhysicalOffset", int)
"""Byte position in the log, counted over all its files."""

QueueOffset = NewType("QueueOffset", int)
"""Index of a message in its consume queue; dense, starting at 0."""


@final
class Host(NamedTuple):
    """The address and port of a producer or of the broker, as a record stores it."""

    address: bytes
    """4 bytes (IPv4) or 16 bytes (IPv6), network order."""
    port: int

    @classmethod
    def parse(cls, address: str, port: int) -> Host:
        """Return the host of a textual IP address.

        Raises:
            ValueError: `address` is not an IPv4 or IPv6 address.
        """
        return cls(ip_address(address).packed, port)

    @property
    def is_ipv6(self) -> bool:
        """Whether the address takes 16 bytes."""
        return len(self.address) == 16

    @property
    def address_text(self) -> str:
        """The address as text, IPv6 in its compressed form."""
        return str(IPv6Address(self.address) if self.is_ipv6 else IPv4Address(self.address))

    def __str__(self) -> str:
        """Return `address:port`, an IPv6 address in brackets."""
        return (
            f"[{self.address_text}]:{self.port}"
            if self.is_ipv6
            else f"{self.address_text}:{self.port}"
        )


@final
class OutgoingMessage(NamedTuple):
    """A message that is about to be appended.

    A tuple, because the append takes it apart in one step.
    """

    topic: str
    queue_id: int
    body: bytes
    properties: bytes
    """Encoded by `record_format.encode_properties`."""
    born_timestamp: int
    """Milliseconds since 1970, as the producer said."""
    born_host: Host
    flag: int = 0
    sys_flag: int = 0
    """Without the IPv6 bits: the log sets them from the hosts."""
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0


@final
class AppendResult(NamedTuple):
    """Where an appended message came to lie."""

    physical_offset: PhysicalOffset
    size_bytes: int
    queue_offset: QueueOffset
    store_timestamp: int

    @property
    def end_offset(self) -> PhysicalOffset:
        """First physical offset after the record: durable once the watermark reaches it."""
        return PhysicalOffset(self.physical_offset + self.size_bytes)


@final
class Record(NamedTuple):
    """A message decoded from the log, its body copied out of mapped memory.

    A tuple, because a frozen dataclass of this width takes longer to make than to read.
    """

    physical_offset: PhysicalOffset
    size_bytes: int
    magic_code: int
    """Unsigned 32 bits: `message_magic_code` of version 1 or 2."""
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: QueueOffset
    sys_flag: int
    born_timestamp: int
    born_host: Host
    store_timestamp: int
    store_host: Host
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes
    topic: str
    properties: Mapping[str, str]


@final
class DispatchRequest(NamedTuple):
    """What reput takes from a record for the consume queues and the index."""

    physical_offset: PhysicalOffset
    size_bytes: int
    topic: str
    queue_id: int
    queue_offset: QueueOffset
    tags_code: int
    """Signed 64 bits, as the consume queue unit stores it."""
    store_timestamp: int
    sys_flag: int
    unique_key: str
    """UNIQ_KEY, empty when the message has none."""
    keys: str
    """KEYS as stored, space separated, empty when the message has none."""
    tags: str
    """TAGS as stored, empty when the message has none."""

    @property
    def end_offset(self) -> PhysicalOffset:
        """First physical offset after the record."""
        return PhysicalOffset(self.physical_offset + self.size_bytes)
