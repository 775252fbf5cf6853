"""What a scrape shows."""

from __future__ import annotations

import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from google.protobuf.message import Message
from prometheus_client.parser import text_string_to_metric_families

from commitbus.broker.admin.messages import send_message
from commitbus.broker.admin.topics import put_topic
from commitbus.broker.config import BrokerConfig
from commitbus.broker.embedded import SMALL_FILES
from commitbus.broker.metrics import RpcLatency, timed_methods
from commitbus.broker.rpc.call import Call, RpcError, Send, StatusCode
from commitbus.broker.rpc.method import Method, MethodKind
from commitbus.broker.rpc.proto import admin_v1_pb2 as admin
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from commitbus.broker.server import RunningBroker, run_broker

CALL = Call(method="/s/M", metadata={}, peer="127.0.0.1:1", authority=None, deadline_s=None)
OK = pb.SendMessageResponse(status=pb.Status(code=pb.OK))


def timed_handler(kind: MethodKind, handler: Callable[..., Any], latency: RpcLatency) -> Any:
    """The handler as the transport sees it. Which kind it is, the types do not tell."""
    method = Method("/s/Do", kind, pb.SendMessageRequest, pb.SendMessageResponse, handler)
    (timed,) = timed_methods([method], latency)
    return timed.handler


async def call(kind: MethodKind, handler: Callable[..., Any]) -> list[tuple[str, ...]]:
    """Call the timed handler, and return the labels that were counted."""
    latency = RpcLatency()
    timed = timed_handler(kind, handler, latency)

    async def send(_message: Message) -> None:
        pass

    arguments = (pb.SendMessageRequest(), CALL) + ((send,) if kind.streams_responses else ())
    try:
        result = timed(*arguments)
        if not isinstance(result, Message):
            await result
    except RpcError:
        pass
    assert all(sum(counts) == 1 for _, counts, _ in latency.snapshot())
    return [tuple(labels) for labels, _, _ in latency.snapshot()]


def test_a_handler_that_does_not_wait_is_counted_and_stays_so() -> None:
    """The transport runs it without a task, as before."""
    latency = RpcLatency()
    timed = timed_handler(MethodKind.UNARY, lambda _request, _call: OK, latency)

    async def run() -> None:
        assert timed(pb.SendMessageRequest(), CALL) is OK

    trio.run(run)
    assert [tuple(labels) for labels, _, _ in latency.snapshot()] == [
        ("Do", "20000", "false", "success")
    ]


def test_a_handler_that_waits_is_counted_when_it_is_done() -> None:
    """With the code of its status."""

    async def handler(_request: Message, _call: Call) -> Message:
        await trio.lowlevel.checkpoint()
        return pb.SendMessageResponse(status=pb.Status(code=pb.TOPIC_NOT_FOUND))

    assert trio.run(call, MethodKind.UNARY, handler) == [("Do", "40402", "false", "success")]


def test_a_stream_is_counted_with_its_first_code() -> None:
    """A receive says in its first message how it went."""

    async def handler(_request: Message, _call: Call, send: Send) -> None:
        await send(pb.ReceiveMessageResponse(status=pb.Status(code=pb.MESSAGE_NOT_FOUND)))
        await send(pb.ReceiveMessageResponse())

    labels = trio.run(call, MethodKind.SERVER_STREAM, handler)
    assert labels == [("Do", "40401", "true", "success")]


@pytest.mark.parametrize("waits", [False, True])
def test_a_refusal_is_counted_with_its_status(*, waits: bool) -> None:
    """Handlers of either kind may refuse."""

    def refuse(_request: Message, _call: Call) -> Message:
        raise RpcError(StatusCode.NOT_FOUND, "there is no topic")

    async def refuse_later(request: Message, call: Call) -> Message:
        await trio.lowlevel.checkpoint()
        return refuse(request, call)

    labels = trio.run(call, MethodKind.UNARY, refuse_later if waits else refuse)
    assert labels == [("Do", "NOT_FOUND", "false", "process_request_failed")]


def test_a_call_that_the_client_gave_up_is_counted() -> None:
    """As RocketMQ does, under a result of its own."""
    latency = RpcLatency()

    async def handler(_request: Message, _call: Call) -> Message:
        await trio.sleep_forever()

    timed = timed_handler(MethodKind.UNARY, handler, latency)

    async def run() -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            await timed(pb.SendMessageRequest(), CALL)

    trio.run(run)
    assert [tuple(labels) for labels, _, _ in latency.snapshot()] == [
        ("Do", "OK", "false", "cancelled")
    ]


@asynccontextmanager
async def running_broker(directory: Path) -> AsyncIterator[RunningBroker]:
    """A broker with metrics on a free port."""
    config = BrokerConfig().with_changes(
        {**SMALL_FILES, "store_directory": directory, "listen": "127.0.0.1:0", "metrics_port": 0}
    )
    stop = trio.Event()
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
                progress,
                [0],
                next_offset=1,
                pop_time_ms=1,
                invisible_until_ms=2,
                client_id="c",
                auto_renew=False,
            )
            context.messaging.counters.count_received("g", "orders", 1, 3)
            await trio.to_thread.run_sync(
                context.store.wait_dispatched, context.store.end_offset, 10.0
            )
            assert running.metrics_endpoint is not None
            samples = await trio.to_thread.run_sync(scrape, running.metrics_endpoint)
        topic = (("is_system", "false"), ("message_type", "normal"), ("topic", "orders"))
        consumer = (
            *(("consumer_group", "g"), ("is_retry", "false"), ("is_system", "false")),
            ("topic", "orders"),
        )
        disk = (("storage_medium", "disk"), ("storage_type", "local"))
        assert samples["rocketmq_messages_in_total"] == {topic: 2}
        assert samples["rocketmq_throughput_in_total"] == {topic: 8}
        assert samples["rocketmq_messages_out_total"] == {consumer: 1}
        assert samples["rocketmq_throughput_out_total"] == {consumer: 3}
        assert samples["rocketmq_consumer_lag_messages"] == {consumer: 2}
        assert samples["rocketmq_consumer_inflight_messages"] == {consumer: 1}
        assert samples["rocketmq_consumer_lag_latency_milliseconds"][consumer] >= 0
        assert samples["rocketmq_storage_size_bytes"][disk] > 0
        assert samples["rocketmq_storage_dispatch_behind_bytes"] == {disk: 0}
        assert samples["rocketmq_storage_flush_behind_bytes"][disk] >= 0

    trio.run(run)
