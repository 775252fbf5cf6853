"""Who follows is woken by what it follows, and nobody is for nothing."""

from __future__ import annotations

import trio
import trio.testing

from commitbus.broker.bulk.arrivals import Arrivals
from commitbus.broker.store.reput import Arrival
from commitbus.commitlog.types import QueueOffset


class CountingToken:
    """Stands in for a trio run, and counts how often it is woken."""

    def __init__(self) -> None:
        self.woken = 0

    def run_sync_soon(self, function: object, *, idempotent: bool) -> None:
        self.woken += 1


def of(*topics: str) -> list[Arrival]:
    return [Arrival(topic, 0, QueueOffset(1)) for topic in topics]


def test_a_topic_wakes_those_who_follow_it_or_the_log() -> None:
    async def main() -> None:
        arrivals = Arrivals(trio.lowlevel.current_trio_token())
        topic, other, log = arrivals.next("T"), arrivals.next("U"), arrivals.next()
        arrivals.on_arrival(of("T", "V"))
        await trio.testing.wait_all_tasks_blocked()
        assert (topic.is_set(), other.is_set(), log.is_set()) == (True, False, True)
        assert not arrivals.next("T").is_set()

    trio.run(main)


def test_the_loop_is_not_woken_for_topics_that_nobody_follows() -> None:
    """Somebody followed another, and has gone: that topic may be silent for ever."""

    async def main() -> None:
        token = CountingToken()
        arrivals = Arrivals(token)  # type: ignore[arg-type] # as much of one as is used
        arrivals.next("T")
        arrivals.on_arrival(of("U"))
        assert token.woken == 0
        arrivals.on_arrival(of("U", "T"))
        assert token.woken == 1

    trio.run(main)
