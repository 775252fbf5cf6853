"""The queue of a message group.

RocketMQ's choice for a message group, so that a group keeps its queue whoever serves the topic: the
jump consistent hash of Guava's `Hashing.consistentHash` over Java's `String.hashCode`.
"""

from __future__ import annotations

from typing import Final

from commitbus.commitlog.java_hash import java_string_hash

_MULTIPLIER: Final = 2862933555777941757
_MASK: Final = (1 << 64) - 1


def queue_of_group(message_group: str, count: int) -> int:
    """Return the queue of a message group among `count` queues, one at least."""
    state = java_string_hash(message_group) & _MASK
    candidate = 0
    while True:
        state = (state * _MULTIPLIER + 1) & _MASK
        following = int((candidate + 1) / (((state >> 33) + 1) / (1 << 31)))
        if following >= count:
            return candidate
        candidate = following
