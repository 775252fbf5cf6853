"""Who follows is woken by what it follows, and nobody is for nothing."""

from __future__ import annotations

from typing import Any

import trio
import trio.testing

from commitbus.broker.bulk.arrivals import Arrivals
from commitbus.broker.common.trio_thread import TrioThread
from commitbus.broker.store.reput import Arrival
from commitbus.commitlog.types import QueueOffset


class CountingThread:
    """Stands in for a trio run, and counts how often it is woken."""

    def __init__(self) -> None:
        self.woken = 0

    def call_soon(self, _: object) -> None:
        self.woken += 1


def of(*topics: str) -> list[Arrival]:
    return [Arrival(topic, 0, QueueOffset(1)) for topic in topics]


def test_a_topic_wakes_those_who_follow_it_or_the_log() -> None:
    async def main() -> None:
        trio_thread = TrioThread()
        trio_thread.attach()
        arrivals = Arrivals(trio_thread)
        topic, other, log = arrivals.next("T"), arrivals.next("U"), arrivals.next()
        arrivals.on_arrival(of("T", "V"))
        await trio.testing.wait_all_tasks_blocked()
        assert (topic.is_set(), other.is_set(), log.is_set()) == (True, False, True)
        assert not arrivals.next("T").is_set()

    trio.run(main)


def test_the_loop_is_not_woken_for_topics_that_nobody_follows() -> None:
    """Somebody followed another, and has gone: that topic may be silent for ever."""

    async def main() -> None:
        token: Any = CountingThread()
        arrivals = Arrivals(token)
        arrivals.next("T")
        arrivals.on_arrival(of("U"))
        assert token.woken == 0
        arrivals.on_arrival(of("U", "T"))
        assert token.woken == 1

    trio.run(main)
