"""Random histories of a FIFO group against an oracle that knows only what clients see.

No two batches of a lock unit are out at the same time; within a unit nothing is delivered before
all that lies before it is acknowledged or a dead letter; what was acknowledged never comes again;
a receive goes away empty only if nothing is free; in the end everything was delivered.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, final

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from commitbus.broker.config import BrokerConfig
from commitbus.broker.messaging.methods import run_messaging
from commitbus.broker.messaging.queue_choice import queue_of_group
from commitbus.broker.metadata.groups import FIFO_LOCK_UNIT_ATTRIBUTE, LockUnit
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from commitbus.flush.policy import FlushMode
from tests.broker.messaging.bus import Bus, Received, open_context

QUEUES = 2
ATTEMPTS_MAX = 3
INVISIBLE_S = 10

Unit = tuple[int, str]


@final
@dataclass(eq=False)
class Message:
    """What a client can know of one message."""

    body: bytes
    unit: Unit
    attempt: int = 0
    out_until_ms: int = 0
    attempt_id: str = ""
    suspended: bool = False
    handle: str = ""
    settled: bool = False
    """Acknowledged, or a dead letter."""

    @property
    def next_attempt(self) -> int:
        return self.attempt + (not self.suspended)


@final
@dataclass
class Oracle:
    """All messages, in the order in which they were sent."""

    unit_kind: LockUnit
    messages: dict[bytes, Message] = field(default_factory=dict)
    handles: list[tuple[str, Message]] = field(default_factory=list)
    dead: list[bytes] = field(default_factory=list)
    maybe_dead: list[bytes] = field(default_factory=list)
    """Acknowledged when they may have been dead letters already: that is answered with OK, too."""

    def sent(self, message_group: str) -> bytes:
        body = b"%s%d" % (message_group.encode(), len(self.messages))
        by_group = self.unit_kind is LockUnit.MESSAGE_GROUP
        unit = queue_of_group(message_group, QUEUES), message_group if by_group else ""
        self.messages[body] = Message(body, unit)
        return body

    def waiting(self, unit: Unit) -> list[Message]:
        return [m for m in self.messages.values() if m.unit == unit and not m.settled]

    def out(self, now_ms: int) -> list[Message]:
        return [m for m in self.messages.values() if not m.settled and m.out_until_ms > now_ms]

    def received(self, answer: Any, attempt_id: str, now_ms: int) -> None:
        batch = [self.messages[body] for body in answer.bodies]
        assert len(set(answer.bodies)) == len(batch)
        before = self.out(now_ms)
        for message in batch:
            repeated = bool(attempt_id) and message.attempt_id == attempt_id
            assert not message.settled, "what was acknowledged came again"
            assert message not in before or repeated, "it was out already"
            assert all(
                other in batch or (repeated and other.attempt_id == attempt_id)
                for other in before
                if other.unit == message.unit
            ), "another batch of its unit was out"
        for number, (message, got) in enumerate(zip(batch, answer.messages, strict=True)):
            for other in self.waiting(message.unit):
                if other is message:
                    break
                if other not in batch[:number]:
                    self._buried(other)
            self._delivered(message, got.system_properties, attempt_id, now_ms)
        if not batch:
            self._nothing_is_free(attempt_id, now_ms)

    def _delivered(self, message: Message, system: Any, attempt_id: str, now_ms: int) -> None:
        expected = {message.next_attempt}
        if attempt_id and message.attempt_id == attempt_id:
            expected.add(message.attempt)
        assert system.delivery_attempt in expected
        message.attempt, message.suspended = system.delivery_attempt, False
        message.attempt_id, message.handle = attempt_id, system.receipt_handle
        message.out_until_ms = now_ms + INVISIBLE_S * 1000
        self.handles.append((message.handle, message))

    def _buried(self, message: Message) -> None:
        assert message.next_attempt > ATTEMPTS_MAX, f"{message.body!r} was overtaken"
        message.settled = True
        self.dead.append(message.body)

    def _nothing_is_free(self, attempt_id: str, now_ms: int) -> None:
        locked = {message.unit for message in self.out(now_ms)}
        for unit in {message.unit for message in self.messages.values()} - locked:
            for message in self.waiting(unit):
                self._buried(message)
        if attempt_id:
            mine = [message for message in self.out(now_ms) if message.attempt_id == attempt_id]
            assert not mine, "the same attempt did not get its batch again"


STEPS = st.one_of(
    st.tuples(st.just("send"), st.sampled_from("abcd")),
    st.tuples(st.just("receive"), st.integers(1, 4), st.sampled_from(["", "", "A", "B"])),
    st.tuples(st.just("acknowledge"), st.integers(0, 99)),
    st.tuples(
        st.just("change"),
        st.integers(0, 99),
        st.integers(0, 7),
        st.sampled_from(["give back", "suspend"]),
    ),
    st.tuples(st.just("pass_time"), st.integers(1, 12)),
    st.tuples(st.just("restart")),
)


@final
class History:
    """Does to a broker what a list of steps says, and tells the oracle."""

    def __init__(self, bus: Bus, oracle: Oracle) -> None:
        self.bus, self.oracle = bus, oracle

    async def send(self, message_group: str) -> None:
        message = pb.Message(body=self.oracle.sent(message_group))
        message.topic.name = "F"
        message.system_properties.message_id = "id"
        message.system_properties.message_group = message_group
        response = await self.bus.unary("SendMessage", pb.SendMessageRequest(messages=[message]))
        assert response.status.code == pb.OK
        self.bus.settle()

    async def receive(self, batch: int, attempt_id: str) -> bool:
        """Receive without waiting; return whether anything came."""
        answer = await self._look(topic="F", group="O", batch=batch, attempt_id=attempt_id)
        self.oracle.received(answer, attempt_id, self.bus.now_ms())
        return bool(answer.messages)

    async def _look(self, **options: Any) -> Received:
        answers: list[Received] = []

        async def receive() -> None:
            answers.append(await self.bus.receive(invisible_s=INVISIBLE_S, **options))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        return answers[0] if answers else Received()

    async def acknowledge(self, pick: int) -> None:
        """Acknowledge with any handle that was ever given."""
        if not self.oracle.handles:
            return
        handle, message = self.oracle.handles[pick % len(self.oracle.handles)]
        is_out = message in self.oracle.out(self.bus.now_ms())
        (code,) = await self.bus.ack(handle, topic="F", group="O")
        if is_out and handle == message.handle:
            assert code == pb.OK
        if code == pb.OK and not message.settled:
            message.settled = True
            if not is_out and message.next_attempt > ATTEMPTS_MAX:
                self.oracle.maybe_dead.append(message.body)

    async def change(self, pick: int, seconds: int, how: str) -> None:
        out = self.oracle.out(self.bus.now_ms())
        if not out:
            return
        message = out[pick % len(out)]
        answer = await self.bus.change(
            message.handle, seconds, topic="F", group="O", suspend=how == "suspend"
        )
        assert answer.status.code == pb.OK
        message.handle, message.suspended = answer.receipt_handle, how == "suspend"
        message.out_until_ms = self.bus.now_ms() + seconds * 1000
        self.oracle.handles.append((message.handle, message))

    async def pass_time(self, seconds: int) -> None:
        await self.bus.sleep(seconds)

    async def finish(self) -> None:
        """Have everything delivered and acknowledged."""
        for _ in range(2 * len(self.oracle.messages) + 2):
            await self.bus.sleep(INVISIBLE_S + 0.1)
            while await self.receive(32, ""):
                for message in self.oracle.out(self.bus.now_ms()):
                    assert await self.bus.ack(message.handle, topic="F", group="O") == [pb.OK]
                    message.settled = True
        assert not [m.body for m in self.oracle.messages.values() if not m.settled]
        self.bus.settle()
        dead: list[bytes] = []
        while found := (await self._look(topic="%DLQ%O", batch=1)).bodies:
            dead += found
        assert len(set(dead)) == len(dead)
        assert set(self.oracle.dead) <= set(dead) <= {*self.oracle.dead, *self.oracle.maybe_dead}
        for unit in {message.unit for message in self.oracle.messages.values()}:
            of_unit = [body for body in dead if self.oracle.messages[body].unit == unit]
            assert of_unit == [body for body in self.oracle.messages if body in of_unit]


def run_history(directory: Path, steps: list[Any], unit: LockUnit) -> None:
    """Run steps against one store, opened anew at each restart."""
    oracle, clock = Oracle(unit), trio.testing.MockClock()
    config = BrokerConfig().with_changes(
        {
            "max_body_bytes": 64 * 1024,
            "log_file_bytes": 1024 * 1024,
            "flush_mode": FlushMode.ASYNC_FLUSH,
        }
    )

    async def main(part: list[Any], *, is_last: bool) -> None:
        with open_context(directory, config) as context:
            async with trio.open_nursery() as nursery:
                await nursery.start(run_messaging, context)
                bus = Bus(context, clock)
                history = History(bus, oracle)
                await bus.topic("F", queues=QUEUES, attributes={"message.type": "FIFO"})
                await bus.topic("%DLQ%O")
                await bus.group(
                    "O",
                    consume_message_orderly=True,
                    retry_max_times=ATTEMPTS_MAX - 1,
                    attributes={FIFO_LOCK_UNIT_ATTRIBUTE: unit},
                )
                for name, *arguments in part:
                    await getattr(history, name)(*arguments)
                if is_last:
                    await history.finish()
                nursery.cancel_scope.cancel()

    part: list[Any] = []
    for step in steps:
        if step == ("restart",):
            trio.run(partial(main, part, is_last=False), clock=clock)
            part = []
        else:
            part.append(step)
    trio.run(partial(main, part, is_last=True), clock=clock)


@pytest.mark.slow
@pytest.mark.parametrize("unit", list(LockUnit))
def test_any_history_keeps_the_order(unit: LockUnit) -> None:
    """Of sends, receives, acknowledgements, changes, expiries and restarts."""

    @settings(max_examples=25, deadline=None, derandomize=True)
    @given(steps=st.lists(STEPS, min_size=20, max_size=60))
    def holds(steps: list[Any]) -> None:
        with TemporaryDirectory() as directory:
            run_history(Path(directory) / "store", steps, unit)

    holds()
