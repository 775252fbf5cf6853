"""Random histories: what producers, consumers, operators, clocks and kills do to one broker.

A seed is a history. Receivers wait in the broker as long polls do; after each step nobody may wait
while there is something for him, and everything that a client was answered is told to the oracle.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, final

import trio
import trio.testing

from commitbus.broker.admin.groups import delete_group, reset_group_offsets
from commitbus.broker.admin.topics import delete_topic
from commitbus.broker.messaging.filters import prepare_filter
from commitbus.broker.metadata.groups import FIFO_LOCK_UNIT_ATTRIBUTE, LockUnit
from commitbus.broker.rpc.proto import admin_v1_pb2 as admin_pb
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from commitbus.flush.policy import FlushMode
from tests.broker.histories.broker import VirtualBroker, dead_letters
from tests.broker.histories.fairness import Fairness
from tests.broker.histories.filters import FILTERS, filter_expression
from tests.broker.histories.oracle import (
    Handle,
    Oracle,
    OracleError,
    Sent,
    Subscription,
)
from tests.broker.histories.outcome import Outcome
from tests.broker.histories.receiver import Arrivals, Poll
from tests.broker.messaging.bus import Bus, make_message
from tests.simulation.scheduler import repeatable

SOON_MS: Final = 10
"""Who waits has a message this long after it is visible. Virtual time: no machine is too slow."""
SET_FORWARD_S: Final = 1.0
"""After the wall clock was set forward, who waits has what is visible by it after this long."""
STEP_MS_MAX: Final = 5_000
RETRY_PERCENTS: Final = (20, 50, 5)
REAL_WAITS_MAX: Final = 1_000
"""Of 5 ms: for the store's threads, which run in real time."""


