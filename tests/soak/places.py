"""Where messages lie: each at one place at most, for good, and at every place one."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Final, final

from tests.soak.messages import TOPICS

UNKNOWN: Final = -1

_TOPICS: Final = tuple(TOPICS)


@final
class Places:
    """By message number, in ten bytes each."""

    def __init__(self) -> None:
        self._topics = bytearray()
        self._queue_ids = array("b")
        self._offsets = array("q")

    def __len__(self) -> int:
        """Return how many messages there are."""
        return len(self._topics)

    def add(self, topic: str, count: int) -> None:
        """Take on so many messages that lie nowhere yet."""
        self._topics += bytes([_TOPICS.index(topic)]) * count
        self._queue_ids.extend([UNKNOWN] * count)
        self._offsets.extend([UNKNOWN] * count)

    def topic(self, number: int) -> str:
        """Return where a message was sent to."""
        return _TOPICS[self._topics[number]]

    def is_known(self, number: int) -> bool:
        """Return whether a message is stored, as far as anybody said."""
        return self._offsets[number] != UNKNOWN

    def put(self, number: int, queue_id: int, queue_offset: int) -> bool:
        """Note a place, the queue perhaps unknown; False if it contradicts what was known."""
        known = self._queue_ids[number]
        if self.is_known(number) and (
            queue_offset != self._offsets[number]
            or (queue_id != known and UNKNOWN not in {queue_id, known})
        ):
            return False
        self._offsets[number] = queue_offset
        if queue_id != UNKNOWN:
            self._queue_ids[number] = queue_id
        return True

    def stored(self, topic: str) -> int:
        """Return how many messages of a topic are known to be stored."""
        index = _TOPICS.index(topic)
        both = zip(self._topics, self._offsets, strict=True)
        return sum(of == index and offset != UNKNOWN for of, offset in both)

    def contradictions(self) -> Iterator[str]:
        """Yield the queues whose messages do not lie at every offset from 0 on, one at each."""
        queues: dict[tuple[int, int], array[int]] = {}
        for topic, queue_id, offset in zip(
            self._topics, self._queue_ids, self._offsets, strict=True
        ):
            if queue_id != UNKNOWN:
                queues.setdefault((topic, queue_id), array("q")).append(offset)
        for (topic, queue_id), offsets in queues.items():
            for wanted, offset in enumerate(sorted(offsets)):
                if offset != wanted:
                    yield (
                        f"{_TOPICS[topic]}, queue {queue_id}: {len(offsets)} messages do not lie "
                        f"at the offsets from 0 on: {offset} where {wanted} was to be"
                    )
                    break

    def text(self, number: int) -> str:
        """Return what is known of a message's place."""
        return f"queue {self._queue_ids[number]}, offset {self._offsets[number]}"
