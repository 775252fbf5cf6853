"""Automatic renewal: for as long as the consumer lives, and not longer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import trio
import trio.testing

from commitbus.broker.metadata.errors import StateWriteError
from commitbus.broker.metadata.groups import ExponentialBackoff
from commitbus.broker.progress.queue_progress import Lease, QueueProgress
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from tests.steps import Steps

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
            patch.setattr(bus.context.progress, "extend", fail)
            await live(bus, 70)
        assert (await bus.receive()).bodies == [b"a"]

    run(scenario)
    assert "renewal not saved" in caplog.text


def _deliver_many(
    bus: Any, count: int, client_id: str, *, queues: int = 1, batch: int = 32
) -> None:
    """Have a client hold messages with automatic renewal, as if it had just received them."""
    table, now_ms = bus.context.progress, bus.now_ms()
    for queue_id in range(queues):
        progress = table.create("G", "T", queue_id, 0)
        lease = Lease(now_ms, now_ms + 60_000, client_id, auto_renew=True)
        for start in range(progress.next_offset, progress.next_offset + count, batch):
            offsets = range(start, start + batch)
            table.deliver(progress, offsets, lease, next_offset=start + batch)


@contextmanager
def _counting(bus: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Steps]:
    """Count the messages of which the time is changed, in each step."""
    table, steps = bus.context.progress, Steps()
    change, extend = table.change_invisible, getattr(table, "extend", None)

    def counted_change(*arguments: Any, **named: Any) -> None:
        steps.count()
        change(*arguments, **named)

    def counted_extend(progress: Any, offsets: Sequence[int], until_ms: int) -> None:
        assert extend is not None
        steps.count(len(offsets))
        extend(progress, offsets, until_ms)

    trio.lowlevel.add_instrument(steps)
    with monkeypatch.context() as patch:
        patch.setattr(table, "change_invisible", counted_change)
        patch.setattr(table, "extend", counted_extend, raising=False)
        yield steps
    trio.lowlevel.remove_instrument(steps)


def test_a_client_that_holds_much_and_leaves_is_released_in_steps(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heartbeats of others waited until the last of its messages was released."""

    async def scenario(bus: Any) -> None:
        request = pb.HeartbeatRequest(client_type=pb.PUSH_CONSUMER)
        request.group.name = "G"
        await bus.unary("Heartbeat", request)
        _deliver_many(bus, 8_192, "client")
        _deliver_many(bus, 64, "other")
        with _counting(bus, monkeypatch) as steps:
            goodbye = pb.NotifyClientTerminationRequest()
            assert (await bus.unary("NotifyClientTermination", goodbye)).status.code == pb.OK
            await trio.testing.wait_all_tasks_blocked()
        assert steps.total == 8_192
        assert steps.longest <= 1_024
        progress = bus.context.progress.get("G", "T", 0)
        assert progress.next_expiry_ms == bus.now_ms() + 1_000
        assert progress.in_flight[8_192].invisible_until_ms == bus.now_ms() + 60_000

    run(scenario)


def test_many_messages_are_renewed_in_steps(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some came alone: from the second time on they are renewed together."""

    async def scenario(bus: Any) -> None:
        _deliver_many(bus, 4_096, "client", batch=1)
        _deliver_many(bus, 4_096, "client")
        with _counting(bus, monkeypatch) as steps:
            await live(bus, 60)
        assert steps.total == 8_192
        assert steps.longest <= 1_024
        assert len(bus.context.progress.holdings) <= 20
        entries = bus.context.progress.get("G", "T", 0).entries()
        assert all(e.invisible_until_ms == e.pop_time_ms + 120_000 for e in entries)
        await live(bus, 60)
        assert all(e.invisible_until_ms == e.pop_time_ms + 180_000 for e in entries)

    run(scenario)


def test_renewal_looks_only_at_what_is_due(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every five seconds all queues of all groups were looked at, and all that is in flight."""

    async def scenario(bus: Any) -> None:
        _deliver_many(bus, 320, "client", queues=50)
        looks: list[int] = []

        def looked(_: QueueProgress) -> int:
            looks.append(1)
            return 0

        with monkeypatch.context() as patch:
            patch.setattr(QueueProgress, "next_expiry_ms", property(looked))
            patch.setattr(QueueProgress, "in_flight", property(looked))
            await live(bus, 40)
        assert not looks

    run(scenario)


def test_what_is_acknowledged_reset_or_deleted_is_held_no_more(run: Run) -> None:
    """No list of what is held grows."""

    async def scenario(bus: Any) -> None:
        table = bus.context.progress
        _deliver_many(bus, 320, "client", queues=3)
        for queue_id, progress in table.queues_of("G", "T"):
            if queue_id == 0:
                table.acknowledge(progress, *range(320))
                assert len(table.holdings) == 20
        table.reset("G", "T", 1, 0)
        table.delete_group("G")
        await live(bus, 60)
        assert len(table.holdings) == 0

    run(scenario)
