"""The store alone: append with reput running, and group commit."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import numpy as np
import trio

from bench.measure import Row
from commitbus.broker.common.trio_thread import TrioThread
from commitbus.broker.core.durability import Durability
from commitbus.broker.store.config import StoreConfig
from commitbus.broker.store.message_store import MessageStore
from commitbus.commitlog.framed import FramedBatch
from commitbus.commitlog.kernels import ready_kernels
from commitbus.commitlog.record_format import encode_properties
from commitbus.commitlog.types import Host, OutgoingMessage
from commitbus.flush.policy import FlushMode, FlushPolicy

BODY = bytes(range(256)) * 4
MESSAGES = 100_000
BATCH = 64
FRAMED_RECORDS = (64, 1024)
FRAMED_MESSAGES = 200_000
QUEUES = 8
WAITERS = (1, 16, 64, 256)
SYNC_SECONDS = 2.0
PRODUCER = Host.parse("127.0.0.1", 40000)

_Item = TypeVar("_Item")


def message(number: int) -> OutgoingMessage:
    """Return a message with a 1 KB body and the properties that a gRPC client's message gets."""
    properties = {
        "UNIQ_KEY": f"01AABBCCDDEEFF0001{number:016X}",
        "TAGS": "bench",
        "KEYS": f"key-{number}",
        "CLUSTER": "DefaultCluster",
        "TRACE_ON": "true",
    }
    return OutgoingMessage(
        topic="Bench",
        queue_id=number % QUEUES,
        body=BODY,
        properties=encode_properties(properties),
        born_timestamp=1_700_000_000_000,
        born_host=PRODUCER,
    )


@contextmanager
def open_store(mode: FlushMode) -> Iterator[MessageStore]:
    """An empty store of default file sizes on the disk of the temporary directory."""
    with tempfile.TemporaryDirectory(prefix="commitbus-bench-") as directory:
        config = StoreConfig(flush=FlushPolicy(mode=mode))
        store = MessageStore.open(Path(directory) / "store", config)
        try:
            yield store
        finally:
            store.close()


def append_one_by_one() -> list[Row]:
    """Append 1 KB messages one by one while reput builds queues and index."""
    messages = [message(number) for number in range(MESSAGES)]
    note = f"1 KB, ASYNC_FLUSH, reput running; kernels: {ready_kernels().name}"
    with open_store(FlushMode.ASYNC_FLUSH) as store:
        appended, dispatched, cpu = put_all(store, store.put, messages)
    return [
        ("append one by one", "msg/s", MESSAGES / appended, note),
        ("append one by one, dispatched", "msg/s", MESSAGES / dispatched, "until reput is done"),
        ("append one by one, CPU", "us/msg", cpu / MESSAGES * 1e6, "of the appending thread"),
    ]


def append_batches() -> list[Row]:
    """Append 1 KB messages in batches of 64 while reput builds queues and index."""
    messages = [message(number) for number in range(MESSAGES)]
    ready_kernels()
    batches = [messages[at : at + BATCH] for at in range(0, MESSAGES, BATCH)]
    with open_store(FlushMode.ASYNC_FLUSH) as store:
        appended, dispatched, cpu = put_all(store, store.put_batch, batches)
    return [
        (f"append in batches of {BATCH}", "msg/s", MESSAGES / appended, "as above"),
        (f"append in batches of {BATCH}, dispatched", "msg/s", MESSAGES / dispatched, "as above"),
        (f"append in batches of {BATCH}, CPU", "us/msg", cpu / MESSAGES * 1e6, "as above"),
    ]


def append_framed() -> list[Row]:
    """Append 1 KB messages in batches that come in one buffer each, as those of a bulk stream."""
    rows = []
    note = f"each in one buffer; kernels: {ready_kernels().name}"
    for records in FRAMED_RECORDS:
        batches = [framed_batch(at, records) for at in range(0, FRAMED_MESSAGES, records)]
        count = records * len(batches)
        name = f"append framed batches of {records}"
        with open_store(FlushMode.ASYNC_FLUSH) as store:
            appended, dispatched, cpu = put_all(store, store.put_framed, batches)
        rows += [
            (name, "msg/s", count / appended, note),
            (f"{name}, dispatched", "msg/s", count / dispatched, "until reput is done"),
            (f"{name}, CPU", "us/msg", cpu / count * 1e6, "of the appending thread"),
        ]
    return rows


def framed_batch(first: int, count: int) -> FramedBatch:
    """Return messages in one buffer, all of one queue."""
    messages = [message(number) for number in range(first, first + count)]
    return FramedBatch(
        messages[0].topic,
        first // count % QUEUES,
        b"".join(part for one in messages for part in (one.body, one.properties)),
        np.array([len(one.body) for one in messages], np.int64),
        np.array([len(one.properties) for one in messages], np.int64),
        messages[0].born_timestamp,
        PRODUCER,
    )


def put_all(
    store: MessageStore, put: Callable[[_Item], object], items: Sequence[_Item]
) -> tuple[float, float, float]:
    """Put the items; return seconds until they are stored, and until reput is done, and CPU.

    CPU seconds are the calling thread's: what else runs on the machine moves them least.
    """
    start, cpu_start = time.perf_counter(), time.thread_time()
    for item in items:
        put(item)
    appended, cpu = time.perf_counter() - start, time.thread_time() - cpu_start
    return appended, seconds_until_dispatched(store, start), cpu


def seconds_until_dispatched(store: MessageStore, start: float) -> float:
    """Wait until reput has caught up; return the seconds since `start`."""
    while store.dispatch_behind_bytes:
        time.sleep(0.001)
    return time.perf_counter() - start


def sync_flush() -> list[Row]:
    """Append with SYNC_FLUSH from tasks that each await durability before the next message."""
    ready_kernels()
    rows = []
    for waiters in WAITERS:
        with open_store(FlushMode.SYNC_FLUSH) as store:
            acknowledged = trio.run(closed_loop, store, waiters)
        rate = acknowledged / SYNC_SECONDS
        rows.append(
            (f"SYNC_FLUSH, {waiters} waiting", "msg/s", rate, "acknowledged after fdatasync")
        )
    return rows


async def closed_loop(store: MessageStore, waiters: int) -> int:
    """Run `waiters` tasks for a fixed time; return how many messages were made durable."""
    trio_thread = TrioThread()
    trio_thread.attach()
    durability = Durability(store.durable_watermark, trio_thread)
    acknowledged = 0

    async def produce(number: int) -> None:
        nonlocal acknowledged
        one = message(number)
        while True:
            await durability.wait(store.put(one).end_offset)
            acknowledged += 1

    with trio.move_on_after(SYNC_SECONDS):
        async with trio.open_nursery() as nursery:
            for number in range(waiters):
                nursery.start_soon(produce, number)
    trio_thread.detach()
    return acknowledged
