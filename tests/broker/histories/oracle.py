"""What each group may, must and must never receive: two dicts, told what clients were answered.

A message is to a group what `Delivery` says. The oracle knows nothing of queues in memory,
journals or files, so a restart or a kill changes nothing for it: that is the promise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, final

from commitbus.broker.consuming.receipt_handle import ReceiptHandle
from commitbus.broker.metadata.groups import LockUnit
from tests.broker.histories.fairness import Fairness, UnfairError

INVISIBLE_RELEASED_MS = 1_000
"""After this long somebody gets what a client was given and did not read."""


class OracleError(AssertionError):
    """The broker broke a promise."""


@final
@dataclass
class Sent:
    """A message that was sent."""

    body: bytes
    topic: str
    tag: str
    number: int | None
    """The user property `n`."""
    message_group: str
    place: tuple[int, int] = (-1, 1 << 62)
    """Queue id and queue offset, as soon as anybody said them."""


@final
@dataclass(frozen=True)
class Filter:
    """A filter expression, and the same in Python."""

    expression: str
    wants: Callable[[Sent], bool]
    is_sql: bool = False


@final
@dataclass(frozen=True)
class Subscription:
    """A group and what it consumes."""

    group: str
    topic: str
    filter: Filter
    attempts_max: int
    lock_unit: LockUnit | None = None
    """None: the group is not FIFO."""


@final
@dataclass
class Delivery:
    """Where a message stands with a group."""

    sent: Sent
    attempt: int = 0
    """How often it was delivered; 0: never."""
    visible_at_ms: int = 0
    suspended: bool = False
    receiver: str = ""
    handle: str = ""
    """The latest one."""
    is_done: bool = False
    """Acknowledged, or a dead letter."""
    is_dead: bool = False
    """The dead letter queue must have it."""
    was_over: bool = False
    """The attempts were over at some time. Only the broker knows whether somebody looked then, or
    the group acknowledged it after all: the dead letter queue may have it."""
    may_be_dead: bool = False
    """It may have it from before the group's offset was reset."""

    @property
    def next_attempt(self) -> int:
        return self.attempt + (not self.suspended)


@final
class Receipt(NamedTuple):
    """A message as a consumer received it."""

    body: bytes
    attempt: int
    handle: str
    place: tuple[int, int]


@final
@dataclass
class Handle:
    """What a consumer may answer with."""

    subscription: Subscription
    body: bytes
    text: str
    expires_at_ms: int
    """As it says itself."""
    reset_count: int


