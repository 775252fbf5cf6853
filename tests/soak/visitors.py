"""Those who come and go: long polls given up, clients that introduce themselves, connections."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import Final

from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from tests.soak.client import Client
from tests.soak.load import Load
from tests.soak.messages import GROUPS, QUIET_TOPIC, TOPICS, Group
from tests.soak.workers import record_delivery

QUIET: Final = Group("idle", QUIET_TOPIC)
EVERY_S: Final = 2.0
"""A visit of each kind, more or less."""


async def give_up_polls(load: Load) -> None:
    """Receive, and cancel it: while it waits, or with messages on their way."""
    choice, client = load.choice("polls"), load.client("impatient")

    async def step() -> None:
        group = choice.choice((QUIET, QUIET, *GROUPS))
        each = partial(record_delivery, load, group)
        with suppress(TimeoutError):
            async with asyncio.timeout(choice.choice((0.001, 0.01, 0.1, 1)) * choice.random()):
                await client.receive(group, choice.randint(1, 4), 1000, each)
        load.recorder.count("polls given up")
        await asyncio.sleep(choice.uniform(0, EVERY_S))

    await load.repeat("poll", load.sending_ends, step)
    await client.close()


async def introduce(load: Load) -> None:
    """Be a new client each time: telemetry, a heartbeat, and goodbye or not."""
    choice = load.choice("telemetry")
    number = 0

    async def step() -> None:
        nonlocal number
        number += 1
        client = load.client(f"visitor-{number}", over_tls=choice.random() < 0.1)
        group = choice.choice(GROUPS)
        try:
            answers = await client.telemetry(
                _settings(group),
                choice.uniform(0, EVERY_S),
                says_goodbye=choice.random() < 0.5,
            )
            if len(answers) != 1 or not answers[0].HasField("settings"):
                load.recorder.fail(f"telemetry answered {answers}")
            await _heartbeat(load, client, group)
            if choice.random() < 0.5:
                goodbye = pb.NotifyClientTerminationRequest()
                goodbye.group.name = group.name
                response = await client.unary(
                    "NotifyClientTermination", goodbye, pb.NotifyClientTerminationResponse
                )
                load.refused("goodbye", response.status)
        finally:
            await client.close()
        load.recorder.count("introductions")
        await asyncio.sleep(choice.uniform(0, EVERY_S))

    await load.repeat("telemetry", load.sending_ends, step)


async def connect(load: Load) -> None:
    """Connect anew, ask for a route, disconnect; sometimes without a word, or with nonsense."""
    choice = load.choice("connections")

    async def step() -> None:
        if choice.random() < 0.3:
            await _connect_only(load, choice.choice((b"", b"PRI * HT", b"\r\n\r\n")))
        else:
            client = load.client("asks for routes")
            try:
                await _ask_routes(load, client, choice.choice(list(TOPICS)))
            finally:
                await client.close()
        load.recorder.count("connections")
        await asyncio.sleep(choice.uniform(0, EVERY_S))

    await load.repeat("route", load.sending_ends, step)


async def _connect_only(load: Load, said: bytes) -> None:
    host, port = load.server.endpoint.split(":")
    # Between a kill and the next start nobody listens.
    with suppress(OSError):
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(said)
        writer.close()
        await writer.wait_closed()


async def _ask_routes(load: Load, client: Client, topic: str) -> None:
    host, port = load.server.endpoint.split(":")
    request = pb.QueryRouteRequest()
    request.topic.name = topic
    request.endpoints.addresses.add(host=host, port=int(port))
    route = await client.unary("QueryRoute", request, pb.QueryRouteResponse)
    assignment_request = pb.QueryAssignmentRequest(endpoints=request.endpoints)
    assignment_request.topic.name, assignment_request.group.name = topic, "asks"
    assignment = await client.unary(
        "QueryAssignment", assignment_request, pb.QueryAssignmentResponse
    )
    load.refused("assignment", assignment.status)
    if not load.refused("route", route.status) and len(route.message_queues) != TOPICS[topic]:
        load.recorder.fail(f"{topic} is said to have {len(route.message_queues)} queues")


async def _heartbeat(load: Load, client: Client, group: Group) -> None:
    request = pb.HeartbeatRequest(client_type=pb.SIMPLE_CONSUMER)
    request.group.name = group.name
    response = await client.unary("Heartbeat", request, pb.HeartbeatResponse)
    load.refused("heartbeat", response.status)


def _settings(group: Group) -> pb.Settings:
    settings = pb.Settings(client_type=pb.SIMPLE_CONSUMER)
    settings.request_timeout.FromSeconds(3)
    settings.subscription.group.name = group.name
    entry = settings.subscription.subscriptions.add()
    entry.topic.name = group.topic
    entry.expression.type, entry.expression.expression = pb.TAG, group.tag
    return settings
