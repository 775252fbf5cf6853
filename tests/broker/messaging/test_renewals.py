"""Automatic renewal: for as long as the consumer lives, and not longer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from commitbus.broker.metadata.errors import StateWriteError
from commitbus.broker.metadata.groups import ExponentialBackoff
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb

Run = Callable[..., None]


async def live(bus: Any, seconds: float, client_id: str = "client") -> None:
    """Let time pass with a heartbeat every 10 seconds, as clients send them."""
    request = pb.HeartbeatRequest(client_type=pb.PUSH_CONSUMER)
    request.group.name = "G"
    for _ in range(int(seconds / 10)):
        await bus.unary("Heartbeat", request, bus.call(client_id))
        for _ in range(2):
            await bus.sleep(5)


def test_a_living_consumer_keeps_its_messages_and_its_handle(run: Run) -> None:
    """Ten minutes of work on one message, then the ack."""

    async def scenario(bus: Any) -> None:
        await bus.send(b"slow")
        received = await bus.receive(auto_renew=True, invisible_s=None)
        await live(bus, 600)
        assert bus.context.progress.get("G", "T", 0).next_expiry_ms > bus.now_ms()
        assert await bus.ack(*received.handles) == [pb.OK]

    run(scenario)


def test_renewal_ends_after_three_hours(run: Run) -> None:
    """A consumer that hangs still sends heartbeats."""

    async def scenario(bus: Any) -> None:
        await bus.send(b"stuck")
        await bus.receive(auto_renew=True, invisible_s=None)
        await live(bus, 3 * 3600 + 90)
        assert (await bus.receive(call=bus.call("other"))).bodies == [b"stuck"]

    run(scenario)


def test_a_consumer_that_hangs_is_given_up_by_the_retry_policy_of_its_group(run: Run) -> None:
    """The broker decides then, with the delay that RocketMQ has for it."""

    async def scenario(bus: Any) -> None:
        await bus.group("G", backoff=ExponentialBackoff(initial_ms=100_000))
        await bus.send(b"stuck")
        (handle,) = (await bus.receive(auto_renew=True, invisible_s=None)).handles
        progress = bus.context.progress.get("G", "T", 0)
        pop_time_ms = progress.in_flight[0].pop_time_ms
        await live(bus, 3 * 3600 + 60)
        entry = progress.in_flight[0]
        given_up_ms = entry.pop_time_ms
        assert 0 <= given_up_ms - pop_time_ms - 3 * 3600 * 1000 < 60_000
        assert entry.invisible_until_ms == given_up_ms + 100_000
        assert not entry.auto_renew
        assert await bus.ack(handle) == [pb.INVALID_RECEIPT_HANDLE]
        await bus.sleep(100)
        assert (await bus.receive(call=bus.call("other"))).bodies == [b"stuck"]

    run(scenario)


def test_a_terminated_consumers_messages_are_visible_after_a_second(run: Run) -> None:
    """To a consumer that waits already."""

    async def scenario(bus: Any) -> None:
        await bus.send(b"a")
        await bus.receive(auto_renew=True, invisible_s=None)
        request = pb.NotifyClientTerminationRequest()
        assert (await bus.unary("NotifyClientTermination", request)).status.code == pb.OK
        await bus.sleep(1.01)
        assert (await bus.receive(call=bus.call("other"))).bodies == [b"a"]

    run(scenario)


def test_a_consumer_that_is_silent_loses_its_messages(run: Run) -> None:
    """After two minutes without a call."""

    async def scenario(bus: Any) -> None:
        await bus.send(b"a")
        await bus.receive(auto_renew=True, invisible_s=None)
        for _ in range(24):
            await bus.sleep(5)
        assert bus.context.clients.get("client") is None
        await bus.sleep(1.01)
        assert (await bus.receive(call=bus.call("other"))).bodies == [b"a"]

    run(scenario)


@pytest.mark.parametrize("seconds", [5, 300])
def test_a_time_set_by_the_consumer_is_not_renewed(run: Run, seconds: int) -> None:
    """It failed to consume the message and wants it again after the group's backoff."""

    async def scenario(bus: Any) -> None:
        await bus.send(b"a")
        (handle,) = (await bus.receive(auto_renew=True, invisible_s=None)).handles
        await bus.change(handle, seconds)
        await live(bus, seconds + 10)
        (message,) = (await bus.receive()).messages
        assert message.system_properties.delivery_attempt == 2

    run(scenario)


def test_what_was_received_without_renewal_expires_on_time(run: Run) -> None:
    """However alive its consumer is."""

    async def scenario(bus: Any) -> None:
        await bus.send(b"a")
        await bus.receive(invisible_s=30)
        await live(bus, 30)
        assert (await bus.receive()).bodies == [b"a"]

    run(scenario)


def test_what_was_renewed_before_a_restart_is_renewed_after_it(run: Run) -> None:
    """Who holds the message is kept with it."""
    handles: list[str] = []

    async def before(bus: Any) -> None:
        await bus.send(b"a")
        handles.extend((await bus.receive(auto_renew=True, invisible_s=None)).handles)
        await live(bus, 60)

    async def after(bus: Any) -> None:
        await live(bus, 200)
        assert await bus.ack(*handles) == [pb.OK]

    run(before)
    run(after)


def test_what_may_have_been_on_its_way_at_a_restart_is_visible_after_a_minute(run: Run) -> None:
    """The client is back at once; after a kill it never saw the message."""

    async def before(bus: Any) -> None:
        await bus.send(b"a")
        await bus.receive(auto_renew=True, invisible_s=None)

    async def after(bus: Any) -> None:
        await bus.sleep(1)  # the clock of each run begins anew
        await live(bus, 60)
        assert bus.context.progress.get("G", "T", 0).may_have_expired(bus.now_ms())
        assert (await bus.receive(call=bus.call("other"))).bodies == [b"a"]

    run(before)
    run(after)


def test_what_may_have_been_on_its_way_when_the_connection_broke_is_visible_after_a_minute(
    run: Run,
) -> None:
    """What the client receives afterwards is renewed again."""

    async def scenario(bus: Any) -> None:
        await bus.send(b"lost")
        await bus.receive(auto_renew=True, invisible_s=None)
        await bus.sleep(1)
        settings = pb.TelemetryCommand()
        settings.settings.subscription.group.name = "G"
        await bus.telemetry(settings)
        await bus.send(b"kept")
        assert (await bus.receive(auto_renew=True, invisible_s=None)).bodies == [b"kept"]
        await live(bus, 120)
        assert bus.context.progress.get("G", "T", 0).may_have_expired(bus.now_ms())
        assert (await bus.receive(call=bus.call("other"))).bodies == [b"lost"]

    run(scenario)


def test_a_renewal_that_cannot_be_saved_does_not_stop_the_broker(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Any
) -> None:
    """The message is delivered once more; everything else goes on."""

    async def scenario(bus: Any) -> None:
        await bus.send(b"a")
        await bus.receive(auto_renew=True, invisible_s=None)

        def fail(*_: object, **__: object) -> None:
            raise StateWriteError(tmp_path, "no space")

        with monkeypatch.context() as patch:
            patch.setattr(bus.context.progress, "change_invisible", fail)
            await live(bus, 70)
        assert (await bus.receive()).bodies == [b"a"]

    run(scenario)
    assert "renewal not saved" in caplog.text
