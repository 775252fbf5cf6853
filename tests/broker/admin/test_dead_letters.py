"""Dead letters on their way back, without a transport."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import trio

from commitbus.broker.admin import dead_letters
from commitbus.broker.admin.context import AdminContext
from commitbus.broker.core import durability
from commitbus.broker.observe.rates import Rates
from commitbus.broker.rpc.proto import admin_v1_pb2 as pb
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as v2
from commitbus.commitlog.file_system import RealFileSystem
from tests.broker.messaging.bus import Bus
from tests.broker.scenarios import run

__all__ = ["run"]

Run = Callable[..., None]
Response = pb.SendBackDeadLettersResponse
ALL = pb.SendBackDeadLettersRequest(group="G", from_offset=0)


async def bury(bus: Bus, *bodies: bytes) -> AdminContext:
    """Have group G give up on messages; return what operators work on."""
    await bus.send(*bodies)
    for handle in (await bus.receive()).handles:
        request = v2.ForwardMessageToDeadLetterQueueRequest(receipt_handle=handle)
        request.group.name, request.topic.name = "G", "T"
        answer = await bus.unary("ForwardMessageToDeadLetterQueue", request)
        assert answer.status.code == v2.OK
    bus.settle()
    # The index is waited for by the clock.
    bus.clock.rate = 1
    rates = Rates(bus.context.counters, bus.context.clock)
    return AdminContext(bus.context, rates, "1.0", 0, RealFileSystem())


def test_several_operators_at_once_send_each_letter_back_once(run: Run) -> None:
    async def scenario(bus: Bus) -> None:
        context = await bury(bus, b"a", b"b", b"c")
        outcomes: Counter[int] = Counter()

        async def send_back() -> None:
            response = await dead_letters.send_back_dead_letters(context, ALL)
            outcomes.update(letter.outcome for letter in response.letters)

        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(send_back)
        assert outcomes == {Response.SENT_BACK: 3, Response.SENT_BACK_BEFORE: 21}

    run(scenario)


def test_large_letters_go_back_a_few_at_a_time(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """None is left out: the answer says where to go on."""
    monkeypatch.setattr(dead_letters, "BATCH_BYTES_MAX", 1500)

    async def scenario(bus: Bus) -> None:
        context = await bury(bus, *(b"%d" % n * 700 for n in range(3)))
        calls, offset = [], 0
        while offset < 3:
            request = pb.SendBackDeadLettersRequest(group="G", from_offset=offset)
            response = await dead_letters.send_back_dead_letters(context, request)
            calls.append([letter.queue_offset for letter in response.letters])
            offset = response.next_offset
        assert calls == [[0, 1], [2]]

    run(scenario)


def test_letters_stay_while_too_much_waits_for_the_disk(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each says so, and may be sent back later."""

    async def scenario(bus: Bus) -> None:
        context = await bury(bus, b"a")
        end = context.store.end_offset
        with monkeypatch.context() as patch:
            patch.setattr(durability, "WAITING_MAX", 0)
            response = await dead_letters.send_back_dead_letters(context, ALL)
        (letter,) = response.letters
        assert (letter.outcome, context.store.end_offset) == (Response.FAILED, end)
        response = await dead_letters.send_back_dead_letters(context, ALL)
        assert response.letters[0].outcome == Response.SENT_BACK

    run(scenario)
