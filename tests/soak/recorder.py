"""What the clients were told, in some 75 bytes a message, and what of it cannot be true."""

from __future__ import annotations

import threading
from array import array
from collections import Counter
from collections.abc import Iterator
from typing import Final, final

from tests.soak.messages import GROUPS, Group
from tests.soak.places import UNKNOWN, Places

FAILURES_SHOWN_MAX: Final = 20
CLOCK_MS: Final = 1
"""The broker's time and ours are cut off to whole milliseconds."""


@final
class _GroupRecord:
    """What one group was told, by message number."""

    def __init__(self) -> None:
        self.attempts = array("L")
        """Bit n: the message came as its nth delivery."""
        self.acked_ms = array("q")
        """When an acknowledgement was answered first, Unix ms; 0: never."""
        self.forwarded: set[int] = set()
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
        self._is_sent = bytearray()
        """1: the broker acknowledged it; 0: whether it is stored is not known."""
        self._places = Places()
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
            first = len(self._places)
            self._places.add(topic, count)
            self._is_sent += bytes(count)
            for record in self._groups.values():
                record.attempts.extend([0] * count)
                record.acked_ms.extend([0] * count)
            return range(first, first + count)

    def sent(self, number: int, queue_offset: int, queue_id: int = UNKNOWN) -> None:
        """The broker acknowledged a send; a unary answer does not say in which queue."""
        with self._lock:
            self.counts["sent"] += 1
            self._is_sent[number] = 1
            self._put(number, queue_id, queue_offset)

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
            if not self._was_sent_to(group.topic, number, group.name):
                return
            record = self._groups[group]
            self.counts["delivered"] += 1
            self._put(number, queue_id, queue_offset)
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
            self._groups[group].forwarded.add(number)

    def fetched(self, topic: str, number: int, queue_id: int, queue_offset: int) -> None:
        """The bulk service showed a message."""
        with self._lock:
            if self._was_sent_to(topic, number, "the bulk service"):
                self.counts["fetched"] += 1
                self._put(number, queue_id, queue_offset)

    def stored(self, topic: str) -> int:
        """Return how many messages of a topic are known to be stored."""
        with self._lock:
            return self._places.stored(topic)

    def check(self, dead_letters: dict[Group, set[int]]) -> None:
        """Judge a run that is over, every group having received all there was.

        Args:
            dead_letters: What lies in each group's dead letter queue.
        """
        for group, record in self._groups.items():
            for number in sorted(record.forwarded - dead_letters[group]):
                self.fail(f"{group.name}: not a dead letter, as was said: {self._what(number)}")
            for number in self._meant_for(group):
                if not record.attempts[number] and number not in dead_letters[group]:
                    self.fail(f"{group.name} never got {self._what(number)}")
        for contradiction in self._places.contradictions():
            self.fail(contradiction)
        unanswered = [number for number, is_sent in enumerate(self._is_sent) if not is_sent]
        self.counts["unanswered sends"] = len(unanswered)
        self.counts["unanswered and stored"] = sum(map(self._places.is_known, unanswered))

    def _meant_for(self, group: Group) -> Iterator[int]:
        """Yield what was acknowledged and a group must have got."""
        for number, is_sent in enumerate(self._is_sent):
            if is_sent and self._places.topic(number) == group.topic and group.wants(number):
                yield number

    def _was_sent_to(self, topic: str, number: int, who: str) -> bool:
        is_known = number < len(self._places) and self._places.topic(number) == topic
        if not is_known:
            self.fail(f"{who} got message {number} from {topic}, where it was never sent")
        return is_known

    def _put(self, number: int, queue_id: int, queue_offset: int) -> None:
        if not self._places.put(number, queue_id, queue_offset):
            self.fail(f"at queue {queue_id}, offset {queue_offset} too: {self._what(number)}")

    def _what(self, number: int) -> str:
        """Return all that is known of a message."""
        groups = ", ".join(
            f"{group.name} deliveries {record.attempts[number]:#b}, "
            f"acknowledged {record.acked_ms[number] or 'never'}"
            for group, record in self._groups.items()
            if record.attempts[number]
        )
        answer = "send answered" if self._is_sent[number] else "outcome of the send unknown"
        return (
            f"message {number} of {self._places.topic(number)} ({answer}; "
            f"{self._places.text(number)}; {groups or 'not delivered'})"
        )
