"""What is measured of a broker that speaks apache.rocketmq.v2, ours or the original."""

from __future__ import annotations

import tempfile
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, Protocol

from bench.broker import Server, serve
from bench.load import (
    RECEIVE_MAX,
    REFUSED_SHARE_MAX,
    SEND,
    SERVICE,
    ack_request,
    fill,
    generate,
    receive_request,
    receiver_settings,
    send_request,
    until_accepted,
)
from bench.measure import OURS, Row
from bench.store_process import anonymous_megabytes

IN_FLIGHT: Final = (1, 16, 64, 256)
SECONDS: Final = 3.0
WARM_CALLS: Final = 100_000
WARM_SECONDS: Final = 60.0
"""At most. Calls, not seconds, make a JVM compile: on a busy machine it gets fewer of them in a
second, and would be measured half compiled."""
RECEIVERS: Final = 8
RECEIVE_TOPIC: Final = "Receive"
RECEIVE_MESSAGES: Final = 200_000
RECEIVE_SECONDS: Final = 4.0
TOPICS: Final = ("Bench", RECEIVE_TOPIC)
GIB_MESSAGES: Final = 800_000
"""Of 1 KB each, with their properties nearly one file of the log."""
IDLE_S: Final = 2.0


class Contender(Protocol):
    """A broker that can be started."""

    @property
    def name(self) -> str:
        """The head of its column."""

    def serve(
        self, store: Path, *, flush: str, topics: tuple[str, ...]
    ) -> AbstractContextManager[Server]:
        """Start it on a store; it has these topics, or makes them when they are named."""


class Commitbus:
    """Ours, with one of its transports."""

    name: Final = OURS

    def __init__(self, transport: str | None) -> None:
        self._transport = transport

    def serve(
        self,
        store: Path,
        *,
        flush: str,
        topics: tuple[str, ...],
    ) -> AbstractContextManager[Server]:
        """As the protocol says."""
        return serve(store, flush=flush, transport=self._transport)


def asynchronous(contender: Contender) -> list[Row]:
    """Run one broker through everything in ASYNC_FLUSH, from its first start to a kill and back."""
    with tempfile.TemporaryDirectory(prefix="commitbus-bench-") as name:
        store = Path(name) / "store"
        with contender.serve(store, flush="async", topics=TOPICS) as server:
            until_accepted(server.endpoint, send_request(0))
            rows = [("start to first send, empty store", "s", server.seconds(), "")]
            generate(server.endpoint, SEND, send_request(0), seconds=0.1)
            time.sleep(IDLE_S)
            memory = anonymous_megabytes(server.process.pid)
            rows.append(("anonymous RSS, idle", "MB", memory, "after the first tenth of a second"))
            rows += unary(server.endpoint, "ASYNC_FLUSH")
            rows += receive(server.endpoint)
            fill(server.endpoint, TOPICS[0], GIB_MESSAGES)
            server.process.kill()
            server.process.wait()
        with contender.serve(store, flush="async", topics=TOPICS) as server:
            until_accepted(server.endpoint, send_request(0))
            rows.append(
                (
                    "start to first send, 1 GB after kill -9",
                    "s",
                    server.seconds(),
                    "pages in memory",
                )
            )
    return rows


def synchronous(contender: Contender) -> list[Row]:
    """Send with SYNC_FLUSH: answered once the message is on the disk."""
    with tempfile.TemporaryDirectory(prefix="commitbus-bench-") as name:
        store = Path(name) / "store"
        with contender.serve(store, flush="sync", topics=TOPICS) as server:
            until_accepted(server.endpoint, send_request(0))
            return unary(server.endpoint, "SYNC_FLUSH")


def unary(endpoint: str, flush: str) -> list[Row]:
    """Send 1 KB messages one by one with a fixed number of calls in flight."""
    request = send_request(0)
    generate(endpoint, SEND, request, in_flight=64, calls=WARM_CALLS, seconds=WARM_SECONDS)
    rows: list[Row] = []
    for in_flight in IN_FLIGHT:
        found = generate(endpoint, SEND, request, in_flight=in_flight, seconds=SECONDS)
        name = f"unary send, {in_flight} in flight, {flush}"
        rows += [
            (name, "msg/s", (found["calls"] - found["others"]) / found["seconds"], ""),
            (f"{name}, p50", "ms", found["p50_ms"], ""),
            (f"{name}, p99", "ms", found["p99_ms"], ""),
        ]
    return rows


def receive(endpoint: str) -> list[Row]:
    """Receive what was stored before, 32 messages in a call, without and with acks."""
    fill(endpoint, RECEIVE_TOPIC, RECEIVE_MESSAGES)
    rows: list[Row] = []
    for name, with_ack in (("receive", False), ("receive and ack", True)):
        # A group that is new begins with the first message; one of its own warms the server.
        receive_as(endpoint, f"warm-{with_ack}", with_ack=with_ack)
        rate, p99_ms = receive_as(endpoint, f"measured-{with_ack}", with_ack=with_ack)
        what = f"{name}, {RECEIVE_MAX} per call"
        rows += [
            (what, "msg/s", rate, f"{RECEIVERS} receivers"),
            (f"{what}, p99", "ms", p99_ms, "of a call with its ack" if with_ack else "of a call"),
        ]
    return rows


def receive_as(endpoint: str, group: str, *, with_ack: bool) -> tuple[float, float]:
    """Receive as a new group; return messages a second and the calls' 99th percentile in ms."""
    acks: dict[str, str | bytes] = (
        {"ack": f"{SERVICE}/AckMessage", "ack_request": ack_request(group, RECEIVE_TOPIC)}
        if with_ack
        else {}
    )
    with receiver_settings(endpoint, group, RECEIVE_TOPIC):
        found = generate(
            endpoint,
            f"{SERVICE}/ReceiveMessage",
            receive_request(group, RECEIVE_TOPIC),
            receive=RECEIVE_MESSAGES - RECEIVERS * RECEIVE_MAX,
            in_flight=RECEIVERS,
            seconds=RECEIVE_SECONDS,
            **acks,
        )
    assert found["messages"], f"nothing was received: {found}"
    assert not with_ack or found["acks"] >= found["messages"] * (1 - REFUSED_SHARE_MAX)
    return found["messages"] / found["seconds"], found["p99_ms"]
