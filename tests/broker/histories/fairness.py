"""How long messages wait for their turn, counted in receives, and how long they may.

Two kinds compete for a batch of a group that is not FIFO: retries, which became visible again, and
new messages. Told of every answer what was there and what of it was given, this checks that

- neither kind is passed over more often in a row than the share of the retries allows,
- nor is a queue with messages of a kind, its turn among the queues included,
- within a queue and a kind who waits longest is given first.

So no message waits for more than a number of receives that is known beforehand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, final

if TYPE_CHECKING:
    from tests.broker.histories.oracle import Delivery, Subscription


class UnfairError(AssertionError):
    """A message waited for longer than it may."""


@final
class Waiting(NamedTuple):
    """Messages of a group that compete with each other."""

    subscription: Subscription
    is_retry: bool
    queue_id: int
    """-1: those of all queues."""


@final
@dataclass
class Fairness:
    """The waits of all groups."""

    retry_percent: int
    queues: Mapping[str, int]
    """By topic, how many there are."""
    passed_over: Counter[Waiting] = field(default_factory=Counter)
    """In how many receives in a row they were there, and none of them was given."""
    waits: dict[tuple[Subscription, bytes], int] = field(default_factory=dict)
    """By message: in how many receives it was there and was not given, since it was last."""
    longest: dict[bool, int] = field(default_factory=lambda: {False: 0, True: 0})
    """The longest wait of a message: False of a new one, True of a retry."""

    def answered(
        self,
        subscription: Subscription,
        available: Collection[Delivery],
        given: Collection[Delivery],
        *,
        dying: int,
    ) -> None:
        """Check one answer.

        Args:
            subscription: whose it is.
            available: what the group could have been given, before the answer changed it.
            given: what it was given.
            dying: how many messages may have become dead letters in place of a delivery.

        Raises:
            UnfairError: something has waited for too long, or was overtaken.
        """
        if subscription.lock_unit is not None:
            return
        bodies = {delivery.sent.body for delivery in given}
        # What was given was available, also where the oracle could not know of the room for it.
        available = [d for d in available if d.sent.body not in bodies] + [*given]
        for delivery in available:
            self._count(subscription, delivery, is_given=delivery.sent.body in bodies)
        for is_retry in (False, True):
            mine = [d for d in available if (d.attempt > 0) is is_retry]
            burials = dying if is_retry else 0
            self._check(Waiting(subscription, is_retry, -1), mine, bodies, burials)
            for queue_id in {d.sent.place[0] for d in mine}:
                in_queue = [d for d in mine if d.sent.place[0] == queue_id]
                self._check(Waiting(subscription, is_retry, queue_id), in_queue, bodies, burials)
                _check_order(in_queue, bodies, is_retry=is_retry)

    def forget(self, subscription: Subscription | None = None) -> None:
        """Begin anew, for all groups or one: whose turn it is may be forgotten with a broker."""
        for waiting in list(self.passed_over):
            if subscription in (None, waiting.subscription):
                del self.passed_over[waiting]

    def _count(self, subscription: Subscription, delivery: Delivery, *, is_given: bool) -> None:
        key = subscription, delivery.sent.body
        if is_given:
            self.waits.pop(key, None)
            return
        self.waits[key] = waits = self.waits.get(key, 0) + 1
        is_retry = delivery.attempt > 0
        self.longest[is_retry] = max(self.longest[is_retry], waits)

    def _check(
        self, waiting: Waiting, there: Iterable[Delivery], given: Collection[bytes], burials: int
    ) -> None:
        bodies = [delivery.sent.body for delivery in there]
        if not bodies or any(body in given for body in bodies):
            self.passed_over.pop(waiting, None)
            return
        self.passed_over[waiting] += 1
        allowed = self._allowed(waiting) * (1 + burials)
        if self.passed_over[waiting] > allowed:
            kind = "retries" if waiting.is_retry else "new messages"
            raise UnfairError(
                f"{kind} {there} of {waiting.subscription.group} (queue {waiting.queue_id}) were "
                f"passed over in {self.passed_over[waiting]} receives in a row, {allowed} may be"
            )

    def _allowed(self, waiting: Waiting) -> int:
        percent = self.retry_percent if waiting.is_retry else 100 - self.retry_percent
        turn_every = -(-100 // percent)
        if waiting.queue_id < 0:
            return turn_every - 1
        return turn_every * self.queues[waiting.subscription.topic]


def _check_order(there: Iterable[Delivery], given: Collection[bytes], *, is_retry: bool) -> None:
    """Check that of one queue and kind nobody overtook one who waits longer."""

    def since(delivery: Delivery) -> int:
        return delivery.visible_at_ms if is_retry else delivery.sent.place[1]

    left = [delivery for delivery in there if delivery.sent.body not in given]
    first_left = min(map(since, left), default=None)
    for delivery in there:
        if first_left is not None and delivery.sent.body in given and since(delivery) > first_left:
            names = [d.sent.body for d in left if since(d) < since(delivery)]
            raise UnfairError(f"{delivery.sent.body!r} is given before {names}")
