"""A broker with much state beside an empty one: what its clients and its operator notice of it.

The state: 80,000 queues with progress, 10,000 groups, 50,000 deleted topics, and a million messages
in flight. It is made once for all rounds, which takes some minutes.
"""

from __future__ import annotations

import asyncio
import atexit
import itertools
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final

import grpc
import trio
from isal.isal_zlib import crc32

from bench.broker import serve
from bench.consuming import HEARTBEAT, cpu_s
from bench.handlers import MESSAGE, call_of, measure, receive_request
from bench.load import (
    METADATA,
    SEND,
    SERVICE,
    TOPIC,
    check_response,
    receiver_settings,
    send_request,
    until_accepted,
)
from bench.measure import Row
from bench.store_process import anonymous_megabytes
from commitbus.broker.cli.admin_client import AdminClient
from commitbus.broker.config import BrokerConfig
from commitbus.broker.messaging.context import MessagingContext
from commitbus.broker.metadata.documents import JsonObject, format_document
from commitbus.broker.rpc.call import Response
from commitbus.broker.rpc.exchange import begin, encoded
from commitbus.broker.rpc.method import Method
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from commitbus.broker.store.config import StoreConfig
from commitbus.broker.store.message_store import MessageStore
from commitbus.commitlog.types import Host, OutgoingMessage

TOPICS: Final = 5000
QUEUES: Final = 16
"""Queues of each topic: 80,000 in all."""
GROUPS: Final = 10_000
GROUPS_WITH_PROGRESS: Final = 3000
DELETED: Final = 50_000
IN_FLIGHT: Final = 1_000_000
HOLDERS: Final = 100
"""Clients that hold the messages in flight."""
QUEUE_FILE_BYTES: Final = 4000
INVISIBLE_S: Final = 11 * 3600
SECONDS: Final = 60.0
IDLE_S: Final = 10.0
PERIOD_S: Final = 0.02
BATCH: Final = 1000
FLIGHT_TOPIC: Final = "InFlight"
TERMINATE: Final = f"{SERVICE}/NotifyClientTermination"


def large_state() -> list[Row]:
    """Measure a broker with much state, and an empty one, side by side."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="commitbus-")))
        large = directory / "large"
        shutil.copytree(filled_store(), large)
        stores = {"large state": large, "empty": directory / "empty"}
        rows: list[Row] = []
        for kind in ("clean", "unclean"):
            servers: dict[str, Running] = {}
            with ExitStack() as running:
                for name, store in stores.items():
                    server = running.enter_context(started(store))
                    servers[name] = server
                    note = "until the first accepted message, process start included"
                    rows.append((f"{kind} start, {name}", "s", server.first_send_s, note))
                if kind == "clean":
                    rows += while_running(servers)
                for server in servers.values():
                    # Killed, so that the next start is an unclean one.
                    server.process.kill()
    return rows


def while_running(servers: Mapping[str, Running]) -> list[Row]:
    """Return what is measured with both brokers running."""
    rows: list[Row] = []
    note = f"beside each other, one each {PERIOD_S * 1000:.0f} ms for {SECONDS:.0f} s"
    endpoints = {name: one.endpoint for name, one in servers.items()}
    with ExitStack() as stack:
        for endpoint in endpoints.values():
            # A client is known by its settings, and may then send heartbeats.
            stack.enter_context(receiver_settings(endpoint, "group-0", TOPIC))
        longest = asyncio.run(longest_calls(endpoints))
    for (name, call), seconds in longest.items():
        rows.append((f"longest {call} of a minute, {name}", "ms", seconds * 1000, note))
    for name, server in servers.items():
        before, since = cpu_s(server.process.pid), time.perf_counter()
        time.sleep(IDLE_S)
        share = (cpu_s(server.process.pid) - before) / (time.perf_counter() - since)
        rows.append((f"CPU when idle, {name}", "% of a core", share * 100, ""))
        scrape = best_of_three(server.scrape)
        rows.append((f"/metrics scrape, {name}", "ms", scrape * 1000, "the fastest of three"))
        with AdminClient(server.endpoint) as client:
            listed = best_of_three(client.groups)
        rows.append((f"consumerProgress of all groups, {name}", "ms", listed * 1000, "likewise"))
        megabytes = anonymous_megabytes(server.process.pid)
        rows.append((f"anonymous RSS, {name}", "MB", megabytes, "after all of this"))
    return rows


@dataclass(frozen=True, slots=True)
class Running:
    """A broker process."""

    process: subprocess.Popen[str]
    endpoint: str
    metrics_url: str
    first_send_s: float
    """From the start of the process to the first accepted message."""

    def scrape(self) -> None:
        """Read the metrics once."""
        host, path = self.metrics_url.removeprefix("http://").split("/", 1)
        connection = HTTPConnection(host, timeout=60)
        connection.request("GET", f"/{path}")
        assert connection.getresponse().read()
        connection.close()


@contextmanager
def started(store: Path) -> Iterator[Running]:
    """Start a broker that serves metrics, and wait for its first accepted message."""
    with serve(store, more=("--metrics-port", "0")) as server:
        until_accepted(server.endpoint, send_request(0))
        yield Running(server.process, server.endpoint, server.metrics_url, server.seconds())


def best_of_three(work: Callable[[], object]) -> float:
    """Return the seconds of the fastest of three runs."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