@final
class History:
    """A seed at work."""

    def __init__(self, seed: int, directory: Path, clock: trio.testing.MockClock) -> None:
        self.rng = repeatable(seed)
        self.clock, self.outcome = clock, Outcome()
        in_flight_max = self.rng.choice([10_000, 10_000, 10_000, 5])
        retry_percent = RETRY_PERCENTS[seed % len(RETRY_PERCENTS)]
        self.broker = VirtualBroker(
            directory,
            clock,
            flush_mode=self.rng.choice([FlushMode.ASYNC_FLUSH] * 3 + [FlushMode.SYNC_FLUSH]),
            in_flight_max=in_flight_max,
            retry_percent=retry_percent,
        )
        self.topics = {f"T{n}": self.rng.randint(1, 4) for n in range(self.rng.randint(1, 2))}
        self.oracle = Oracle(in_flight_max, Fairness(retry_percent, self.topics))
        self.subscriptions = self._subscriptions()
        self.handles: list[Handle] = []
        self.polls: list[Poll] = []
        self.last_polls: dict[Subscription, Poll] = {}
        """Of FIFO groups: what a client may ask for again."""
        self.number = 0
        self.clock_unsure_until_s = 0.0
        self.said: list[str] = []
        self.arrivals: Arrivals
        self.bus: Bus
        self.nursery: trio.Nursery

    def _subscriptions(self) -> list[Subscription]:
        units: list[LockUnit | None] = [None, None, *LockUnit]
        return [
            Subscription(
                f"G{n}",
                self.rng.choice(list(self.topics)),
                self.rng.choice(FILTERS),
                attempts_max=self.rng.randint(1, 4),
                lock_unit=self.rng.choice(units),
            )
            for n in range(self.rng.randint(1, 4))
        ]

    # The whole

    async def run(self, steps: int) -> None:
        """Make the history, then consume everything that is left and look at what is dead."""
        for filter_ in FILTERS:
            # Else it would depend on the histories before whether this takes a thread.
            await prepare_filter(filter_expression(filter_))
        while self.outcome.steps < steps:
            await self._live(self.rng.randint(5, 60), steps)
        async with self.broker.running() as self.bus, trio.open_nursery() as self.nursery:
            await self._drain()
            for subscription in self.subscriptions:
                bodies = dead_letters(self.bus, subscription.group)
                self.oracle.check_dead_letters(subscription.group, bodies)
                self.outcome.dead += len(bodies)
            self.nursery.cancel_scope.cancel()
        longest = self.oracle.fairness.longest
        self.outcome.new_waited, self.outcome.retries_waited = longest[False], longest[True]

    async def _live(self, steps: int, steps_max: int) -> None:
        take_copy: Callable[[], None] | None = None
        async with self.broker.running() as self.bus, trio.open_nursery() as self.nursery:
            self.arrivals = Arrivals(self.bus.context.store)
            await self._set_up()
            while steps and self.outcome.steps < steps_max:
                steps -= 1
                self.outcome.steps += 1
                await self._step()
                await self._quiet()
            if self.rng.random() < 0.3:
                self.bus.context.progress.save()
                self._say("save")
            if self.rng.random() < 0.6:
                take_copy = self.broker.kill()
            self._say("kill" if take_copy else "restart")
            self.outcome.kills += take_copy is not None
            self.outcome.restarts += take_copy is None
            self.oracle.fairness.forget()
            self.nursery.cancel_scope.cancel()
        self.polls.clear()
        if take_copy:
            take_copy()

    async def _set_up(self) -> None:
        for topic, queues in self.topics.items():
            if self.bus.context.metadata.topic(topic) is None:
                await self._create_topic(topic, queues)
        for subscription in self.subscriptions:
            if self.bus.context.metadata.group(subscription.group) is None:
                await self._create_group(subscription)
                self.oracle.subscribe(subscription)

    async def _create_topic(self, topic: str, queues: int) -> None:
        orderly = any(s.lock_unit and s.topic == topic for s in self.subscriptions)
        await self.bus.topic(
            topic, queues, attributes={"message.type": "FIFO" if orderly else "NORMAL"}
        )

    async def _create_group(self, subscription: Subscription) -> None:
        unit = subscription.lock_unit
        await self.bus.group(
            subscription.group,
            retry_max_times=subscription.attempts_max - 1,
            consume_message_orderly=unit is not None,
            attributes={FIFO_LOCK_UNIT_ATTRIBUTE: str(unit)} if unit else {},
        )

    async def _step(self) -> None:
        steps: dict[Callable[[], Awaitable[None]], int] = {
            self._send: 20,
            self._receive: 25,
            self._acknowledge: 14,
            self._change: 10,
            self._advance: 14,
            self._forward: 2,
            self._give_up_waiting: 3,
            self._set_clock: 3,
            self._reset: 1,
            self._delete_group: 1,
            self._delete_topic: 1,
            self._rush: 3,
        }
        (step,) = self.rng.choices(list(steps), list(steps.values()))
        await step()

    # Steps of producers and consumers

    async def _send(self) -> None:
        topic = self.rng.choice(list(self.topics))
        for _ in range(self.rng.choice([1, 1, 2, 6])):
            await self._send_one(topic)

    async def _send_one(self, topic: str) -> None:
        self.number += 1
        body, rng = b"%d" % self.number, self.rng
        message = make_message(body, topic=topic, message_id=f"id-{self.number}")
        sent = Sent(
            body,
            topic,
            tag=rng.choice(["", "a", "b", "c"]),
            number=rng.choice([None, *range(8)]),
            message_group=rng.choice("xyz") if self._is_fifo(topic) else "",
        )
        if sent.tag:
            message.system_properties.tag = sent.tag
        if sent.number is not None:
            message.user_properties["n"] = str(sent.number)
        if sent.message_group:
            message.system_properties.message_group = sent.message_group
        self._say(f"send {sent}")
        before = self._ends(topic)
        self.oracle.sent_one(sent)
        response = await self.bus.unary("SendMessage", pb.SendMessageRequest(messages=[message]))
        if response.status.code != pb.OK:
            raise OracleError(f"message {body!r} was refused: {response.status.message}")
        self.bus.settle()
        ((queue_id, end),) = self._ends(topic).items() - before.items()
        self.arrivals.wait_for(topic, queue_id, end)
        sent.place = queue_id, end - 1
        self.outcome.sent += 1
        # Whether the next one comes in the same batch would be up to the store's threads.
        await self._quiet()

    async def _receive(self) -> None:
        subscription, rng = self.rng.choice(self.subscriptions), self.rng
        last = self.last_polls.get(subscription)
        attempt_id = f"attempt-{self.outcome.steps}"
        if last is not None and rng.random() < 0.3:
            attempt_id = last.attempt_id
        poll = Poll(
            subscription,
            batch_size=rng.choice([1, 2, 5, 32]),
            invisible_ms=rng.choice([1_000, 5_000, 20_000, 40_000]),
            attempt_id=attempt_id if subscription.lock_unit else "",
            hangs_up=rng.random() < 0.08,
            when_given=self._given,
        )
        is_repeated = self.oracle.has_out(subscription, poll.attempt_id)
        self._begin(poll, polling_s=rng.choice([5, 10, 20]))
        await self._quiet()
        if is_repeated and poll in self.polls:
            raise OracleError(f"attempt {poll.attempt_id} is not given again what it was given")

    def _begin(self, poll: Poll, *, polling_s: int) -> None:
        self._say(f"receive {poll.subscription.group} {poll.batch_size} {poll.attempt_id}")
        if poll.attempt_id:
            self.last_polls[poll.subscription] = poll
        self.polls.append(poll)
        self.nursery.start_soon(self._wait, poll, polling_s)

    async def _wait(self, poll: Poll, polling_s: int) -> None:
        """Call the handler as a transport does, and tell the oracle what came of it."""
        try:
            with poll.scope:
                await poll.carry(self.bus.methods["ReceiveMessage"], self.bus.call(), polling_s)
        finally:
            self.polls.remove(poll)

    def _given(self, poll: Poll) -> None:
        receipts, is_read = poll.receipts, not poll.hangs_up
        if not receipts:
            return
        shown = [(r.body, r.attempt) for r in receipts]
        self._say(f"{poll.subscription.group} is given {shown}, read: {is_read}")
        self.handles += self.oracle.received(
            poll.subscription,
            receipts,
            self.bus.now_ms(),
            invisible_ms=poll.invisible_ms,
            receiver=poll.attempt_id,
            is_read=is_read,
        )
        self.outcome.delivered += len(receipts)
        self.outcome.redelivered += sum(receipt.attempt > 1 for receipt in receipts)

    async def _rush(self) -> None:
        """Have a group find more of both kinds than it takes, several times in a row."""
        subscriptions = [s for s in self.subscriptions if s.lock_unit is None]
        if not subscriptions:
            return
        subscription, rng = self.rng.choice(subscriptions), self.rng
        for poll in self.polls:
            if poll.subscription == subscription:
                poll.scope.cancel()
        for _ in range(rng.choice([4, 12])):
            await self._send_one(subscription.topic)
        for _ in range(rng.choice([6, 18])):
            poll = Poll(
                subscription, rng.choice([1, 1, 2]), 5_000, "", hangs_up=False,
                when_given=self._given,
            )  # fmt: skip
            known = len(self.handles)
            self._begin(poll, polling_s=5)
            await self._quiet()
            if poll in self.polls:
                return
            for handle in self.handles[known:]:
                if handle.subscription == subscription and rng.random() < 0.6:
                    await self._change_this(handle, 0, suspend=True)
            await self._quiet()

    async def _acknowledge(self) -> None:
        if not self.handles:
            return
        first = self._some_handle()
        same = [h for h in self.handles[-20:] if h.subscription == first.subscription]
        chosen = [first, *self.rng.sample(same, self.rng.randint(0, min(len(same), 8)))]
        for handle in await self._acknowledge_these(chosen):
            if self.rng.random() < 0.9:
                self.handles.remove(handle)

    async def _acknowledge_these(self, chosen: list[Handle]) -> list[Handle]:
        """Acknowledge, and return what was accepted."""
        handles = list({handle.text: handle for handle in chosen}.values())
        subscription = handles[0].subscription
        texts = [handle.text for handle in handles]
        codes = await self.bus.ack(*texts, topic=subscription.topic, group=subscription.group)
        self._say(f"{subscription.group} acks {[h.body for h in handles]}: {codes}")
        answers = [(handle, code == pb.OK) for handle, code in zip(handles, codes, strict=True)]
        self.oracle.acknowledged(answers, self.bus.now_ms())
        accepted = [handle for handle, is_ok in answers if is_ok]
        self.outcome.acknowledged += len(accepted)
        return accepted

    async def _change(self) -> None:
        if not self.handles:
            return
        handle = self._some_handle()
        duration_ms = self.rng.choice([0, 0, 1_000, 3_000, 30_000])
        await self._change_this(handle, duration_ms, suspend=self.rng.random() < 0.2)

    async def _change_this(self, handle: Handle, duration_ms: int, *, suspend: bool) -> None:
        subscription = handle.subscription
        answer = await self.bus.change(
            handle.text,
            duration_ms / 1000,
            topic=subscription.topic,
            group=subscription.group,
            suspend=suspend,
        )
        is_ok = answer.status.code == pb.OK
        self._say(f"{subscription.group} nacks {handle.body!r} {duration_ms} ms {suspend}: {is_ok}")
        new = self.oracle.changed(
            handle,
            self.bus.now_ms(),
            answer.receipt_handle if is_ok else None,
            duration_ms=duration_ms,
            suspend=suspend,
        )
        if new is not None:
            self.handles.append(new)

    async def _forward(self) -> None:
        if not self.handles:
            return
        handle = self._some_handle()
        request = pb.ForwardMessageToDeadLetterQueueRequest(receipt_handle=handle.text)
        request.group.name = handle.subscription.group
        request.topic.name = handle.subscription.topic
        answer = await self.bus.unary("ForwardMessageToDeadLetterQueue", request)
        is_ok = answer.status.code == pb.OK
        self._say(f"{handle.subscription.group} gives up {handle.body!r}: {is_ok}")
        self.oracle.forwarded(handle, self.bus.now_ms(), is_ok=is_ok)

    async def _give_up_waiting(self) -> None:
        if self.polls:
            poll = self.rng.choice(self.polls)
            self._say(f"{poll.subscription.group} hangs up")
            poll.scope.cancel()

    def _some_handle(self) -> Handle:
        """Return a handle, most often a recent one."""
        if self.rng.random() < 0.8:
            return self.rng.choice(self.handles[-12:])
        return self.rng.choice(self.handles)

    # Steps of clocks and operators

    async def _advance(self) -> None:
        await self._let_pass(self.rng.choice([100, 1_000, 3_000, 6_000, 25_000, 45_000]))

    async def _let_pass(self, ms: int) -> None:
        """Let time pass, stopping a moment before and after whatever becomes visible in it."""
        self._say(f"{ms} ms pass")
        while ms > 0:
            next_ms = self.oracle.next_visible_ms(self.bus.now_ms())
            until_ms = STEP_MS_MAX if next_ms is None else next_ms - self.bus.now_ms()
            until_ms += -SOON_MS if until_ms > SOON_MS else SOON_MS
            step_ms = min(ms, until_ms, STEP_MS_MAX)
            self.clock.jump(step_ms / 1000)
            await self._quiet()
            ms -= step_ms

    async def _set_clock(self) -> None:
        ms = self.rng.choice([-60_000, -5_000, -100, 100, 5_000, 60_000])
        self._say(f"the wall clock is set by {ms} ms")
        self.broker.wall.offset_ms += ms
        self.clock_unsure_until_s = trio.current_time() + SET_FORWARD_S

    async def _reset(self) -> None:
        subscription, to_end = self.rng.choice(self.subscriptions), self.rng.random() < 0.5
        group, topic = subscription.group, subscription.topic
        self._say(f"reset {group} to its {'end' if to_end else 'beginning'}")
        request = admin_pb.ResetOffsetsRequest(group=group, topic=topic)
        if not to_end:
            request.timestamp_ms = 0
        await reset_group_offsets(self.bus.admin(), request)
        self.oracle.reset(subscription, to_end=to_end)

    async def _delete_group(self) -> None:
        subscription = self.rng.choice(self.subscriptions)
        self._say(f"delete {subscription.group}")
        request = admin_pb.DeleteGroupRequest(name=subscription.group)
        await delete_group(self.bus.admin(), request)
        await self._nobody_waits_for([subscription])
        await self._create_group(subscription)
        self.oracle.reset(subscription, to_end=False)

    async def _delete_topic(self) -> None:
        topic = self.rng.choice(list(self.topics))
        self._say(f"delete {topic}")
        request = admin_pb.DeleteTopicRequest(name=topic)
        await delete_topic(self.bus.admin(), request)
        await self._nobody_waits_for([s for s in self.subscriptions if s.topic == topic])
        await self._create_topic(topic, self.topics[topic])
        self.oracle.topic_deleted(topic)

    # Checks

    async def _quiet(self) -> None:
        """Wait until all that is due is done; whoever waits then has nothing to wait for."""
        overdue: list[str] = []
        for _ in range(REAL_WAITS_MAX):
            await trio.testing.wait_all_tasks_blocked()
            self.oracle.time_is(self.bus.now_ms())
            overdue = self._overdue()
            if not overdue and all(poll.is_parked for poll in self.polls):
                return
            await trio.testing.wait_all_tasks_blocked(cushion=0.005)
        raise OracleError(f"receivers wait, and nobody gets {overdue}")

    async def _nobody_waits_for(self, deleted: list[Subscription]) -> None:
        """Check that who waited for what was deleted has been told."""
        await trio.testing.wait_all_tasks_blocked()
        for subscription in deleted:
            if self._waits(subscription):
                raise OracleError(f"{subscription.group} or its topic is gone, and somebody waits")

    def _overdue(self) -> list[str]:
        if trio.current_time() < self.clock_unsure_until_s:
            return []
        waiting = {poll.subscription: None for poll in self.polls}
        before_ms = self.bus.now_ms() - SOON_MS
        return [
            f"{subscription.group}: {delivery.sent.body!r}"
            for subscription in waiting
            for delivery in self.oracle.available(subscription, before_ms)
        ]

    async def _drain(self) -> None:
        """Consume and acknowledge until there is nothing left."""
        self._say("drain")
        for _ in range(1_000):
            for subscription in self.subscriptions:
                if not self._waits(subscription):
                    poll = Poll(
                        subscription, 32, 20_000, "", hangs_up=False, when_given=self._given
                    )
                    self._begin(poll, polling_s=20)
            await self._quiet()
            fresh, self.handles = self.handles, []
            for subscription in self.subscriptions:
                mine = [handle for handle in fresh if handle.subscription == subscription]
                if mine:
                    await self._acknowledge_these(mine)
            await self._quiet()
            next_ms = self.oracle.next_visible_ms(self.bus.now_ms())
            if not fresh and next_ms is None and self.oracle.is_settled():
                return
            await self._let_pass(1_000)
        raise OracleError("it is never all consumed")

    def _waits(self, subscription: Subscription) -> bool:
        return any(poll.subscription == subscription for poll in self.polls)

    def _is_fifo(self, topic: str) -> bool:
        return any(s.lock_unit and s.topic == topic for s in self.subscriptions)

    def _ends(self, topic: str) -> dict[int, int]:
        store = self.bus.context.store
        return {queue: store.max_offset(topic, queue) for queue in range(self.topics[topic])}

    def _say(self, text: str) -> None:
        self.said.append(f"{self.outcome.steps} {self.bus.now_ms() % 10_000_000} {text}")
