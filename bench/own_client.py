"""Our own Python client, in the comparison's Python part and as the bulk service's user."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import trio

from bench.broker import serve
from bench.load import BODY, TOPIC
from bench.measure import OURS, Row
from bench.python_side import Client
from commitbus.broker.client import Producer, SyncConsumer, SyncProducer

BULK_MESSAGES: Final = 400_000
TRANSPORT: Final = "trio"
"""Named, so that the figures say of which they are, whatever the default is."""


class CommitbusFromPython:
    """Starts ours for the Python part."""

    name: Final = OURS
    remark: Final = (
        f"commitbus from Python: commitbus serve --transport {TRANSPORT}, commitbus.broker.client "
        "with its defaults; awaited in trio tasks; fsync is --flush sync."
    )

    @contextmanager
    def start(self, directory: Path, *, fsync: bool) -> Iterator[Client]:
        """As the protocol says."""
        flush = "sync" if fsync else "async"
        with serve(directory / "store", flush=flush, transport=TRANSPORT) as server:
            yield CommitbusClient(server.endpoint)


class CommitbusClient:
    """`commitbus.broker.client`, with its defaults."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint

    def awaited(self, tasks: int, seconds: float) -> float:
        """As the protocol says, in trio tasks."""
        return trio.run(self._awaited, tasks, seconds)

    async def _awaited(self, tasks: int, seconds: float) -> float:
        acknowledged = 0

        async def loop() -> None:
            nonlocal acknowledged
            while time.perf_counter() < end:
                await producer.send(BODY, topic=TOPIC)
                acknowledged += 1

        async with Producer(self._endpoint) as producer:
            start = time.perf_counter()
            end = start + seconds
            async with trio.open_nursery() as nursery:
                for _ in range(tasks):
                    nursery.start_soon(loop)
            return acknowledged / (time.perf_counter() - start)

    def produce(self, messages: int) -> None:
        """As the protocol says."""
        with SyncProducer(self._endpoint) as producer:
            for _ in range(messages):
                producer.produce(BODY, topic=TOPIC)

    def consume(self, messages: int) -> None:
        """As the protocol says."""
        seen = 0
        with SyncConsumer(self._endpoint, TOPIC, follow=False) as consumer:
            for batch in consumer.batches():
                bodies = batch.bodies()
                assert len(bodies[0]) == len(BODY)
                seen += len(bodies)
                if seen >= messages:
                    return
        raise AssertionError(f"{seen} messages were read, {messages} sent")


def bulk() -> list[Row]:
    """Send through the bulk service and read all of it again, each after a time not counted."""
    with (
        tempfile.TemporaryDirectory(prefix="commitbus-bench-") as directory,
        CommitbusFromPython().start(Path(directory), fsync=False) as client,
    ):
        client.produce(BULK_MESSAGES)
        start = time.perf_counter()
        client.produce(BULK_MESSAGES)
        produced = BULK_MESSAGES / (time.perf_counter() - start)
        client.consume(BULK_MESSAGES)
        start = time.perf_counter()
        client.consume(2 * BULK_MESSAGES)
        consumed = 2 * BULK_MESSAGES / (time.perf_counter() - start)
    note = "our Python client, one process"
    return [
        ("bulk append, acknowledged per batch", "msg/s", produced, note),
        ("bulk fetch", "msg/s", consumed, f"{note}; bodies as bytes"),
    ]