async def longest_calls(endpoints: Mapping[str, str]) -> dict[tuple[str, str], float]:
    """Call all brokers for a minute; return the longest call of each kind in seconds.

    Once a second a client with nothing in flight says goodbye, which makes a broker look for what
    it holds.
    """
    heartbeat = pb.HeartbeatRequest(client_type=pb.SIMPLE_CONSUMER)
    heartbeat.group.name = "group-0"
    goodbye = pb.NotifyClientTerminationRequest()
    goodbye.group.name = "group-0"
    visitor = tuple({**dict(METADATA), "x-mq-client-id": "visitor"}.items())
    kinds = {
        "heartbeat": (HEARTBEAT, heartbeat.SerializeToString(), PERIOD_S),
        "send": (SEND, send_request(0), PERIOD_S),
        "termination": (TERMINATE, goodbye.SerializeToString(), 1.0),
    }
    longest: dict[tuple[str, str], float] = {}
    end = time.perf_counter() + SECONDS

    async def repeat(name: str, kind: str, channel: grpc.aio.Channel) -> None:
        path, request, period_s = kinds[kind]
        call: Callable[..., Awaitable[Any]] = channel.unary_unary(path, None, None)
        while (start := time.perf_counter()) < end:
            if kind == "termination":
                await call(request, metadata=visitor, timeout=60)
            else:
                check_response(await call(request, metadata=METADATA, timeout=60))
            taken = time.perf_counter() - start
            longest[name, kind] = max(taken, longest.get((name, kind), 0.0))
            await asyncio.sleep(max(0.0, period_s - taken))

    async with AsyncExitStack() as stack:
        channels = {
            name: await stack.enter_async_context(grpc.aio.insecure_channel(endpoint))
            for name, endpoint in endpoints.items()
        }
        calls = itertools.product(channels.items(), kinds)
        await asyncio.gather(*(repeat(name, kind, channel) for (name, channel), kind in calls))
    return longest


# Making the state


@cache
def filled_store() -> Path:
    """Return a cleanly closed store with all of the state."""
    directory = Path(tempfile.mkdtemp(prefix="commitbus-large-"))
    atexit.register(shutil.rmtree, directory)
    store = directory / "store"
    print("making a store with much state", file=sys.stderr)
    put_messages(store)
    write_configuration(store)
    write_deletions(store)
    config = BrokerConfig(
        store_directory=store, listen="127.0.0.1:0", queue_file_bytes=QUEUE_FILE_BYTES
    )
    trio.run(measure, config, receive_all)
    return store


