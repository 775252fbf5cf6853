"""Who watches a queue is woken by it, and the loop for nobody else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio
import trio.testing

from commitbus.broker.common.trio_thread import TrioThread
from commitbus.broker.consuming.queue_watch import QueueWatch
from commitbus.broker.store.reput import Arrival
from commitbus.commitlog.types import QueueOffset


class Counter:
    """A watcher, or a trio run, that counts how often it is woken."""

    def __init__(self, group: str = "G") -> None:
        self.group, self.woken = group, 0

    def wake(self) -> None:
        self.woken += 1

    def call_soon(self, _: Callable[[], object]) -> None:
        self.woken += 1


def arrival(topic: str, queue_id: int) -> Arrival:
    return Arrival(topic, queue_id, QueueOffset(1))


def test_a_queue_wakes_all_its_watchers_once() -> None:
    async def main() -> None:
        trio_thread = TrioThread()
        trio_thread.attach()
        watch, one, two, other = QueueWatch(trio_thread), Counter(), Counter(), Counter()
        for queue_id, watcher in ((0, one), (0, two), (1, other)):
            watch.add("T", queue_id, watcher)
        for _ in range(2):
            watch.on_arrival([arrival("T", 0), arrival("U", 1)])
            await trio.testing.wait_all_tasks_blocked()
        assert (one.woken, two.woken, other.woken) == (1, 1, 0)
        assert len(watch) == 1

    trio.run(main)


def test_a_group_that_is_deleted_wakes_its_watchers_only() -> None:
    """Of any queue."""
    watch, others = QueueWatch(TrioThread()), Counter("H")
    mine = [Counter(), Counter()]
    for queue_id, watcher in ((0, mine[0]), (0, others), (1, mine[1])):
        watch.add("T", queue_id, watcher)
    watch.forget_group("G")
    assert [watcher.woken for watcher in (*mine, others)] == [1, 1, 0]
    assert len(watch) == 1


def test_the_loop_is_not_woken_for_queues_that_nobody_watches() -> None:
    token: Any = Counter()
    watch = QueueWatch(token)
    watch.add("T", 0, Counter())
    watch.on_arrival([arrival("T", 1), arrival("U", 0)])
    assert token.woken == 0
    watch.on_arrival([arrival("T", 0)])
    assert token.woken == 1
