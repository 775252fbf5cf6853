"""Answers that a client does not read to their end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing

from commitbus.broker.messaging.handover import HANDOVER_S_MAX
from commitbus.broker.metadata.groups import FIFO_LOCK_UNIT_ATTRIBUTE, LockUnit
from commitbus.broker.rpc.call import Response, RpcError, StatusCode

Run = Callable[..., None]
UNFINISHED = 20
GROUPS: dict[str, dict[str, Any]] = {
    "normal": {"retry_max_times": 30},
    "fifo by queue": {"retry_max_times": 30, "consume_message_orderly": True},
    "fifo by message group": {
        "retry_max_times": 30,
        "consume_message_orderly": True,
        "attributes": {FIFO_LOCK_UNIT_ATTRIBUTE: str(LockUnit.MESSAGE_GROUP)},
    },
}


async def read_too_slowly(bus: Any) -> None:
    """Take longer than a minute."""

    async def never(*_: Response) -> None:
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:

        async def receive() -> None:
            with pytest.raises(RpcError):
                await bus.receive(send=never)

        nursery.start_soon(receive)
        await bus.sleep(HANDOVER_S_MAX + 0.1)


async def hang_up(bus: Any) -> None:
    """Cancel the call, or lose the connection."""
    scope = trio.CancelScope()

    async def cancel(*_: Response) -> None:
        scope.cancel()
        await trio.lowlevel.checkpoint()

    with scope:
        await bus.receive(send=cancel)


async def be_reset(bus: Any) -> None:
    """Have the transport notice it first."""

    async def gone(*_: Response) -> None:
        raise RpcError(StatusCode.CANCELLED, "the call is over")

    with pytest.raises(RpcError):
        await bus.receive(send=gone)


@pytest.mark.parametrize("unfinished", [read_too_slowly, hang_up, be_reset])
@pytest.mark.parametrize("kind", GROUPS)
def test_an_unfinished_hand_over_is_no_attempt(run: Run, kind: str, unfinished: Any) -> None:
    """However often: the messages are delivered in full as attempt 1, and none is a dead letter."""

    async def scenario(bus: Any) -> None:
        await bus.group(**GROUPS[kind])
        await bus.send(b"1", b"2")
        for _ in range(UNFINISHED):
            await unfinished(bus)
            await bus.sleep(1.1)
        received = await bus.receive(invisible_s=10)
        attempts = [message.system_properties.delivery_attempt for message in received.messages]
        assert (received.bodies, attempts) == ([b"1", b"2"], [1, 1])
        # What was read counts.
        await bus.sleep(10.1)
        received = await bus.receive(invisible_s=10)
        attempts = [message.system_properties.delivery_attempt for message in received.messages]
        assert (received.bodies, attempts) == ([b"1", b"2"], [2, 2])
        assert bus.context.metadata.topic("%DLQ%G") is None

    run(scenario)


def test_what_a_client_read_of_an_unfinished_answer_it_may_acknowledge(run: Run) -> None:
    """Its handles are good for as long as they say."""

    async def scenario(bus: Any) -> None:
        await bus.send(b"1" * 40_000, b"2" * 40_000, b"3" * 40_000)
        scope, read = trio.CancelScope(), list[str]()

        async def two_only(*responses: Response) -> None:
            for response in map(bus.parsed, responses):
                if response.WhichOneof("content") == "message":
                    read.append(response.message.system_properties.receipt_handle)
            scope.cancel()
            await trio.lowlevel.checkpoint()

        with scope:
            await bus.receive(send=two_only)
        await bus.ack(*read)
        assert len(read) == 2
        await bus.sleep(1.1)
        assert (await bus.receive()).bodies == [b"3" * 40_000]

    run(scenario)


@pytest.mark.parametrize("kind", GROUPS)
def test_what_the_network_did_not_take_after_all_was_not_delivered(run: Run, kind: str) -> None:
    """The transport took a small answer, and its client was reset before it left."""

    async def scenario(bus: Any) -> None:
        await bus.group(**GROUPS[kind])
        await bus.send(b"1", b"2")
        for _ in range(UNFINISHED):
            call = bus.call()
            assert (await bus.receive(call=call, invisible_s=600)).bodies == [b"1", b"2"]
            call.when_unfinished()
            await bus.sleep(1.1)
        call = bus.call()
        received = await bus.receive(call=call, invisible_s=600)
        attempts = [message.system_properties.delivery_attempt for message in received.messages]
        assert attempts == [1, 1]
        # What was acknowledged was read.
        await bus.ack(received.handles[0])
        call.when_unfinished()
        await bus.sleep(1.1)
        assert (await bus.receive()).bodies == [b"2"]

    run(scenario)
