"""Prometheus metrics under RocketMQ's names and labels, on a port of their own.

Nothing is counted twice: a scrape reads the integers that the handlers keep anyway. It runs in a
worker thread; what belongs to the trio thread is copied there first.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final, final

import trio
from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from commitbus.broker.common.address import join_host_port
from commitbus.broker.core.counters import Traffic
from commitbus.broker.core.kinds import metric_of
from commitbus.broker.messaging.context import MessagingContext
from commitbus.broker.metadata.names import RETRY_TOPIC_PREFIX, is_system_topic
from commitbus.broker.metadata.topics import MessageType
from commitbus.broker.observe.backlog import OldestMessages, backlogs
from commitbus.broker.observe.metrics_http import HttpRequest, HttpResponse, serve_http
from commitbus.broker.observe.queue_times import NEVER_MS, earliest_store_timestamp
from commitbus.broker.observe.rpc_latency import LATENCY_BUCKETS_MS, CallLabels, RpcLatency
from commitbus.broker.store.message_store import MessageStore

Metric = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily

_NODE_LABELS: Final = ("cluster", "node_type", "node_id", "otel_scope_name")
_VERSIONS: Final = {"0.0.1", "0.0.4", "1.0.0"}
"""Of the formats in which Prometheus reads metrics."""
_CONSUMER_LABELS: Final = (*_NODE_LABELS, "topic", "consumer_group", "is_retry", "is_system")


@final
@dataclass(frozen=True, slots=True)
class _Snapshot:
    """Everything of a scrape that belongs to the trio thread."""

    sent: list[tuple[str, Traffic]]
    """By topic."""
    received: list[tuple[tuple[str, str], Traffic]]
    """By (group, topic)."""
    full_looks: list[tuple[tuple[str, str], int]]
    """By (group, topic): looks that `in_flight_max` ended."""
    latency: list[tuple[CallLabels, list[int], float]]


@final
class BrokerCollector(Collector):
    """Answers a scrape."""

    def __init__(
        self,
        context: MessagingContext,
        latency: RpcLatency,
        run_on_trio: Callable[[Callable[[], _Snapshot]], _Snapshot],
    ) -> None:
        self._context, self._latency, self._run_on_trio = context, latency, run_on_trio
        config = context.config
        self._node = (config.cluster_name, "broker", config.broker_name, "broker-meter")

    def describe(self) -> Iterable[Metric]:
        """Return nothing: registering must not scrape a broker that is just starting."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Return all metrics. Called on a thread of the HTTP server."""
        try:
            snapshot = self._run_on_trio(self._snapshot)
        except (trio.RunFinishedError, trio.Cancelled):
            return
        yield from self._traffic(snapshot)
        yield from self._lag()
        yield from self._storage(self._context.store)
        yield self._full_looks(snapshot)
        yield self._reserve_time(self._context.store)
        yield self._rpc_latency(snapshot)

    def _snapshot(self) -> _Snapshot:
        context = self._context
        return _Snapshot(
            sent=list(context.counters.sent.items()),
            received=list(context.counters.received.items()),
            full_looks=list(context.consuming.in_flight_cap.looks.items()),
            latency=self._latency.snapshot(),
        )

    def _message_type(self, topic: str) -> str:
        config = self._context.metadata.topic(topic)
        return metric_of(config.message_type if config else MessageType.NORMAL)

    def _traffic(self, snapshot: _Snapshot) -> Iterable[Metric]:
        labels = (*_NODE_LABELS, "topic", "message_type", "is_system")
        stored = CounterMetricFamily("rocketmq_messages_in", "Messages stored.", labels=labels)
        stored_bytes = CounterMetricFamily("rocketmq_throughput_in", "Their bytes.", labels=labels)
        for topic, traffic in snapshot.sent:
            values = (*self._node, topic, self._message_type(topic), _is_system(topic))
            stored.add_metric(values, traffic.messages)
            stored_bytes.add_metric(values, traffic.bytes)
        delivered = CounterMetricFamily(
            "rocketmq_messages_out", "Messages delivered.", labels=_CONSUMER_LABELS
        )
        delivered_bytes = CounterMetricFamily(
            "rocketmq_throughput_out", "Their bytes.", labels=_CONSUMER_LABELS
        )
        for (group, topic), traffic in snapshot.received:
            delivered.add_metric(self._consumer(group, topic), traffic.messages)
            delivered_bytes.add_metric(self._consumer(group, topic), traffic.bytes)
        return (stored, stored_bytes, delivered, delivered_bytes)

    def _lag(self) -> Iterable[Metric]:
        lags: dict[tuple[str, str], int] = {}
        latencies: dict[tuple[str, str], int] = {}
        in_flights: dict[tuple[str, str], int] = {}
        store, table = self._context.store, self._context.progress
        now_ms, oldest = self._context.clock.now_ms(), OldestMessages(store)
        for group in table.groups():
            for topic in table.topics_of(group):
                key, queues = (group, topic), list(backlogs(store, table, group, topic))
                lags[key] = sum(queue.lag for queue in queues)
                in_flights[key] = sum(queue.in_flight for queue in queues)
                stored_ms = oldest.stored_ms(topic, queues)
                latencies[key] = max(now_ms - stored_ms, 0) if stored_ms != NEVER_MS else 0
        for name, text, values in (
            ("rocketmq_consumer_lag_messages", "Not acknowledged yet.", lags),
            ("rocketmq_consumer_lag_latency_milliseconds", "Age of the oldest of them.", latencies),
            ("rocketmq_consumer_inflight_messages", "Delivered, not acknowledged.", in_flights),
        ):
            gauge = GaugeMetricFamily(name, text, labels=_CONSUMER_LABELS)
            for (group, topic), value in values.items():
                gauge.add_metric(self._consumer(group, topic), value)
            yield gauge

    def _full_looks(self, snapshot: _Snapshot) -> Metric:
        counter = CounterMetricFamily(
            "commitbus_consumer_inflight_max_reached",
            "Looks at a queue that found something new and took nothing, because of in_flight_max.",
            labels=_CONSUMER_LABELS,
        )
        for (group, topic), count in snapshot.full_looks:
            counter.add_metric(self._consumer(group, topic), count)
        return counter

    def _storage(self, store: MessageStore) -> Iterable[Metric]:
        for name, text, value in (
            ("rocketmq_storage_size_bytes", "Taken by the store.", store.storage_bytes),
            ("rocketmq_storage_flush_behind_bytes", "Not durable yet.", store.flush_behind_bytes),
            (
                "rocketmq_storage_dispatch_behind_bytes",
                "Not in the consume queues yet.",
                store.dispatch_behind_bytes,
            ),
        ):
            labels = (*_NODE_LABELS, "storage_type", "storage_medium")
            gauge = GaugeMetricFamily(name, text, labels=labels)
            gauge.add_metric((*self._node, "local", "disk"), value)
            yield gauge

    def _reserve_time(self, store: MessageStore) -> Metric:
        earliest_ms = earliest_store_timestamp(store)
        age_ms = self._context.clock.now_ms() - earliest_ms if earliest_ms != NEVER_MS else 0
        gauge = GaugeMetricFamily(
            "rocketmq_storage_message_reserve_time_milliseconds",
            "Age of the oldest message.",
            labels=(*_NODE_LABELS, "storage_type", "storage_medium"),
        )
        gauge.add_metric((*self._node, "local", "disk"), max(0, age_ms))
        return gauge

    def _rpc_latency(self, snapshot: _Snapshot) -> Metric:
        labels = (*_NODE_LABELS, "protocol_type", *CallLabels._fields)
        histogram = HistogramMetricFamily(
            "rocketmq_rpc_latency_milliseconds", "Duration of calls.", labels=labels
        )
        bounds = [*map(str, LATENCY_BUCKETS_MS), "+Inf"]
        for calls, counts, sum_ms in snapshot.latency:
            total, buckets = 0, []
            for bound, count in zip(bounds, counts, strict=True):
                total += count
                buckets.append((bound, total))
            histogram.add_metric((*self._node, "grpc", *calls), buckets, sum_ms)
        return histogram

    def _consumer(self, group: str, topic: str) -> Sequence[str]:
        is_retry = "true" if topic.startswith(RETRY_TOPIC_PREFIX) else "false"
        return (*self._node, topic, group, is_retry, _is_system(topic))


