"""What a store must hold: a dict of lists, fed by what it answered.

Each queue is a list of messages, indexed by queue offset. From each message the oracle knows how
much was promised about it:

| the store said                             | a kill keeps it | a power cut keeps it |
|--------------------------------------------|-----------------|----------------------|
| nothing: the call did not return           | perhaps         | perhaps              |
| appended (`put` returned)                  | yes             | perhaps              |
| durable (the watermark passed it)          | yes             | yes                  |
| shown to a consumer, SYNC_FLUSH            | yes             | yes                  |
| shown to a consumer, ASYNC_FLUSH           | yes             | perhaps              |
| found by a recovery that then returned     | yes             | yes                  |
| its topic was deleted (the call returned)  | gone            | gone                 |
| its log file was deleted by retention      | gone            | gone                 |

What was lost or deleted never comes back, and below the end of the log nothing is missing. A queue
offset stands for one message for ever, deleted ones included, unless a power cut took the message.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple, TypeAlias, final

from commitbus.commitlog.types import AppendResult, PhysicalOffset, QueueOffset
from tests.simulation.scheduler import SimulationError

QueueKey: TypeAlias = tuple[str, int]
_NEVER = 1 << 60


@final
class Fate(Enum):
    """What deletions mean for a message."""

    STAYS = auto()
    MAY_BE_GONE = auto()
    """A deletion of its topic began, and either ran beside its `put` or did not return."""
    GONE = auto()


@final
@dataclass
class Sent:
    """A message that a producer gave to the store."""

    queue: QueueKey
    body: bytes
    batch: int = 0
    """Number of its batch, 0 for none."""
    result: AppendResult | None = None
    is_durable: bool = False
    is_shown: bool = False
    sent_ms: int = 0
    """True time at which it was given to the store."""
    fate: Fate = Fate.STAYS
    is_deleted: bool = False
    """Whether a deletion of its topic took it, or may have."""
    gone_at: int = _NEVER
    """The oracle's `now` when the deletion had returned."""
    is_lost: bool = False
    """A power cut took it, but a deletion that noted its queue offset survived. No message has
    that, so that the queue may go back to it."""


@final
class Found(NamedTuple):
    """A message as a consumer gets it."""

    body: bytes
    physical_offset: int
    size_bytes: int
    queue_offset: int


@final
class Seen(NamedTuple):
    """What a store shows of itself."""

    found: Mapping[QueueKey, Sequence[Found]]
    """By queue the messages, dense."""
    first_offsets: Mapping[QueueKey, int]
    next_offsets: Mapping[QueueKey, int]
    """The queue offset that the next message gets."""
    log_begin: int
    log_end: int
    true_ms: int
    """When, by a clock that is right."""


@final
@dataclass
class Deletion:
    """A topic that is being deleted."""

    topic: str
    before: list[Sent]
    """Appended before it began."""
    beside: list[Sent] = field(default_factory=list)
    """Given to the store while it ran, or not appended yet when it began."""
    in_doubt: list[Sent] = field(default_factory=list)
    """Certain to stay but for this deletion."""


