"""Moving the time of an embedded broker."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import grpc
import pytest
import trio

from commitbus.broker import Broker
from commitbus.broker.cli.admin_client import AdminClient
from commitbus.broker.embedded.virtual_clock import ADVANCE_MAX_S, VirtualClock
from commitbus.broker.messaging.context import MessagingContext
from commitbus.broker.rpc.proto import admin_v1_pb2 as admin_pb
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb

HOUR_S = 3600
CLIENT = (("x-mq-client-id", "client"), ("x-mq-client-version", "5.1.2"))


@contextmanager
def consumer(broker: Broker, group: str, topic: str) -> Iterator[Any]:
    """The official client, which has no types."""
    client = import_module("rocketmq")
    configuration = client.ClientConfiguration(broker.endpoint, client.Credentials())
    found = client.SimpleConsumer(configuration, group)
    found.startup()
    try:
        found.subscribe(topic)
        yield found
    finally:
        found.shutdown()


def state(broker: Broker) -> MessagingContext:
    """What the broker's handlers work on; to look at only."""
    assert broker._thread.running is not None
    return broker._thread.running.context.messaging


def send(broker: Broker, body: bytes) -> None:
    broker.create_topic("orders", queues=1)
    with AdminClient(broker.endpoint) as client:
        client.send(admin_pb.SendMessageRequest(topic="orders", body=body))


def test_sixteen_retries_and_the_dead_letter_queue() -> None:
    """With the official client; each attempt's invisible time is over at once."""
    with Broker() as broker, consumer(broker, "billing", "orders") as billing:
        send(broker, b"poison")
        attempts = []
        for _ in range(17):
            (message,) = billing.receive(1, 600)
            attempts.append(message.delivery_attempt)
            broker.clock.advance(600)
        assert attempts == list(range(1, 18))
        # It moves when its group looks for messages the next time.
        undertaking = consumer(broker, "undertaker", "%DLQ%billing")
        with undertaking as undertaker, ThreadPoolExecutor(1) as pool:
            nothing = pool.submit(billing.receive, 1, 600)
            (dead,) = undertaker.receive(1, 600)
            assert dead.body == b"poison"
            broker.clock.advance(60)
            assert nothing.result() == []


def receive(channel: grpc.Channel, *, auto_renew: bool = False) -> list[pb.Message]:
    """Wait for messages as long as the broker lets one."""
    request = pb.ReceiveMessageRequest(batch_size=32, auto_renew=auto_renew)
    request.group.name, request.message_queue.topic.name = "billing", "orders"
    request.filter_expression.type, request.filter_expression.expression = pb.TAG, "*"
    request.invisible_duration.seconds = 30
    call = channel.unary_stream(
        "/apache.rocketmq.v2.MessagingService/ReceiveMessage",
        request_serializer=pb.ReceiveMessageRequest.SerializeToString,
        response_deserializer=pb.ReceiveMessageResponse.FromString,
    )
    answers = call(request, metadata=CLIENT)
    return [answer.message for answer in answers if answer.HasField("message")]


def wait_until_parked(broker: Broker) -> None:
    """Wait until one receiver stands in line."""
    polls = state(broker).consuming.polls
    for _ in range(1000):
        line = polls._line("billing", "orders")
        if line is not None and line.joined:
            broker.clock.advance(0)
            return
        threading.Event().wait(0.01)
    pytest.fail("nobody waits")


def test_who_waits_gets_what_is_visible_again_and_is_sent_away_when_the_time_is_over() -> None:
    """At once, however long that takes in the broker's time."""
    with Broker() as broker, grpc.insecure_channel(broker.endpoint) as channel:
        send(broker, b"1")
        assert [message.body for message in receive(channel)] == [b"1"]
        # Sixteen seconds are left when the poll of twenty begins.
        broker.clock.advance(14)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(receive, channel)
            wait_until_parked(broker)
            broker.clock.advance(17)
            (message,) = waiting.result()
            assert message.system_properties.delivery_attempt == 2
            waiting = pool.submit(receive, channel)
            wait_until_parked(broker)
            broker.clock.advance(21)
            assert waiting.result() == []


def test_what_a_living_push_consumer_holds_is_renewed_for_three_hours() -> None:
    """Its connection survives the silence: it is given no time to say anything."""
    with Broker() as broker, grpc.insecure_channel(broker.endpoint) as channel:
        send(broker, b"1")
        hold = threading.Event()

        def settings() -> Iterator[pb.TelemetryCommand]:
            command = pb.TelemetryCommand()
            command.settings.client_type = pb.PUSH_CONSUMER
            command.settings.subscription.group.name = "billing"
            yield command
            hold.wait()

        telemetry: Any = channel.stream_stream(
            "/apache.rocketmq.v2.MessagingService/Telemetry",
            request_serializer=pb.TelemetryCommand.SerializeToString,
            response_deserializer=pb.TelemetryCommand.FromString,
        )(settings(), metadata=CLIENT)
        assert next(telemetry).HasField("settings")
        (held,) = receive(channel, auto_renew=True)
        progress = state(broker).progress.get("billing", "orders", 0)
        assert progress is not None
        broker.clock.advance(2 * HOUR_S)
        (entry,) = progress.in_flight.values()
        assert entry.invisible_until_ms > broker.clock.now_ms()
        assert telemetry.is_active()
        broker.clock.advance(2 * HOUR_S)
        (again,) = receive(channel)
        assert (again.body, again.system_properties.delivery_attempt) == (held.body, 2)
        hold.set()


def test_timers_are_served_in_order_each_at_its_time() -> None:
    """As if the time had passed by itself; the rest stays for later."""
    clock, rung = VirtualClock(), list[int]()
    ready, stop = threading.Event(), trio.Event()
    token: list[trio.lowlevel.TrioToken] = []

    async def ring(seconds: int) -> None:
        began_s = trio.current_time()
        await trio.sleep(seconds)
        rung.append(round(trio.current_time() - began_s))

    async def main() -> None:
        token.append(trio.lowlevel.current_trio_token())
        async with trio.open_nursery() as nursery:
            for seconds in (5000, 3000, 1000, 9000):
                nursery.start_soon(ring, seconds)
            ready.set()
            await stop.wait()
            nursery.cancel_scope.cancel()

    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(lambda: trio.run(main, clock=clock))
        ready.wait()
        before_ms = clock.now_ms()
        clock.advance(6000)
        assert rung == [1000, 3000, 5000]
        assert clock.now_ms() - before_ms >= 6_000_000
        token[0].run_sync_soon(stop.set)
        run.result()
    with pytest.raises(RuntimeError, match="stopped"):
        clock.advance(1)


@pytest.mark.parametrize("seconds", [-1, -1e-9, -math.inf])
def test_time_does_not_go_backwards(seconds: float) -> None:
    """No test needs it, and the broker's own timers could not follow."""
    with Broker() as broker, pytest.raises(ValueError, match="backwards"):
        broker.clock.advance(seconds)


@pytest.mark.parametrize("seconds", [math.nan, math.inf, 1e300, 10**400, ADVANCE_MAX_S + 1])
def test_time_is_not_moved_without_end(seconds: float) -> None:
    """Nor by what is no number: at once, and the clock is as it was."""
    with Broker() as broker:
        before_ms = broker.clock.now_ms()
        with pytest.raises(ValueError, match="at once"):
            broker.clock.advance(seconds)
        broker.clock.advance(0)
        assert 0 <= broker.clock.now_ms() - before_ms < 60_000