def _is_system(topic: str) -> str:
    return "true" if is_system_topic(topic) else "false"


@asynccontextmanager
async def serve_metrics(
    context: MessagingContext, latency: RpcLatency, host: str, port: int
) -> AsyncIterator[int]:
    """Serve `/metrics` while the block runs, and give the port.

    Raises:
        ListenError: the port cannot be listened on.
    """
    token = trio.lowlevel.current_trio_token()
    registry = CollectorRegistry(auto_describe=False)
    registry.register(
        BrokerCollector(
            context, latency, lambda work: trio.from_thread.run_sync(work, trio_token=token)
        )
    )
    async with serve_http(partial(_answer, registry), join_host_port(host, port)) as bound:
        yield bound


def _answer(registry: CollectorRegistry, request: HttpRequest) -> HttpResponse:
    """Return a scrape in the format that a client asks for."""
    environ = {
        "REQUEST_METHOD": request.method,
        "PATH_INFO": request.path,
        "QUERY_STRING": request.query,
        "HTTP_ACCEPT": _understood(request.headers.get("accept", "")),
        "HTTP_ACCEPT_ENCODING": request.headers.get("accept-encoding", ""),
    }
    heads: list[tuple[str, list[tuple[str, str]]]] = []
    body = make_wsgi_app(registry)(environ, lambda *head: heads.append(head))
    ((status, headers),) = heads
    return HttpResponse(status, headers, b"".join(body))


def _understood(accept: str) -> str:
    """Return those of a client's formats that have a version which there is, or none.

    The Prometheus client (0.26) raises an error at the version `1.x`, and claims to write `9.x`.
    """
    return ",".join(kind for kind in accept.split(",") if _versions(kind) <= _VERSIONS)


def _versions(kind: str) -> set[str]:
    words = (word.strip() for word in kind.split(";"))
    return {word.removeprefix("version=") for word in words if word.startswith("version=")}