@final
class Oracle:
    """The promises of one store over all its processes."""

    def __init__(self, *, is_sync: bool, reserved_ms: int | None = None) -> None:
        """`reserved_ms`: how long retention leaves messages alone; None: for ever."""
        self._is_sync, self._reserved_ms = is_sync, reserved_ms
        self.queues: dict[QueueKey, list[Sent | None]] = {}
        """None where a message is known to be, but not which."""
        self.pending: dict[bytes, Sent] = {}
        """By body: given to the store, which has not said what became of them."""
        self.now = 0
        """A number that grows with what happens."""
        self._gone: set[bytes] = set()
        self._deletions: list[Deletion] = []
        self._ends_before_loss: dict[QueueKey, int] = {}
        """How far queues of deleted topics may have been noted before a power cut."""
        self._durable_end = 0
        self._batches = 0

    def copy(self) -> Oracle:
        """Return the promises as they are now."""
        return copy.deepcopy(self)

    # What the store says

    def sending(self, queue: QueueKey, bodies: Sequence[bytes], *, now_ms: int = 0) -> list[Sent]:
        """A producer is about to put these."""
        if len(bodies) > 1:
            self._batches += 1
        batch = self._batches if len(bodies) > 1 else 0
        messages = [Sent(queue, body, batch, sent_ms=now_ms) for body in bodies]
        for message in messages:
            self.pending[message.body] = message
        for deletion in self._deletions:
            deletion.beside += [m for m in messages if queue[0] == deletion.topic]
        return messages

    def refused(self, messages: Sequence[Sent]) -> None:
        """The put raised: none of these may ever be seen."""
        for message in messages:
            del self.pending[message.body]
            self._gone.add(message.body)

    def appended(self, messages: Sequence[Sent], results: Sequence[AppendResult]) -> None:
        """The put returned."""
        for message, result in zip(messages, results, strict=True):
            message.result = result
            message.is_durable = result.end_offset <= self._durable_end
            self._place(message, result.queue_offset)
            self.pending.pop(message.body, None)

    def durable(self, end: int) -> None:
        """The watermark is at `end`."""
        self._durable_end = max(self._durable_end, end)
        for queue in self.queues.values():
            for message in queue:
                if message is not None and message.result is not None:
                    message.is_durable |= message.result.end_offset <= self._durable_end

    def shown(self, queue: QueueKey, found: Found, *, asked_at: int | None = None) -> None:
        """A consumer got a message, which it asked for when `now` was `asked_at`.

        Raises:
            SimulationError: It cannot be the one at this place.
        """
        message = self._identify(queue, found)
        message.is_shown = True
        if asked_at is not None and message.gone_at < asked_at:
            raise SimulationError(
                f"{queue} at queue offset {found.queue_offset}: the topic was deleted since"
            )

    def passed_over(
        self, queue: QueueKey, start: int, end: int, log_begin: int, now_ms: int
    ) -> None:
        """A consumer asked for [start, end) of a queue and was shown what lies behind.

        Raises:
            SimulationError: One of them must be there.
        """
        for offset, message in enumerate(self.queues.get(queue, [])[start:end], start):
            if message is not None and message.fate is Fate.STAYS:
                self._check_expired(f"{queue} at queue offset {offset}", message, log_begin, now_ms)

    # What operators do

    def deleting(self, topic: str) -> Deletion:
        """A deletion begins."""
        of_topic = [m for key, queue in self.queues.items() if key[0] == topic for m in queue]
        deletion = Deletion(topic, [m for m in of_topic if m is not None])
        deletion.beside += [m for m in self.pending.values() if m.queue[0] == topic]
        self._deletions.append(deletion)
        for message in deletion.before:
            if message.fate is Fate.STAYS:
                message.fate = Fate.MAY_BE_GONE
                deletion.in_doubt.append(message)
        return deletion

    def deleted(self, deletion: Deletion) -> None:
        """It returned."""
        self.now += 1
        self._deletions.remove(deletion)
        for message in deletion.before:
            message.fate, message.gone_at = Fate.GONE, min(message.gone_at, self.now)
            message.is_deleted = True
        for message in deletion.beside:
            message.is_deleted = True
            if message.fate is Fate.STAYS:
                message.fate = Fate.MAY_BE_GONE
        self.now += 1

    def not_deleted(self, deletion: Deletion, *, is_undone: bool) -> None:
        """It raised, and changed nothing if `is_undone`."""
        self._deletions.remove(deletion)
        if is_undone:
            for message in deletion.in_doubt:
                message.fate = Fate.STAYS
            return
        for message in (*deletion.before, *deletion.beside):
            message.is_deleted = True
            if message.fate is Fate.STAYS:
                message.fate = Fate.MAY_BE_GONE

    # What must be

    def recovered(self, seen: Seen, *, power_cut: bool) -> None:
        """A start has returned, and this is what it shows.

        Raises:
            SimulationError: A promise is broken.
        """
        self._end_deletions()
        for key in sorted({*self.queues, *seen.found}):
            messages, first = seen.found.get(key, ()), seen.first_offsets[key]
            if messages and messages[0].queue_offset != first:
                raise SimulationError(f"{key} begins at {first}, found {messages[0].queue_offset}")
            for item in messages:
                self._identify(key, item)
            end = first + len(messages)
            self._forget_deleted(key, end, seen.log_begin)
            self._check_lost(key, end, seen.log_end, power_cut=power_cut)
            self._check_end(key, end)
            self._check_gone(key, first, seen)
            if seen.next_offsets[key] != end:
                raise SimulationError(
                    f"{key} ends at {end}, but its next message gets {seen.next_offsets[key]}"
                )
        if not power_cut:
            self._check_batches()
        # What is unknown still was never appended, and what is there was made durable.
        self._gone.update(self.pending)
        self.pending.clear()
        self._ends_before_loss.clear()
        for queue in self.queues.values():
            for sent in queue:
                assert sent is not None
                sent.is_durable = True
        self._durable_end = seen.log_end

    def _end_deletions(self) -> None:
        """What ran when the process died has happened or not."""
        for deletion in self._deletions:
            for message in deletion.beside:
                message.fate = Fate.MAY_BE_GONE
            for message in (*deletion.before, *deletion.beside):
                message.is_deleted = True
        self._deletions.clear()

    def check_complete(
        self, found: Mapping[QueueKey, Sequence[Found]], log_begin: int, log_end: int
    ) -> None:
        """See that all messages that stay, and lie in these bounds of the log, are in their queues.

        Raises:
            SimulationError: One is not.
        """
        for key, queue in self.queues.items():
            present = {message.queue_offset for message in found.get(key, ())}
            for offset, message in enumerate(queue):
                if message is None or message.fate is not Fate.STAYS or message.result is None:
                    continue
                in_log = log_begin <= message.result.physical_offset < log_end
                if in_log and offset not in present:
                    raise SimulationError(
                        f"{key} at queue offset {offset}: missing in a store that is called sound"
                    )

    def _check_gone(self, key: QueueKey, first: int, seen: Seen) -> None:
        """Hold what a queue does not have at its beginning against what was deleted."""
        queue = self.queues[key]
        for offset, message in enumerate(queue):
            if message is None:
                # It was never said to be appended, and is gone by now.
                queue[offset] = Sent(key, b"?", fate=Fate.GONE)
                continue
            if message.result is not None and message.result.physical_offset >= seen.log_end:
                message.is_lost = True
            if offset >= first:
                if message.fate is Fate.GONE:
                    raise SimulationError(f"{key} at queue offset {offset}: a deleted one is back")
                message.fate = Fate.STAYS
                continue
            if message.fate is Fate.STAYS:
                where = f"{key} at queue offset {offset}"
                self._check_expired(where, message, seen.log_begin, seen.true_ms)
            message.fate = Fate.GONE

    def _check_expired(self, where: str, message: Sent, log_begin: int, now_ms: int) -> None:
        assert message.result is not None
        if message.result.physical_offset >= log_begin:
            raise SimulationError(f"{where}: a message is missing at the beginning of its queue")
        if self._reserved_ms is None:
            raise SimulationError(f"{where}: the log has lost its beginning")
        if not message.is_durable:
            raise SimulationError(f"{where}: retention took what was not durable")
        if now_ms - message.sent_ms < self._reserved_ms // 2:
            age_s = (now_ms - message.sent_ms) / 1000
            raise SimulationError(f"{where}: retention took a message of {age_s:.0f} s")

    def _forget_deleted(self, key: QueueKey, end: int, log_begin: int) -> None:
        """Let a queue begin anew of which all was deleted, and nothing is left in the log.

        The note of a deletion lasts as long as the log has bytes from before.
        """
        queue = self.queues.setdefault(key, [])
        if end < len(queue) and all(_is_forgotten(message, log_begin) for message in queue):
            del queue[end:]

    def _check_end(self, key: QueueKey, end: int) -> None:
        """Extend a queue by what a deletion noted of messages that a power cut then took."""
        queue = self.queues[key]
        if end > len(queue):
            if end > self._ends_before_loss.get(key, 0):
                raise SimulationError(f"{key} ends at {end}, which leaves a gap from {len(queue)}")
            lost = (Sent(key, b"?", fate=Fate.GONE, is_lost=True) for _ in range(len(queue), end))
            queue += lost

    def _check_lost(self, key: QueueKey, count: int, end: int, *, power_cut: bool) -> None:
        queue = self.queues.setdefault(key, [])
        pending = sum(message.queue == key for message in self.pending.values())
        for offset, message in enumerate(queue[count:], count):
            if message is None or message.is_lost:
                continue
            where = f"{key[0]}/{key[1]} at queue offset {offset}"
            if message.result is None:
                raise SimulationError(f"{where}: it will be handed out again")
            if message.is_durable:
                what = "is lost" if message.fate is Fate.STAYS else "had it: it is handed out again"
                raise SimulationError(f"{where}: a durable message {what}")
            if message.is_shown and self._is_sync:
                raise SimulationError(f"{where}: a message that a consumer saw is lost")
            if not power_cut:
                raise SimulationError(f"{where}: a kill lost an appended message")
            if message.result.physical_offset < end:
                raise SimulationError(f"{where}: it is missing, though the log goes on behind it")
            self._gone.add(message.body)
        if power_cut and any(m is not None and m.fate is not Fate.STAYS for m in queue):
            self._ends_before_loss[key] = len(queue) + pending
        del queue[count:]

    def _check_batches(self) -> None:
        present = {m.batch for queue in self.queues.values() for m in queue if m is not None}
        for message in self.pending.values():
            if message.batch and message.batch in present:
                raise SimulationError(f"a kill left half of batch {message.batch}")

    def _identify(self, key: QueueKey, found: Found) -> Sent:
        queue = self.queues.setdefault(key, [])
        where = f"{key[0]}/{key[1]} at queue offset {found.queue_offset}"
        known = queue[found.queue_offset] if found.queue_offset < len(queue) else None
        if known is None:
            known = self.pending.get(found.body)
            if known is None or known.queue != key:
                what = "one that was lost before" if found.body in self._gone else "an alien one"
                raise SimulationError(f"{where}: {what}: {found.body[:40]!r}")
            if known.result is None:
                known.result = AppendResult(
                    PhysicalOffset(found.physical_offset),
                    found.size_bytes,
                    QueueOffset(found.queue_offset),
                    0,
                )
            self._place(known, found.queue_offset)
            del self.pending[found.body]
        if known.result is None:
            raise SimulationError(f"{where}: {found.body[:40]!r} has a queue offset of a lost one")
        if known.body != found.body:
            raise SimulationError(f"{where}: {found.body[:40]!r} instead of {known.body[:40]!r}")
        if known.result.physical_offset != found.physical_offset:
            raise SimulationError(
                f"{where}: at physical offset {found.physical_offset} instead of "
                f"{known.result.physical_offset}"
            )
        return known

    def _place(self, message: Sent, queue_offset: int) -> None:
        queue = self.queues.setdefault(message.queue, [])
        while len(queue) <= queue_offset:
            queue.append(None)
        there = queue[queue_offset]
        if there is not None and there is not message:
            raise SimulationError(f"two messages at {message.queue} queue offset {queue_offset}")
        queue[queue_offset] = message


def _is_forgotten(message: Sent | None, log_begin: int) -> bool:
    """Return whether a message was deleted, and the log begins behind it or has lost it."""
    if message is None or not message.is_deleted:
        return message is not None and message.is_lost
    return message.is_lost or message.result is None or message.result.physical_offset < log_begin
