"""Those who send, and those who receive and acknowledge, most of the time."""

from __future__ import annotations

import asyncio
from typing import Final, final

from commitbus.broker.consuming.receipt_handle import ReceiptHandle
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from commitbus.commitlog.clock import SystemClock
from tests.soak.load import Load, Pace
from tests.soak.messages import Group

CLOCK: Final = SystemClock()
RECEIVE_MAX: Final = 32
PAUSE_S: Final = 0.5
"""At most, between two receives: what gathers meanwhile comes together, as with a busy consumer."""


async def send(load: Load, topic: str, rate: float) -> None:
    """Send one to eight messages at a time; each has a number that is never used again."""
    choice, pace = load.choice(f"send {topic}"), Pace(rate)
    client = load.client(f"sender of {topic}", over_tls=topic == "events")

    async def step() -> None:
        numbers = load.recorder.sending(topic, choice.choice((1, 1, 1, 1, 2, 8)))
        await asyncio.sleep(pace.delay_s(len(numbers)))
        response = await client.send(topic, numbers)
        if not load.refused("send", response.status):
            for number, entry in zip(numbers, response.entries, strict=True):
                load.recorder.sent(number, entry.offset)

    await load.repeat("send", load.sending_ends, step)
    await client.close()


@final
class Consumer:
    """Acknowledges most, gives some back, forgets some, is late with some, gives up on some."""

    def __init__(self, load: Load, group: Group, name: str) -> None:
        self._load, self._recorder, self._group = load, load.recorder, group
        self._choice = load.choice(name)
        self._client = load.client(name, over_tls=group.topic == "events")
        self._held: list[tuple[int, pb.Message]] = []

    async def run(self) -> None:
        """Consume until the end."""
        await self._load.repeat(self._group.name, self._load.ends, self._step)
        await self._client.close()

    async def _step(self) -> None:
        batch, invisible_ms = (
            self._choice.randint(1, RECEIVE_MAX),
            self._choice.choice((1000, 2000, 10_000, 10_000)),
        )
        try:
            await self._client.receive(self._group, batch, invisible_ms, self._take)
        finally:
            held, self._held = self._held, []
        await self._settle(held)
        if not self._load.settling.is_set():
            await asyncio.sleep(self._choice.uniform(0, PAUSE_S))

    def _take(self, message: pb.Message) -> None:
        number = record_delivery(self._load, self._group, message)
        if number is not None:
            self._held.append((number, message))

    async def _settle(self, held: list[tuple[int, pb.Message]]) -> None:
        """Do something about each; what a call that broke was for becomes visible again."""
        to_ack = []
        for number, message in held:
            dice = 0.0 if self._load.settling.is_set() else self._choice.random()
            if dice < 0.90:
                to_ack.append((number, message))
            elif dice < 0.94:
                await self._give_back(message)
            elif dice < 0.943:
                await self._give_up(number, message)
            elif dice < 0.97:
                # Acknowledged next time, in time or not.
                self._held.append((number, message))
            else:
                self._recorder.count("forgotten")
        if to_ack:
            await self._ack(to_ack)

    async def _ack(self, held: list[tuple[int, pb.Message]]) -> None:
        response = await self._client.ack(self._group, [message for _, message in held])
        now_ms = CLOCK.now_ms()
        if len(response.entries) != len(held):
            self._load.refused("ack", response.status)
            return
        for (number, _), entry in zip(held, response.entries, strict=True):
            if not self._is_late("ack", entry.status):
                self._recorder.acked(self._group, number, now_ms)

    async def _give_back(self, message: pb.Message) -> None:
        duration_ms = self._choice.choice((0, 300, 2000))
        response = await self._client.change_invisible(self._group, message, duration_ms)
        if not self._is_late("change invisible duration", response.status):
            self._recorder.count("given back")

    async def _give_up(self, number: int, message: pb.Message) -> None:
        response = await self._client.forward(self._group, message)
        now_ms = CLOCK.now_ms()
        if not self._is_late("forward", response.status):
            self._recorder.forwarded(self._group, number, now_ms)

    def _is_late(self, what: str, status: pb.Status) -> bool:
        """Return whether a call did nothing: a handle that has expired is no failure."""
        if status.code == pb.INVALID_RECEIPT_HANDLE:
            self._recorder.count(f"{what} too late")
            return True
        return self._load.refused(what, status)


def record_delivery(load: Load, group: Group, message: pb.Message) -> int | None:
    """Record that a consumer got a message, and return its number."""
    number = load.number_of(group.name, message)
    if number is not None:
        properties = message.system_properties
        load.recorder.delivered(
            group,
            number,
            queue_id=properties.queue_id,
            queue_offset=properties.queue_offset,
            attempt=properties.delivery_attempt,
            pop_ms=ReceiptHandle.parse(properties.receipt_handle).pop_time_ms,
        )
    return number
