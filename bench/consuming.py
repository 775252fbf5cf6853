"""What consumers wait for: a message they gave back, and single acks, over the trio transport."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import grpc

from bench.broker import Server, broker
from bench.load import (
    METADATA,
    SEND,
    SERVICE,
    TOPIC,
    ack_request,
    check_response,
    fill,
    framed,
    generate,
    receive_request,
    send_request,
    until_accepted,
)
from bench.measure import Row
from commitbus.broker.config import Transport
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb

RECEIVE: Final = f"{SERVICE}/ReceiveMessage"
ACK: Final = f"{SERVICE}/AckMessage"
HEARTBEAT: Final = f"{SERVICE}/Heartbeat"
CHANGE_INVISIBLE: Final = f"{SERVICE}/ChangeInvisibleDuration"
GROUPS: Final = 48
APART_S: Final = 0.02
NACK_S: Final = 1
CALLS: Final = 40_000
IN_FLIGHT: Final = 64
RECEIVERS: Final = 8


def nack_to_redelivery() -> list[Row]:
    """Give a message back for one second, in many groups, and receive it again."""
    with broker(Transport.TRIO) as server:
        until_accepted(server.endpoint, send_request(0))
        seconds = sorted(asyncio.run(redeliveries(server.endpoint)))
    name = f"nack of {NACK_S} s to redelivery"
    note = f"{GROUPS} groups, one message each; from the nack's call to the message's arrival"
    return [
        (f"{name}, p{percent}", "ms", seconds[len(seconds) * percent // 100] * 1000, note)
        for percent in (50, 99)
    ]


async def redeliveries(endpoint: str) -> list[float]:
    """Return for each group how many seconds its message took to come back."""
    async with grpc.aio.insecure_channel(endpoint) as channel:

        async def redelivery(number: int) -> float:
            await asyncio.sleep(number * APART_S)
            group = f"group-{number}"
            (first,) = [message async for message in received(channel, group)]
            request = pb.ChangeInvisibleDurationRequest()
            request.group.name, request.topic.name = group, TOPIC
            request.receipt_handle = first.system_properties.receipt_handle
            request.invisible_duration.seconds = NACK_S
            change = channel.unary_unary(CHANGE_INVISIBLE, None, None)
            begin = time.perf_counter()
            check_response(await change(request.SerializeToString(), metadata=METADATA, timeout=10))
            async for message in received(channel, group):
                assert message.system_properties.delivery_attempt == 2
                return time.perf_counter() - begin
            raise AssertionError("the message did not come back")

        return await asyncio.gather(*map(redelivery, range(GROUPS)))


async def received(channel: grpc.aio.Channel, group: str) -> AsyncIterator[pb.Message]:
    """Yield the messages of one receive."""
    request = receive_request(group, TOPIC)
    call = channel.unary_stream(RECEIVE, None, None)
    async for data in call(request, metadata=METADATA, timeout=30):
        response = pb.ReceiveMessageResponse.FromString(data)
        if response.HasField("message"):
            yield response.message


def single_acks() -> list[Row]:
    """Acknowledge one message a call, beside sends and calls that do next to nothing."""
    if shutil.which("go") is None:
        print("single acks: skipped, the load generator needs Go", file=sys.stderr)
        return []
    with broker(Transport.TRIO) as server:
        until_accepted(server.endpoint, send_request(0))
        fill(server.endpoint, TOPIC, CALLS)
        acks = framed(asyncio.run(ack_requests(server.endpoint, CALLS)))
        generate(server.endpoint, SEND, send_request(0), in_flight=IN_FLIGHT, seconds=0.5)
        name = f"over trio, {IN_FLIGHT} in flight"
        beat, send = pb.HeartbeatRequest().SerializeToString(), send_request(0)
        return [
            *made(server, f"single AckMessage {name}", ACK, b"", requests=acks),
            *made(server, f"Heartbeat {name}, beside acks", HEARTBEAT, beat, calls=CALLS),
            *made(server, f"SendMessage {name}, beside acks", SEND, send, calls=CALLS),
        ]


async def ack_requests(endpoint: str, count: int) -> list[bytes]:
    """Receive so many messages; return a request for each that acknowledges it."""
    group = "acks"
    head, requests = ack_request(group, TOPIC), list[bytes]()

    async def receiver(channel: grpc.aio.Channel) -> None:
        while len(requests) < count:
            async for message in received(channel, group):
                entry, properties = pb.AckMessageRequest(), message.system_properties
                entry.entries.add(
                    message_id=properties.message_id, receipt_handle=properties.receipt_handle
                )
                requests.append(head + entry.SerializeToString())

    async with grpc.aio.insecure_channel(endpoint) as channel:
        receivers = [asyncio.create_task(receiver(channel)) for _ in range(RECEIVERS)]
        ended, waiting = await asyncio.wait(receivers, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:  # for messages that do not come
            task.cancel()
        await asyncio.gather(*ended)
    return requests


def made(
    server: Server, name: str, path: str, request: bytes, **options: float | bytes
) -> list[Row]:
    """Make calls, 64 in flight; return their rate, and what each costs the server."""
    before = cpu_s(server.process.pid)
    result = generate(server.endpoint, path, request, in_flight=IN_FLIGHT, seconds=60, **options)
    each = (cpu_s(server.process.pid) - before) / result["calls"]
    rate, note = result["calls"] / result["seconds"], f"{result['calls']:,} calls"
    return [
        (name, "calls/s", rate, note),
        (f"{name}, CPU", "us/call", each * 1e6, "all threads of the server"),
    ]


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process, that of the kernel for it included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