def put_messages(store: Path) -> None:
    """Put a message into each queue, and those that will be in flight into one topic."""
    host = Host.parse("127.0.0.1", 1)

    def message(topic: str, queue_id: int) -> OutgoingMessage:
        return OutgoingMessage(topic, queue_id, b"body", b"", 1, host)

    everywhere = (
        message(f"topic-{topic}", queue_id) for queue_id in range(QUEUES) for topic in range(TOPICS)
    )
    in_flight = (message(FLIGHT_TOPIC, number % QUEUES) for number in range(IN_FLIGHT))
    messages = itertools.chain(everywhere, in_flight)
    with MessageStore.open(store, StoreConfig(queue_file_bytes=QUEUE_FILE_BYTES)) as opened:
        while batch := list(itertools.islice(messages, BATCH)):
            opened.put_batch(batch)
        assert opened.dispatched.wait(opened.end_offset, 600)


def write_configuration(store: Path) -> None:
    """Write topics, groups and offsets as RocketMQ does: the next start takes them over."""
    version: JsonObject = {"counter": 1, "stateVersion": 0, "timestamp": 1}
    topics = [*(f"topic-{number}" for number in range(TOPICS)), FLIGHT_TOPIC]
    write_config(
        store / "config" / "topics.json",
        {
            "dataVersion": version,
            "topicConfigTable": {
                name: {
                    "attributes": {},
                    "order": False,
                    "perm": 6,
                    "readQueueNums": QUEUES,
                    "topicFilterType": "SINGLE_TAG",
                    "topicName": name,
                    "topicSysFlag": 0,
                    "writeQueueNums": QUEUES,
                }
                for name in topics
            },
        },
    )
    write_config(
        store / "config" / "subscriptionGroup.json",
        {
            "dataVersion": version,
            "subscriptionGroupTable": {
                f"group-{number}": {
                    "groupName": f"group-{number}",
                    "consumeEnable": True,
                    "retryMaxTimes": 16,
                }
                for number in range(GROUPS)
            },
        },
    )
    write_config(
        store / "config" / "consumerOffset.json",
        {
            "dataVersion": version,
            "offsetTable": {
                f"topic-{number}@group-{number % GROUPS_WITH_PROGRESS}": dict.fromkeys(
                    range(QUEUES), 1
                )
                for number in range(TOPICS)
            },
        },
    )


def write_deletions(store: Path) -> None:
    """Note deleted topics, in the form of the first version, which every version reads."""
    topics = {
        f"deleted-{number}": {"before": 1 << 20, "queue_ends": {"0": 1}}
        for number in range(DELETED)
    }
    text = json.dumps(topics, sort_keys=True, separators=(",", ":"))
    path = store / "commitbus" / "deleted_topics.json"
    path.write_text(json.dumps({"crc32": crc32(text.encode()), "topics": topics}))


def write_config(path: Path, document: JsonObject) -> None:
    """Write a file of RocketMQ's, its directory made when it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(format_document(document))


async def receive_all(_: MessagingContext, methods: dict[str, Method]) -> list[Row]:
    """Have clients of one group receive the messages that will be in flight."""
    method = methods["ReceiveMessage"]
    request = pb.ReceiveMessageRequest.FromString(
        receive_request("group-0", 32, topic=FLIGHT_TOPIC)
    )
    request.invisible_duration.seconds = INVISIBLE_S
    count = 0

    async def take(*responses: Response) -> None:
        nonlocal count
        count += sum(encoded(response).startswith(MESSAGE) for response in responses)

    for holder in itertools.cycle(range(HOLDERS)):
        if count >= IN_FLIGHT:
            break
        metadata = {**dict(METADATA), "x-mq-client-id": f"holder-{holder}"}
        call = replace(call_of(method), metadata=metadata)
        answer: Any = begin(method, call, (request, call, take))
        parked = await answer
        assert parked is None, f"only {count} messages could be received"
    return []
