"""What operators ask is answered without a walk over all progress on the thread of the handlers."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from inspect import isawaitable
from pathlib import Path
from typing import Any

import pytest
import trio

from commitbus.broker.admin.context import AdminContext
from commitbus.broker.admin.groups import delete_group, get_consumer_progress, list_groups
from commitbus.broker.admin.topics import delete_topic, list_topics
from commitbus.broker.admin.v2.groups import describe_group_accumulation, query_time_span
from commitbus.broker.admin.v2.subscriptions import list_subscription
from commitbus.broker.config import BrokerConfig
from commitbus.broker.embedded.broker import SMALL_FILES
from commitbus.broker.metadata.groups import GroupConfig
from commitbus.broker.metadata.topics import TopicConfig
from commitbus.broker.progress.queue_progress import Lease, QueueProgress
from commitbus.broker.rpc.proto import admin_v1_pb2 as admin
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from commitbus.broker.server import RunningBroker, run_broker
from tests.steps import Steps

GROUPS = 20
QUEUES = 8

Scenario = Callable[[RunningBroker], Awaitable[None]]
Ask = Callable[[AdminContext], Any]


def run_with_much_progress(directory: Path, scenario: Scenario) -> None:
    """Run a broker in which each group holds a message of each queue of a topic."""
    changes = {**SMALL_FILES, "store_directory": directory, "listen": "127.0.0.1:0"}
    config = BrokerConfig().with_changes({**changes, "metrics_port": 0})

    async def main() -> None:
        stop = trio.Event()
        async with trio.open_nursery() as nursery:
            running: RunningBroker = await nursery.start(partial(run_broker, config, stop))
            try:
                await fill(running.context)
                await scenario(running)
            finally:
                stop.set()

    trio.run(main)


async def fill(context: AdminContext) -> None:
    topic = TopicConfig("t", read_queue_nums=QUEUES, write_queue_nums=QUEUES)
    await context.metadata.put_topic(topic)
    for number in range(GROUPS):
        await context.metadata.put_group(GroupConfig(f"g{number}"))
        for queue_id in range(QUEUES):
            progress = context.progress.create(f"g{number}", "t", queue_id, 0)
            lease = Lease(1, 2, "client", auto_renew=False)
            context.progress.deliver(progress, [0], lease, next_offset=1)


@contextmanager
def looks_of(
    monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...] = ("committed_offset", "in_flight")
) -> Iterator[list[tuple[int, int]]]:
    """Note the thread and the queue of every look at a progress."""
    looks: list[tuple[int, int]] = []

    def noting(name: str) -> property:
        original = getattr(QueueProgress, name).fget

        def look(progress: QueueProgress) -> Any:
            looks.append((threading.get_ident(), progress.key_id))
            return original(progress)

        return property(look)

    with monkeypatch.context() as patch:
        for name in names:
            patch.setattr(QueueProgress, name, noting(name))
        yield looks


NO_CALL: Any = None
"""These handlers do not look at it."""


def accumulation() -> pb.DescribeGroupAccumulationRequest:
    request = pb.DescribeGroupAccumulationRequest()
    request.group.name = "g3"
    return request


def time_span() -> pb.QueryTimeSpanRequest:
    request = pb.QueryTimeSpanRequest()
    request.group.name = "g3"
    return request


def subscription() -> pb.ListSubscriptionRequest:
    request = pb.ListSubscriptionRequest()
    request.group.name = "g3"
    return request


ALL: list[Ask] = [
    lambda context: list_groups(context, admin.ListGroupsRequest()),
    lambda context: list_topics(context, admin.ListTopicsRequest()),
]
ONE_GROUP: list[Ask] = [
    lambda context: get_consumer_progress(context, admin.GetConsumerProgressRequest(group="g3")),
    lambda context: describe_group_accumulation(context, accumulation(), NO_CALL),
    lambda context: query_time_span(context, time_span(), NO_CALL),
    lambda context: list_subscription(context, subscription(), NO_CALL),
]


@pytest.mark.parametrize("ask", [*ALL, *ONE_GROUP])
def test_an_answer_looks_at_progress_on_another_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: Ask
) -> None:
    """The list of 3,000 groups kept every call waiting for two seconds."""

    async def scenario(running: RunningBroker) -> None:
        table, own = running.context.progress, threading.get_ident()
        walks: list[int] = []
        items = table.items

        def counted_items() -> object:
            walks.append(1)
            return items()

        monkeypatch.setattr(table, "items", counted_items)
        with looks_of(monkeypatch) as looks:
            answer = ask(running.context)
            if isawaitable(answer):
                await answer
        assert own not in {thread for thread, _ in looks}
        assert not walks

    run_with_much_progress(tmp_path, scenario)


@pytest.mark.parametrize("ask", ONE_GROUP)
def test_an_answer_about_a_group_looks_at_its_own_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: Ask
) -> None:
    async def scenario(running: RunningBroker) -> None:
        context = running.context
        with looks_of(monkeypatch, ("next_offset", "committed_offset", "in_flight")) as looks:
            answer = ask(context)
            if isawaitable(answer):
                await answer
        queues = [context.progress.get("g3", "t", queue_id) for queue_id in range(QUEUES)]
        own = {progress.key_id for progress in queues if progress is not None}
        assert {key_id for _, key_id in looks} <= own

    run_with_much_progress(tmp_path, scenario)


def test_a_scrape_looks_at_progress_on_another_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 80,000 queues of groups it kept everybody waiting for more than a second."""

    async def scenario(running: RunningBroker) -> None:
        own = threading.get_ident()
        with looks_of(monkeypatch) as looks:
            url = f"http://{running.metrics_endpoint}/metrics"
            await trio.to_thread.run_sync(lambda: urllib.request.urlopen(url, timeout=10).read())
        assert looks
        assert own not in {thread for thread, _ in looks}

    run_with_much_progress(tmp_path, scenario)


@pytest.mark.parametrize(
    "delete",
    [
        lambda context: delete_group(context, admin.DeleteGroupRequest(name="g3")),
        lambda context: delete_topic(context, admin.DeleteTopicRequest(name="t")),
    ],
)
def test_a_deletion_forgets_progress_in_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, delete: Ask
) -> None:
    """Each queue of each group is an entry of the journal; others are served in between."""

    async def scenario(running: RunningBroker) -> None:
        table, steps = running.context.progress, Steps()
        for queue_id in range(QUEUES, 1_000):
            table.create("g3", "t", queue_id, 0)
        record = table._record

        def counted(*arguments: Any) -> int:
            steps.count()
            return record(*arguments)

        trio.lowlevel.add_instrument(steps)
        monkeypatch.setattr(table, "_record", counted)
        await delete(running.context)
        trio.lowlevel.remove_instrument(steps)
        assert table.get("g3", "t", 999) is None
        assert steps.total >= 1_000
        assert steps.longest <= 200

    run_with_much_progress(tmp_path, scenario)
