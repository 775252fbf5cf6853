"""What is sent and who gets it: everything about a message follows from its number."""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping
from typing import Final, NamedTuple

TOPICS: Final[Mapping[str, int]] = {"orders": 3, "events": 4, "bulk": 2}
"""With the number of queues. The bulk client sends to the last, unary calls to the others."""
QUIET_TOPIC: Final = "quiet"
"""Has no messages: whoever receives from it waits."""
TAGS: Final = ("red", "green", "blue")
BODY_BYTES_MIN: Final = 10
BODY_BYTES_MAX: Final = 100_000

_NUMBER: Final = struct.Struct("<Q")
_STARTS: Final = 4096
_FILL: Final = random.Random("soak").randbytes(BODY_BYTES_MAX + _STARTS)  # noqa: S311 - not secret


class Group(NamedTuple):
    """A consumer group, of one topic."""

    name: str
    topic: str
    tag: str = "*"
    """What it filters by; * is everything."""

    def wants(self, number: int) -> bool:
        """Return whether a message of its topic is for it."""
        return self.tag in {"*", tag_of(number)}


GROUPS: Final = (
    Group("billing", "orders"),
    Group("reds", "orders", "red"),
    Group("audit", "events"),
    Group("archive", "bulk"),
)
"""Every topic has one that gets all of it, so that each stored message is seen."""


def tag_of(number: int) -> str:
    """Return the message's tag."""
    return TAGS[number % len(TAGS)]


def key_of(number: int) -> str:
    """Return the message's key."""
    return f"key-{number % 1000}"


def body_of(number: int) -> bytes:
    """Return the one body that a number ever has: mostly up to 1 KB, one in 1,000 of 100 KB."""
    mixed = number * 2654435761 % (1 << 32) >> 8
    if mixed % 1000 == 0:
        size = BODY_BYTES_MAX
    elif mixed % 1000 < 20:
        size = BODY_BYTES_MAX // 10
    else:
        size = BODY_BYTES_MIN + mixed % 1000 - 20
    start = number % _STARTS
    return _NUMBER.pack(number) + _FILL[start : start + size - _NUMBER.size]


def number_of(body: bytes) -> int | None:
    """Return whose body this is; None if it is no message's, whole and unchanged."""
    if len(body) < BODY_BYTES_MIN:
        return None
    number: int = _NUMBER.unpack_from(body)[0]
    return number if body == body_of(number) else None
