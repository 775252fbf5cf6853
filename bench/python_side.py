"""What a Python program gets from a broker: awaited sends, sends at full rate, consumption.

Every broker is driven by the client that its users would take. What is awaited is awaited in
asyncio tasks, each of which sends the next message when its last one is acknowledged.
"""

from __future__ import annotations

import asyncio
import importlib.util
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, Protocol

from bench.measure import Row
from bench.peers.jvm import PeerMissingError

BODY: Final = bytes(range(256)) * 4
TASKS: Final = (1, 64)
SECONDS: Final = 3.0
WARM_SECONDS: Final = 3.0
MESSAGES: Final = 200_000
"""Sent at full rate and consumed, after as many that are not counted."""

Send = Callable[[], Awaitable[object]]


class Client(Protocol):
    """A client of a broker that runs."""

    def awaited(self, tasks: int, seconds: float) -> float:
        """Return the messages a second that so many tasks got acknowledged."""

    def produce(self, messages: int) -> None:
        """Send messages as fast as the client can; return when all are acknowledged."""

    def consume(self, messages: int) -> None:
        """Read messages from the beginning, in batches, each body as bytes."""


class Peer(Protocol):
    """A broker that can be started, with a client."""

    @property
    def name(self) -> str:
        """The head of its column."""

    def start(self, directory: Path, *, fsync: bool) -> AbstractContextManager[Client]:
        """Start it on an empty directory; with `fsync` nothing is acknowledged before it."""


def from_python(peer: Peer) -> list[Row]:
    """Run one broker with its defaults, then with an fsync before each acknowledgement."""
    rows: list[Row] = []
    for fsync in (False, True):
        mode = "fsync before ack" if fsync else "default"
        with (
            tempfile.TemporaryDirectory(prefix="commitbus-bench-") as directory,
            peer.start(Path(directory), fsync=fsync) as client,
        ):
            client.awaited(TASKS[-1], WARM_SECONDS)
            for tasks in TASKS:
                rate = client.awaited(tasks, SECONDS)
                rows.append((f"Python, {tasks} awaiting, {mode}", "msg/s", rate, ""))
            client.produce(MESSAGES)
            rate = MESSAGES / seconds_of(client.produce)
            rows.append((f"Python, produce at full rate, {mode}", "msg/s", rate, ""))
            if not fsync:
                client.consume(MESSAGES)
                rate = MESSAGES / seconds_of(client.consume)
                rows.append(("Python, consume in batches", "msg/s", rate, ""))
    return rows


def seconds_of(work: Callable[[int], None]) -> float:
    """Return how long it takes for all messages."""
    start = time.perf_counter()
    work(MESSAGES)
    return time.perf_counter() - start


async def closed_loop(send: Send, tasks: int, seconds: float) -> float:
    """Run tasks that each await one send after the other; return the rate of all."""
    start = time.perf_counter()
    end = start + seconds
    acknowledged = 0

    async def loop() -> None:
        nonlocal acknowledged
        while time.perf_counter() < end:
            await send()
            acknowledged += 1

    await asyncio.gather(*(loop() for _ in range(tasks)))
    return acknowledged / (time.perf_counter() - start)


def need_module(name: str, package: str) -> None:
    """Check that a client is installed.

    Raises:
        PeerMissingError: It is not.
    """
    if importlib.util.find_spec(name) is None:
        raise PeerMissingError(f"the client is missing: pip install {package}")