@final
@dataclass
class Oracle:
    """All that is known of every message in every group."""

    in_flight_max: int
    """Of one queue and group."""
    fairness: Fairness
    messages: dict[bytes, Sent] = field(default_factory=dict)
    deliveries: dict[Subscription, dict[bytes, Delivery]] = field(default_factory=dict)
    resets: int = 0
    """How often offsets were reset, or groups or topics deleted; handles of before are void."""

    def subscribe(self, subscription: Subscription) -> None:
        """A group begins: at the first message, as long as that is stored."""
        self.deliveries[subscription] = {
            sent.body: Delivery(sent)
            for sent in self.messages.values()
            if _wants(subscription, sent)
        }

    def sent_one(self, sent: Sent) -> None:
        """A message is being sent. Somebody may have it before the answer is there."""
        self.messages[sent.body] = sent
        for subscription, deliveries in self.deliveries.items():
            if _wants(subscription, sent):
                deliveries[sent.body] = Delivery(sent)

    def time_is(self, now_ms: int) -> None:
        """Note whose attempts are over. The clock may be set back after that."""
        for subscription, deliveries in self.deliveries.items():
            for delivery in deliveries.values():
                if not delivery.is_done and delivery.visible_at_ms <= now_ms:
                    delivery.was_over |= delivery.next_attempt > subscription.attempts_max

    # What consumers did

    def received(
        self,
        subscription: Subscription,
        receipts: Sequence[Receipt],
        now_ms: int,
        *,
        invisible_ms: int,
        receiver: str = "",
        is_read: bool = True,
    ) -> list[Handle]:
        """Check what a group was given now; return the handles.

        With `is_read` False the client was given the messages but hung up before their end.
        """
        self.time_is(now_ms)
        available = [d for d in self.available(subscription, now_ms) if d.sent.place[0] >= 0]
        found = [self._given(subscription, receipt) for receipt in receipts]
        dying = sum(delivery.was_over for delivery in self.deliveries[subscription].values())
        try:
            self.fairness.answered(subscription, available, found, dying=dying)
        except UnfairError as error:
            raise OracleError(str(error)) from None
        if subscription.lock_unit is not None:
            self._check_order(subscription, found, now_ms, receiver)
        handles = []
        for receipt, delivery in zip(receipts, found, strict=True):
            is_repeated = subscription.lock_unit is not None and _is_same(delivery, receiver)
            self._check_delivery(delivery, receipt.attempt, now_ms, is_repeated=is_repeated)
            if receipt.attempt > subscription.attempts_max:
                raise OracleError(f"{receipt.body!r} comes as attempt {receipt.attempt}")
            delivery.attempt, delivery.handle = receipt.attempt, receipt.handle
            # What was not read to the end was no attempt.
            delivery.suspended, delivery.receiver = not is_read, receiver
            if not is_read:
                delivery.handle = ""  # what comes next has another
            delivery.visible_at_ms = now_ms + (invisible_ms if is_read else INVISIBLE_RELEASED_MS)
            handles.append(self._handle(subscription, receipt.body, receipt.handle))
        return handles

    def acknowledged(self, answers: Sequence[tuple[Handle, bool]], now_ms: int) -> None:
        """Check the answers to the acknowledgements of one request: which were accepted."""
        # Each handle is looked at before any message is taken out of flight.
        found = [
            self._answered(handle, now_ms, is_ok=is_ok, done_is_ok=True)
            for handle, is_ok in answers
        ]
        for (_, is_ok), delivery in zip(answers, found, strict=True):
            if is_ok and delivery is not None and not delivery.is_done:
                delivery.is_done = True

    def changed(
        self, handle: Handle, now_ms: int, new: str | None, *, duration_ms: int, suspend: bool
    ) -> Handle | None:
        """Check the answer to a change of the invisible time; `new` None: it was refused."""
        is_ok = new is not None
        delivery = self._answered(handle, now_ms, is_ok=is_ok, done_is_ok=False)
        if new is None or delivery is None:
            return None
        delivery.visible_at_ms, delivery.suspended = now_ms + duration_ms, suspend
        delivery.was_over = False  # or it would not have been found in flight
        delivery.handle = new
        return self._handle(handle.subscription, handle.body, new)

    def forwarded(self, handle: Handle, now_ms: int, *, is_ok: bool) -> None:
        """Check the answer to a consumer that gave a message up."""
        delivery = self._answered(handle, now_ms, is_ok=is_ok, done_is_ok=True)
        if is_ok and delivery is not None and not delivery.is_done:
            delivery.is_done = delivery.is_dead = True

    # What operators did

    def reset(self, subscription: Subscription, *, to_end: bool) -> None:
        """A group goes on at the end of its topic, or at its beginning."""
        self.resets += 1
        self.fairness.forget(subscription)
        for body, delivery in self.deliveries[subscription].items():
            fresh = Delivery(delivery.sent, is_done=to_end or body not in self.messages)
            fresh.may_be_dead = delivery.may_be_dead or delivery.is_dead or delivery.was_over
            self.deliveries[subscription][body] = fresh

    def topic_deleted(self, topic: str) -> None:
        """Nothing of a topic comes again."""
        self.resets += 1
        self.messages = {body: sent for body, sent in self.messages.items() if sent.topic != topic}
        for subscription, deliveries in self.deliveries.items():
            if subscription.topic == topic:
                self.fairness.forget(subscription)
                for delivery in deliveries.values():
                    delivery.is_done = True

    # What must come

    def available(self, subscription: Subscription, now_ms: int) -> list[Delivery]:
        """Return what a group must be given if it asks now; of a FIFO group the first of each unit.

        Not what a full queue may hold back.
        """
        open_ = [d for d in self.deliveries[subscription].values() if not d.is_done]
        ready = [
            d
            for d in open_
            if d.visible_at_ms <= now_ms and d.next_attempt <= subscription.attempts_max
        ]
        if subscription.lock_unit is None:
            return [d for d in ready if d.attempt or self._has_room(open_, d.sent.place[0])]
        if self.in_flight_max < len(open_):
            return []
        locked = {_unit(subscription, d) for d in open_ if d.visible_at_ms > now_ms}
        return [d for d in ready if _unit(subscription, d) not in locked]

    def has_out(self, subscription: Subscription, receiver: str) -> bool:
        """Return whether a receiver of a FIFO group must be given again what he was given.

        That is so where the first message of a lock unit and all that were delivered are his, and
        none of them may be a dead letter already.
        """
        if subscription.lock_unit is None:
            return False
        units: dict[object, list[Delivery]] = {}
        for delivery in self.deliveries[subscription].values():
            if not delivery.is_done:
                units.setdefault(_unit(subscription, delivery), []).append(delivery)
        return any(
            all(_is_same(d, receiver) and not d.was_over for d in unit if d.attempt)
            and _is_same(min(unit, key=lambda d: d.sent.place), receiver)
            for unit in units.values()
        )

    def next_visible_ms(self, now_ms: int) -> int | None:
        """Return when something becomes visible again next."""
        return min(
            (d.visible_at_ms for d in self._open() if d.visible_at_ms > now_ms), default=None
        )

    def is_settled(self) -> bool:
        """Return whether every message is acknowledged, or must be a dead letter by now."""
        return all(
            delivery.next_attempt > subscription.attempts_max
            for subscription, deliveries in self.deliveries.items()
            for delivery in deliveries.values()
            if not delivery.is_done
        )

    def check_dead_letters(self, group: str, bodies: Sequence[bytes]) -> None:
        """Check a whole dead letter queue, once all is settled."""
        if len(set(bodies)) != len(bodies):
            twice = sorted({body for body in bodies if bodies.count(body) > 1})
            if not all(self._may_die_twice(group, body) for body in twice):
                raise OracleError(f"dead letters of {group} more than once: {twice}")
        self._check_order_of_deaths(group, bodies)
        must, may = set[bytes](), set[bytes]()
        for subscription, deliveries in self.deliveries.items():
            if subscription.group == group:
                must |= {b for b, d in deliveries.items() if d.is_dead or not d.is_done}
                may |= {b for b, d in deliveries.items() if d.was_over or d.may_be_dead}
        if missing := must - set(bodies):
            raise OracleError(f"no dead letters of {group}: {sorted(missing)}")
        if others := set(bodies) - must - may:
            raise OracleError(f"dead letters of {group} that are none: {sorted(others)}")

    # The rules

    def _given(self, subscription: Subscription, receipt: Receipt) -> Delivery:
        delivery = self.deliveries[subscription].get(receipt.body)
        if delivery is None:
            raise OracleError(f"{subscription.group} does not want {receipt.body!r}")
        delivery.sent.place = receipt.place
        return delivery

    def _check_delivery(
        self, delivery: Delivery, attempt: int, now_ms: int, *, is_repeated: bool
    ) -> None:
        body = delivery.sent.body
        if delivery.is_done:
            raise OracleError(f"{body!r} comes again although it is settled")
        if is_repeated and attempt == delivery.attempt:
            return
        if now_ms < delivery.visible_at_ms:
            early_ms = delivery.visible_at_ms - now_ms
            raise OracleError(f"{body!r} comes again {early_ms} ms before its time")
        if attempt != delivery.next_attempt:
            raise OracleError(
                f"{body!r} comes as attempt {attempt}, which is attempt {delivery.next_attempt}"
            )

    def _check_order(
        self, subscription: Subscription, batch: Sequence[Delivery], now_ms: int, receiver: str
    ) -> None:
        """Check a batch of a FIFO group: of each lock unit the first ones, and nothing is out."""
        units: dict[object, list[Delivery]] = {}
        for delivery in batch:
            units.setdefault(_unit(subscription, delivery), []).append(delivery)
        for unit, given in units.items():
            rest = [
                d
                for d in self.deliveries[subscription].values()
                if not d.is_done
                and _unit(subscription, d) == unit
                # A repeated attempt gets them if nobody else has looked since.
                and (not d.was_over or any(d is other for other in given))
            ]
            out = [d for d in rest if d.visible_at_ms > now_ms and not _is_same(d, receiver)]
            if out:
                raise OracleError(f"{_bodies(given)} of {unit} come while {_bodies(out)} are out")
            rest.sort(key=lambda d: d.sent.place)
            if given != rest[: len(given)]:
                raise OracleError(
                    f"of {unit} come {_bodies(given)}, and {_bodies(rest[: len(given)])} are first"
                )

    def _check_order_of_deaths(self, group: str, bodies: Sequence[bytes]) -> None:
        """Check that what died of its attempts in a FIFO group did so in the order of its unit."""
        for subscription, deliveries in self.deliveries.items():
            if subscription.group != group or subscription.lock_unit is None:
                continue
            # Not what its consumer gave up, nor what may have died before a reset.
            dead = {b for b, d in deliveries.items() if not (d.is_dead or d.may_be_dead)}
            dead &= set(bodies)
            for unit in {_unit(subscription, deliveries[body]) for body in dead}:
                mine = {b for b in dead if _unit(subscription, deliveries[b]) == unit}
                of_unit = [body for body in deliveries if body in mine]
                if of_unit != [body for body in bodies if body in of_unit]:
                    raise OracleError(f"dead letters of {group} are not in order: {of_unit}")

    def _answered(
        self, handle: Handle, now_ms: int, *, is_ok: bool, done_is_ok: bool
    ) -> Delivery | None:
        """Check whether a handle was good; return the delivery if its group still has it."""
        delivery = self.deliveries[handle.subscription].get(handle.body)
        if delivery is None or handle.reset_count != self.resets:
            return delivery
        if delivery.is_done:
            expected = done_is_ok
        elif delivery.handle == handle.text:
            expected = delivery.visible_at_ms > now_ms
        else:
            # An older one is good for as long as its own time lasts.
            expected = handle.expires_at_ms > now_ms
        # What may be a dead letter already may count as done.
        if is_ok != expected and not delivery.was_over:
            state = "good" if expected else "void"
            raise OracleError(f"the handle of {handle.body!r} was {state}; accepted: {is_ok}")
        return delivery

    def _has_room(self, open_: Iterable[Delivery], queue_id: int) -> bool:
        in_flight = sum(d.attempt > 0 and d.sent.place[0] == queue_id for d in open_)
        return in_flight < self.in_flight_max

    def _may_die_twice(self, group: str, body: bytes) -> bool:
        return any(
            subscription.group == group and body in deliveries and deliveries[body].may_be_dead
            for subscription, deliveries in self.deliveries.items()
        )

    def _handle(self, subscription: Subscription, body: bytes, text: str) -> Handle:
        return Handle(
            subscription, body, text, ReceiptHandle.parse(text).expires_at_ms, self.resets
        )

    def _open(self) -> Iterable[Delivery]:
        return (
            delivery
            for deliveries in self.deliveries.values()
            for delivery in deliveries.values()
            if not delivery.is_done
        )


def _wants(subscription: Subscription, sent: Sent) -> bool:
    return subscription.topic == sent.topic and subscription.filter.wants(sent)


def _unit(subscription: Subscription, delivery: Delivery) -> object:
    """Return the lock unit of a message of a FIFO group."""
    if subscription.lock_unit is LockUnit.QUEUE:
        return delivery.sent.place[0]
    return delivery.sent.place[0], delivery.sent.message_group


def _is_same(delivery: Delivery, receiver: str) -> bool:
    """Return whether the same attempt asks again for what it was given."""
    return receiver != "" and delivery.receiver == receiver


def _bodies(deliveries: Iterable[Delivery]) -> list[bytes]:
    return [delivery.sent.body for delivery in deliveries]
