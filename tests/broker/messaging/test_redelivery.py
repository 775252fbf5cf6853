"""Messages that come again: when their time is over, or given back by a client that went."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from commitbus.broker.metadata.errors import StateWriteError
from commitbus.broker.rpc.call import Response
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from commitbus.broker.settling import renewals

Run = Callable[..., None]


def test_an_unacknowledged_message_comes_again_when_its_time_is_over(run: Run) -> None:
    """In time to the millisecond, to a receiver that waits, as the next attempt."""

    async def scenario(bus: Any) -> None:
        await bus.send(b"a")
        first = await bus.receive(invisible_s=10)
        async with bus.receiving() as results:
            await bus.sleep(9.99)
            assert not results
            await bus.sleep(0.02)
            assert len(results) == 1
        again = results[0].messages[0]
        assert again.system_properties.delivery_attempt == 2
        assert again.system_properties.message_id == (
            first.messages[0].system_properties.message_id
        )
        assert await bus.ack(first.handles[0]) == [pb.INVALID_RECEIPT_HANDLE]
        assert await bus.ack(*results[0].handles) == [pb.OK]

    run(scenario)


def test_what_became_visible_comes_before_what_is_new(run: Run) -> None:
    """The oldest has waited longest."""

    async def scenario(bus: Any) -> None:
        await bus.send(b"old")
        await bus.receive(invisible_s=5)
        await bus.send(b"new")
        await bus.sleep(6)
        assert (await bus.receive()).bodies == [b"old", b"new"]

    run(scenario)


def test_a_client_that_goes_while_messages_are_sent_gives_them_back(run: Run) -> None:
    """After a second they are there for others, the ones already written as well."""

    async def scenario(bus: Any) -> None:
        # Two of them are written at once, the third is not.
        bodies = [digit * 40_000 for digit in (b"1", b"2", b"3")]
        await bus.send(*bodies)
        sent: list[str | None] = []

        async def slow(*responses: Response) -> None:
            sent.extend(bus.parsed(response).WhichOneof("content") for response in responses)
            await trio.sleep_forever()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: bus.receive(send=slow, auto_renew=True))
            await trio.testing.wait_all_tasks_blocked()
            assert sent == ["status", "message", "message"]
            nursery.cancel_scope.cancel()
        await bus.sleep(1.01)
        received = await bus.receive()
        assert received.bodies == bodies

    run(scenario)


def test_who_waits_already_gets_what_a_client_that_went_gave_back(run: Run) -> None:
    """After a second, and though the one that went is alive and had asked for renewal."""

    async def scenario(bus: Any) -> None:
        going = trio.CancelScope()

        async def stuck(*_: Response) -> None:
            await trio.sleep_forever()

        async def go() -> None:
            with going:
                await bus.receive(send=stuck, auto_renew=True)

        await bus.send(b"1")
        # Half a second before the broker looks what to renew.
        await bus.sleep(renewals.INTERVAL_S - 0.5)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(go)
            await trio.testing.wait_all_tasks_blocked()
            async with bus.receiving() as results:
                going.cancel()
                for _ in range(3):
                    await bus.sleep(0.35)
                assert [received.bodies for received in results] == [[b"1"]]

    run(scenario)


def test_a_release_that_cannot_be_saved_leaves_the_message_to_its_time(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """The client has gone and so has the disk; the handler still ends as it was cancelled."""

    async def scenario(bus: Any) -> None:
        await bus.send(b"1")

        async def stuck(*_: Response) -> None:
            await trio.sleep_forever()

        def fail(*_: object, **__: object) -> None:
            raise StateWriteError(tmp_path, "no space")

        with monkeypatch.context() as patch:
            patch.setattr(bus.context.progress, "change_invisible", fail)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lambda: bus.receive(send=stuck, invisible_s=30))
                await trio.testing.wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
        await bus.sleep(30)
        assert (await bus.receive()).bodies == [b"1"]

    run(scenario)
    assert "release not saved" in caplog.text


def test_an_acknowledged_message_never_comes_again_after_a_restart(run: Run) -> None:
    """Progress is kept, handles stay good, and nobody needs to introduce itself."""
    handles: list[str] = []

    async def before(bus: Any) -> None:
        await bus.send(b"1", b"2", b"3")
        received = await bus.receive()
        handles.extend(received.handles)
        await bus.ack(handles[0])

    async def after(bus: Any) -> None:
        assert await bus.ack(handles[1]) == [pb.OK]
        await bus.sleep(31)
        received = await bus.receive()
        assert received.bodies == [b"3"]
        assert received.messages[0].system_properties.delivery_attempt == 2

    run(before)
    run(after)
