"""The bulk service without a client's own work: ready batches in, slices out and not looked at."""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import trio

from bench.broker import serve
from bench.measure import Row
from commitbus.broker.client import Producer, ProducerOptions
from commitbus.broker.client.requests import append_request
from commitbus.broker.common.address import split_host_port
from commitbus.broker.rpc.http2.client_connection import connect
from commitbus.broker.rpc.proto import bulk_v1_pb2 as pb
from commitbus.broker.wire.bulk_paths import APPEND, FETCH
from commitbus.broker.wire.frames import encode_frames
from commitbus.broker.wire.large_field import take_out

BODY: Final = bytes(range(256)) * 4
MESSAGES: Final = 400_000
BATCH: Final = 256
WINDOW: Final = 32
CREDIT_BYTES: Final = 1 << 40
"""The windows of HTTP/2 alone decide how far the broker is ahead."""
TOPIC: Final = "bench"
TASKS: Final = (1, 64)
SECONDS: Final = 3.0


def bulk_streams() -> list[Row]:
    """Append and fetch on one stream each, after as many messages that are not counted."""
    with (
        tempfile.TemporaryDirectory(prefix="commitbus-bench-") as directory,
        serve(Path(directory) / "store", flush="async", transport="trio") as server,
    ):
        trio.run(append, server.endpoint)
        appended = seconds_of(append, server.endpoint)
        trio.run(fetch, server.endpoint)
        fetched = seconds_of(fetch, server.endpoint)
    return [
        (
            "bulk append, one stream",
            "msg/s",
            MESSAGES / appended,
            f"1 KB, {BATCH} in a batch, each acknowledged, {WINDOW} in flight",
        ),
        ("bulk fetch, one stream", "msg/s", 2 * MESSAGES / fetched, "1 KB, slices of 1 MiB"),
    ]


def bulk_awaited() -> list[Row]:
    """Tasks that each await an fsynced send before the next."""
    rows: list[Row] = []
    with (
        tempfile.TemporaryDirectory(prefix="commitbus-bench-") as directory,
        serve(Path(directory) / "store", flush="sync", transport="trio") as server,
    ):
        for tasks in TASKS:
            rate = trio.run(awaited, server.endpoint, tasks)
            name = f"bulk client, {tasks} tasks awaiting"
            rows.append((name, "msg/s", rate, "1 KB, SYNC_FLUSH"))
    return rows


def seconds_of(work: Callable[[str], Awaitable[None]], endpoint: str) -> float:
    """Run an async function and return how long it took."""
    start = time.perf_counter()
    trio.run(work, endpoint)
    return time.perf_counter() - start


async def append(endpoint: str) -> None:
    """Send ready batches and wait for all acknowledgements."""
    lengths, records = encode_frames([BODY, b""] * BATCH)
    room = trio.Semaphore(WINDOW)
    async with connect(*split_host_port(endpoint)) as connection, connection.call(APPEND) as call:

        async def acknowledge() -> None:
            left = MESSAGES // BATCH
            while left:
                response = await call.receive()
                assert response is not None
                acks = pb.AppendResponse.FromString(response).acks
                left -= len(acks)
                for _ in acks:
                    room.release()

        start = pb.AppendStart(topic=TOPIC, producer_id=secrets.token_bytes(16))
        await call.send(pb.AppendRequest(start=start).SerializeToString())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(acknowledge)
            for sequence in range(MESSAGES // BATCH):
                await room.acquire()
                head = pb.AppendBatch(sequence=sequence, lengths=lengths)
                await call.send(*append_request(head, records))


async def fetch(endpoint: str) -> None:
    """Read the whole topic and count the records."""
    count = 0
    async with connect(*split_host_port(endpoint)) as connection, connection.call(FETCH) as call:
        what = pb.FetchTopic(topic=TOPIC)
        request = pb.FetchRequest(topic=what, credit_bytes=CREDIT_BYTES)
        await call.send(request.SerializeToString())
        while (data := await call.receive()) is not None:
            head, _ = take_out(memoryview(data), pb.FetchResponse.RECORDS_FIELD_NUMBER)
            count += pb.FetchResponse.FromString(head).record_count
    assert count >= MESSAGES, f"{count} records were read"


async def awaited(endpoint: str, tasks: int) -> float:
    """Return the sends a second that so many tasks together have acknowledged."""
    acknowledged = 0

    async def loop(producer: Producer) -> None:
        nonlocal acknowledged
        while True:
            await producer.send(BODY, topic=TOPIC)
            acknowledged += 1

    async with Producer(endpoint, ProducerOptions()) as producer:
        await producer.send(BODY, topic=TOPIC)
        with trio.move_on_after(SECONDS):
            async with trio.open_nursery() as nursery:
                for _ in range(tasks):
                    nursery.start_soon(loop, producer)
    return acknowledged / SECONDS
