"""What the clients were told, in some 50 bytes a message, and what of it cannot be true."""

from __future__ import annotations

import threading
from array import array
from collections import Counter
from collections.abc import Iterator
from typing import Final, final

from tests.soak.messages import GROUPS, TOPICS, Group

FAILURES_SHOWN_MAX: Final = 20
CLOCK_MS: Final = 1
"""The broker's time and ours are cut off to whole milliseconds."""

_TOPICS: Final = tuple(TOPICS)
_UNKNOWN: Final = -1


@final
class _GroupRecord:
    """What one group was told, by message number."""

    def __init__(self) -> None:
        self.attempts = array("L")
        """Bit n: the message came as its nth delivery."""
        self.acked_ms = array("q")
        """When an acknowledgement was answered first, Unix ms; 0: never."""
        self.dead: set[int] = set()
        """The broker answered that these are in the dead letter queue."""


@final
class Recorder:
    """Sent, delivered, acknowledged. Used by all clients of a broker, on any thread.

    A message is a number that is sent once and never again, so it lies at one place, for good.
    """

    def __init__(self) -> None:
        self.failures: list[str] = []
        """The first of them, each with what was known."""
        self.counts: Counter[str] = Counter()
        self._lock = threading.RLock()
        self._topics = bytearray()
        self._is_sent = bytearray()
        """1: the broker acknowledged it; 0: whether it is stored is not known."""
        self._queue_ids = array("b")
        self._offsets = array("q")
        self._groups = {group: _GroupRecord() for group in GROUPS}

    def fail(self, what: str) -> None:
        """Note what must not be."""
        with self._lock:
            self.counts["failures"] += 1
            if len(self.failures) < FAILURES_SHOWN_MAX:
                self.failures.append(what)

    def count(self, what: str, number: int = 1) -> None:
        """Count something that is told in the summary only."""
        with self._lock:
            self.counts[what] += number

    def sending(self, topic: str, count: int) -> range:
        """Return the numbers of messages that are about to be sent."""
        with self._lock:
            first = len(self._topics)
            self._topics += bytes([_TOPICS.index(topic)]) * count
            self._is_sent += bytes(count)
            self._queue_ids.extend([_UNKNOWN] * count)
            self._offsets.extend([_UNKNOWN] * count)
            for record in self._groups.values():
                record.attempts.extend([0] * count)
                record.acked_ms.extend([0] * count)
            return range(first, first + count)

    def sent(self, number: int, queue_offset: int, queue_id: int = _UNKNOWN) -> None:
        """The broker acknowledged a send; a unary answer does not say in which queue."""
        with self._lock:
            self.counts["sent"] += 1
            self._is_sent[number] = 1
            self._lies_at(number, queue_id, queue_offset)

    def delivered(
        self,
        group: Group,
        number: int,
        *,
        queue_id: int,
        queue_offset: int,
        attempt: int,
        pop_ms: int,
    ) -> None:
        """A consumer got a message, which the broker handed out at `pop_ms`."""
        with self._lock:
            if not self._is_known(group.name, group.topic, number):
                return
            record = self._groups[group]
            self.counts["delivered"] += 1
            self._lies_at(number, queue_id, queue_offset)
            if not group.wants(number):
                self.fail(f"{group.name} does not want {self._what(number)}")
            if record.attempts[number] >> attempt & 1:
                self.fail(f"{group.name}: twice delivery {attempt} of {self._what(number)}")
            record.attempts[number] |= 1 << attempt
            acked_ms = record.acked_ms[number]
            if acked_ms and pop_ms > acked_ms + CLOCK_MS:
                self.fail(
                    f"{group.name}: delivery {attempt}, made at {pop_ms}, of a message whose "
                    f"acknowledgement was answered at {acked_ms}: {self._what(number)}"
                )

    def acked(self, group: Group, number: int, now_ms: int) -> None:
        """An acknowledgement was answered, at `now_ms` at the latest."""
        with self._lock:
            record = self._groups[group]
            if not record.acked_ms[number]:
                self.counts["acked"] += 1
                record.acked_ms[number] = now_ms

    def forwarded(self, group: Group, number: int, now_ms: int) -> None:
        """The broker answered that it moved a message to the group's dead letter queue."""
        with self._lock:
            self.counts["forwarded"] += 1
            self.acked(group, number, now_ms)
            self._groups[group].dead.add(number)

    def fetched(self, topic: str, number: int, queue_id: int, queue_offset: int) -> None:
        """The bulk service showed a message."""
        with self._lock:
            if self._is_known("the bulk service", topic, number):
                self.counts["fetched"] += 1
                self._lies_at(number, queue_id, queue_offset)

    def stored(self, topic: str) -> int:
        """Return how many messages of a topic are known to be stored."""
        index = _TOPICS.index(topic)
        with self._lock:
            places = zip(self._topics, self._offsets, strict=True)
            return sum(of == index and offset != _UNKNOWN for of, offset in places)

    def check(self, dead_letters: dict[Group, set[int]]) -> None:
        """Judge a run that is over, every group having received all there was.

        Args:
            dead_letters: What lies in each group's dead letter queue.
        """
        for group, record in self._groups.items():
            for number in sorted(record.dead - dead_letters[group]):
                self.fail(f"{group.name}: not a dead letter, as was said: {self._what(number)}")
            for number in self._sent_to(group):
                if not record.attempts[number] and number not in dead_letters[group]:
                    self.fail(f"{group.name} never got {self._what(number)}")
        unanswered = [n for n, is_sent in enumerate(self._is_sent) if not is_sent]
        self.counts["unanswered sends"] = len(unanswered)
        self.counts["unanswered and stored"] = sum(self._offsets[n] >= 0 for n in unanswered)
        self._check_queues()

    def _sent_to(self, group: Group) -> Iterator[int]:
        topic = _TOPICS.index(group.topic)
        for number, is_sent in enumerate(self._is_sent):
            if is_sent and self._topics[number] == topic and group.wants(number):
                yield number

    def _check_queues(self) -> None:
        """Every offset of a queue, from 0 on, is one message's."""
        queues: dict[tuple[int, int], array[int]] = {}
        for topic, queue_id, offset in zip(
            self._topics, self._queue_ids, self._offsets, strict=True
        ):
            if queue_id != _UNKNOWN:
                queues.setdefault((topic, queue_id), array("q")).append(offset)
        for (topic, queue_id), offsets in queues.items():
            for wanted, offset in enumerate(sorted(offsets)):
                if offset != wanted:
                    self.fail(
                        f"{_TOPICS[topic]}, queue {queue_id}: {len(offsets)} messages do not lie "
                        f"at the offsets from 0 on: {offset} where {wanted} was to be"
                    )
                    break

    def _is_known(self, who: str, topic: str, number: int) -> bool:
        known = number < len(self._topics) and _TOPICS[self._topics[number]] == topic
        if not known:
            self.fail(f"{who} got message {number} from {topic}, where it was never sent")
        return known

    def _lies_at(self, number: int, queue_id: int, queue_offset: int) -> None:
        """Check a place against the one that was known, and keep it."""
        is_new = self._offsets[number] == _UNKNOWN
        is_same_queue = _UNKNOWN in {queue_id, self._queue_ids[number]} or (
            queue_id == self._queue_ids[number]
        )
        if not is_new and (queue_offset != self._offsets[number] or not is_same_queue):
            self.fail(f"at queue {queue_id}, offset {queue_offset} too: {self._what(number)}")
            return
        self._offsets[number] = queue_offset
        if queue_id != _UNKNOWN:
            self._queue_ids[number] = queue_id

    def _what(self, number: int) -> str:
        """Return all that is known of a message."""
        groups = ", ".join(
            f"{group.name} deliveries {record.attempts[number]:#b}, "
            f"acknowledged {record.acked_ms[number] or 'never'}"
            for group, record in self._groups.items()
            if record.attempts[number]
        )
        return (
            f"message {number} of {_TOPICS[self._topics[number]]} "
            f"({'send answered' if self._is_sent[number] else 'outcome of the send unknown'}; "
            f"queue {self._queue_ids[number]}, offset {self._offsets[number]}; "
            f"{groups or 'not delivered'})"
        )
