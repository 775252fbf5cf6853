"""What a scrape shows."""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from commitbus.broker.admin.messages import send_message
from commitbus.broker.admin.topics import put_topic
from commitbus.broker.cli.admin_client import AdminClient
from commitbus.broker.config import BrokerConfig
from commitbus.broker.embedded.broker import SMALL_FILES
from commitbus.broker.progress.queue_progress import Lease
from commitbus.broker.rpc.address import ListenError
from commitbus.broker.rpc.proto import admin_v1_pb2 as admin
from commitbus.broker.server import RunningBroker, run_broker


def broker_config(directory: Path, *, metrics_port: int) -> BrokerConfig:
    """A broker with small files on a free port."""
    changes = {
        **SMALL_FILES,
        "store_directory": directory,
        "listen": "127.0.0.1:0",
        "metrics_port": metrics_port,
    }
    return BrokerConfig().with_changes(changes)


@asynccontextmanager
async def running_broker(directory: Path) -> AsyncIterator[RunningBroker]:
    """A broker with metrics on a free port."""
    config, stop = broker_config(directory, metrics_port=0), trio.Event()
    async with trio.open_nursery() as nursery:
        running: RunningBroker = await nursery.start(partial(run_broker, config, stop))
        yield running
        stop.set()


def scrape(endpoint: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Every sample by name and labels, those that are the same everywhere left out."""
    with urllib.request.urlopen(f"http://{endpoint}/metrics", timeout=10) as response:
        text = response.read().decode()
    common = {
        "cluster": "DefaultCluster",
        "node_type": "broker",
        "node_id": "broker-a",
        "otel_scope_name": "broker-meter",
    }
    samples: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            assert common.items() <= sample.labels.items()
            own = tuple(sorted((k, v) for k, v in sample.labels.items() if k not in common))
            samples.setdefault(sample.name, {})[own] = sample.value
    return samples


def test_a_port_that_is_taken_stops_the_start(tmp_path: Path) -> None:
    """A broker that nobody can watch was not asked for."""

    async def run(taken: int) -> None:
        config = broker_config(tmp_path / "store", metrics_port=taken)
        await run_broker(config, trio.Event())

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.RaisesGroup(
            pytest.RaisesExc(ListenError, match=f"cannot listen on 127.0.0.1:{port}"),
            flatten_subgroups=True,
        ):
            trio.run(run, port)


def ask_for_the_broker(endpoint: str) -> None:
    """Make one call, by connecting."""
    with AdminClient(endpoint):
        pass


def test_a_scrape_has_rocketmq_s_names_and_labels(tmp_path: Path) -> None:
    """Traffic, lag, storage and latency."""

    async def run() -> None:
        async with running_broker(tmp_path / "store") as running:
            context = running.context
            await put_topic(context, admin.PutTopicRequest(name="orders", write_queue_nums=1))
            for body in (b"one", b"three"):
                await send_message(
                    context, admin.SendMessageRequest(topic="orders", body=body, queue_id=0)
                )
            progress = context.progress.create("g", "orders", 0, 0)
            context.progress.deliver(
                progress, [0], Lease(1, 2, "c", auto_renew=False), next_offset=1
            )
            context.messaging.counters.count_received("g", "orders", 1, 3)
            context.messaging.consuming.in_flight_cap.reached("g", "orders", 0, 1)
            await trio.to_thread.run_sync(
                context.store.dispatched.wait, context.store.end_offset, 10.0
            )
            await trio.to_thread.run_sync(ask_for_the_broker, running.endpoint)
            assert running.metrics_endpoint is not None
            samples = await trio.to_thread.run_sync(scrape, running.metrics_endpoint)
        topic = (("is_system", "false"), ("message_type", "normal"), ("topic", "orders"))
        consumer = (
            *(("consumer_group", "g"), ("is_retry", "false"), ("is_system", "false")),
            ("topic", "orders"),
        )
        disk = (("storage_medium", "disk"), ("storage_type", "local"))
        calls = (
            *(("is_long_polling", "false"), ("protocol_type", "grpc")),
            *(("request_code", "GetBroker"), ("response_code", "OK"), ("result", "success")),
        )
        assert samples["rocketmq_rpc_latency_milliseconds_count"] == {calls: 1}
        assert (
            samples["rocketmq_rpc_latency_milliseconds_bucket"][
                calls[0], ("le", "+Inf"), *calls[1:]
            ]
            == 1
        )
        assert samples["rocketmq_messages_in_total"] == {topic: 2}
        assert samples["rocketmq_throughput_in_total"] == {topic: 8}
        assert samples["rocketmq_messages_out_total"] == {consumer: 1}
        assert samples["rocketmq_throughput_out_total"] == {consumer: 3}
        assert samples["rocketmq_consumer_lag_messages"] == {consumer: 2}
        assert samples["rocketmq_consumer_inflight_messages"] == {consumer: 1}
        assert samples["commitbus_consumer_inflight_max_reached_total"] == {consumer: 1}
        assert samples["rocketmq_consumer_lag_latency_milliseconds"][consumer] >= 0
        assert samples["rocketmq_storage_size_bytes"][disk] > 0
        assert samples["rocketmq_storage_dispatch_behind_bytes"] == {disk: 0}
        assert samples["rocketmq_storage_flush_behind_bytes"][disk] >= 0
        assert samples["rocketmq_storage_message_reserve_time_milliseconds"][disk] >= 0

    trio.run(run)


@pytest.mark.parametrize(
    "accept",
    [
        "application/openmetrics-text; version=x",
        "application/openmetrics-text; version=1.x.0",
        "application/openmetrics-text; version=9.x",
        "application/openmetrics-text;version=9.0,text/plain;version=0.0.4",
        "text/plain;version = 3, text/plain;;=;version=;version==;",
        "application/openmetrics-text; version=1.\n0.0",
        f"text/plain; version={'9' * 5000}",
    ],
)
def test_a_format_that_there_is_not_is_answered_with_the_usual_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, accept: str
) -> None:
    """Instead of an error of the Prometheus client, and a traceback."""

    async def run() -> None:
        async with running_broker(tmp_path / "store") as running:
            assert running.metrics_endpoint is not None
            host, _, port = running.metrics_endpoint.rpartition(":")
            async with await trio.open_tcp_stream(host, int(port)) as stream:
                await stream.send_all(f"GET /metrics HTTP/1.1\r\nAccept: {accept}\r\n\r\n".encode())
                answer = b"".join([data async for data in stream])
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4;")
        assert b"rocketmq_storage_size_bytes" in body

    trio.run(run)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("application/openmetrics-text", "application/openmetrics-text; version=1.0.0;"),
        (
            "application/openmetrics-text;version=9,application/openmetrics-text;version=1.0.0;q=.5",
            "application/openmetrics-text; version=1.0.0;",
        ),
        ("text/plain;version=1.0.0;escaping=underscores", "text/plain; version=1.0.0;"),
        ("text/plain;version=0.0.4;q=0.2,*/*;q=0.1", "text/plain; version=0.0.4;"),
    ],
)
def test_a_format_that_there_is_is_used(tmp_path: Path, accept: str, content_type: str) -> None:
    """Prometheus names several, the best one first."""

    async def run() -> None:
        async with running_broker(tmp_path / "store") as running:

            def ask() -> str:
                url = f"http://{running.metrics_endpoint}/metrics"
                request = urllib.request.Request(url, headers={"Accept": accept})
                with urllib.request.urlopen(request, timeout=10) as response:  # noqa: S310 - http
                    return str(response.headers["Content-Type"])

            assert (await trio.to_thread.run_sync(ask)).startswith(content_type)


def test_lag_leaves_out_what_is_acknowledged_behind_a_message_in_flight(tmp_path: Path) -> None:
    """1,000 delivered and 999 acknowledged were a lag of 1,000."""

    async def run() -> None:
        async with running_broker(tmp_path / "store") as running:
            context, table = running.context, running.context.progress
            await put_topic(context, admin.PutTopicRequest(name="orders", write_queue_nums=1))
            for number in range(3):
                body = b"%d" % number
                await send_message(
                    context, admin.SendMessageRequest(topic="orders", body=body, queue_id=0)
                )
            end = context.store.end_offset
            await trio.to_thread.run_sync(context.store.dispatched.wait, end, 10.0)
            progress = table.create("g", "orders", 0, 0)
            lease = Lease(1, 2, "c", auto_renew=False)
            table.deliver(progress, [0, 1], lease, next_offset=2)
            table.acknowledge(progress, 1)
            assert running.metrics_endpoint is not None
            samples = await trio.to_thread.run_sync(scrape, running.metrics_endpoint)
        assert list(samples["rocketmq_consumer_lag_messages"].values()) == [2]
        assert list(samples["rocketmq_consumer_inflight_messages"].values()) == [1]

    trio.run(run)
