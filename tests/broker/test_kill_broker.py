"""`kill -9` of the whole process under load, judged by what its clients were told, and when.

Clients and broker share one clock, and a receipt handle names the millisecond of its delivery. So
whether a message came again after its acknowledgement was answered is no matter of who looked when:
such a delivery was made later than the answer arrived.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from pathlib import Path

import pytest

from commitbus.broker.cli.admin_client import AdminClient
from commitbus.broker.rpc.proto import admin_v1_pb2 as admin
from commitbus.broker.store.check import check_store
from tests.broker.storm import (
    CLOCK,
    GROUPS,
    STALLED_AFTER_S,
    TOPIC,
    Delivery,
    History,
    Place,
    Server,
    Storm,
    body_of,
    repeatable,
)

KILLS = 6
QUEUES = 3


def run_storm(directory: Path, flush: str, seed: int, kills: int) -> History:
    """Kill the broker again and again, then let all be acknowledged; return what was seen."""
    choice, server = repeatable(seed), Server(directory, flush)
    storm = Storm(server, seed)
    try:
        server.start()
        server.wait_ready()
        with AdminClient(server.endpoint) as client:
            client.put_topic(
                admin.PutTopicRequest(name=TOPIC, write_queue_nums=QUEUES, read_queue_nums=QUEUES)
            )
        with storm.running():
            for _ in range(kills):
                kill_at_any_moment(server, storm.history, choice)
                restart(server, choice)
            storm.sending_ends.set()
            storm.settling.set()
            wait_until_settled(server.endpoint)
            storm.ends.set()
            server.terminate()
            assert server.wait_stopped() == 0
    finally:
        server.kill()
    report = check_store(server.store)
    assert report.was_closed_cleanly
    assert report.problems == []
    return storm.history


def restart(server: Server, choice: random.Random) -> None:
    """Start the next process; sometimes it is killed while it recovers."""
    server.start()
    if choice.random() < 0.3:
        time.sleep(choice.uniform(0, 0.8))
        server.kill()
        server.start()
    server.wait_ready()


def kill_at_any_moment(server: Server, history: History, choice: random.Random) -> None:
    """Kill a broker that is ready: under load, just after its start, or while it stops.

    What is counted are answers, not seconds: on a busy machine as much happens between two kills.
    """
    history.wait_acknowledged(choice.choice((0, 1, choice.randrange(200), 200)))
    time.sleep(choice.choice((0, choice.uniform(0, 0.1))))
    if choice.random() < 0.25:
        server.terminate()
        time.sleep(choice.choice((0, choice.uniform(0, 0.3))))
    server.kill()


def wait_until_settled(endpoint: str) -> None:
    """Wait until no group has anything to receive or to acknowledge."""
    with AdminClient(endpoint) as client:
        until = CLOCK.monotonic_s() + STALLED_AFTER_S
        while left := [
            (group, queue)
            for group in GROUPS
            for queue in client.consumer_progress(group, TOPIC).queues
            if queue.consumer_offset != queue.broker_offset or queue.inflight
        ]:
            assert CLOCK.monotonic_s() < until, f"never acknowledged: {left}"
            time.sleep(0.05)


def check_history(history: History) -> None:
    """Hold what was seen against what a broker promises."""
    message_at: dict[Place, str] = {}
    for group in GROUPS:
        deliveries = history.deliveries[group]
        acknowledged = history.acknowledged[group]
        # One ms, because the broker's time is cut off to whole ones, and so is ours.
        assert [
            (delivery, acknowledged[delivery.place])
            for delivery in deliveries
            if delivery.pop_ms > acknowledged.get(delivery.place, delivery.pop_ms) + 1
        ] == [], "delivered again after the acknowledgement was answered"
        for delivery in deliveries:
            assert message_at.setdefault(delivery.place, delivery.message_id) == delivery.message_id
            assert delivery.body == body_of(delivery.message_id)
        check_attempts(deliveries)
        check_all_delivered(history, deliveries)
    assert len(set(message_at.values())) == len(message_at), "a message lies at two places"


def check_attempts(deliveries: list[Delivery]) -> None:
    """Each delivery counts one attempt more than those before, across all processes."""
    attempts: dict[Place, list[tuple[int, int]]] = defaultdict(list)
    for delivery in deliveries:
        attempts[delivery.place].append((delivery.pop_ms, delivery.attempt))
    for place, seen in attempts.items():
        numbers = [attempt for _, attempt in sorted(seen)]
        assert numbers == sorted(set(numbers)), f"attempts of {place}: {numbers}"


def check_all_delivered(history: History, deliveries: list[Delivery]) -> None:
    """What was answered came, from where its answer said, and no offset was left out."""
    offsets = {delivery.message_id: delivery.place.queue_offset for delivery in deliveries}
    lost = history.sent.items() - offsets.items()
    assert not lost, f"never delivered, or elsewhere: {sorted(lost)[:10]}"
    by_queue: dict[int, set[int]] = defaultdict(set)
    for delivery in deliveries:
        by_queue[delivery.place.queue_id].add(delivery.place.queue_offset)
    for queue_id, seen in by_queue.items():
        assert seen == set(range(max(seen) + 1)), f"queue {queue_id} was not delivered whole"


@pytest.mark.slow
@pytest.mark.parametrize("flush", ["sync", "async"])
def test_no_answer_is_forgotten_when_the_broker_is_killed_under_load(
    tmp_path: Path, flush: str
) -> None:
    """Nothing acknowledged comes again, nothing sent is lost, no attempt is counted twice."""
    seed = random.randrange(1 << 32)  # noqa: S311 - pytest-randomly seeds it and says with what
    history = run_storm(tmp_path, flush, seed, KILLS)
    check_history(history)
    assert all(history.acknowledged.values())
    assert any(delivery.attempt > 1 for delivery in history.deliveries[GROUPS[0]])
