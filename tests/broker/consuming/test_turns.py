"""Fairness between retries and new messages, and between the queues of a topic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from commitbus.broker.consuming.turns import Turns

Run = Callable[..., None]


@pytest.mark.parametrize("percent", [0, 1, 20, 33, 50, 99, 100])
def test_exactly_the_share_of_receives_begins_with_retries(percent: int) -> None:
    """Of any 100 in a row, spread evenly."""
    turns = Turns()
    begins = [turns.retries_begin(percent) for _ in range(300)]
    assert all(sum(begins[at : at + 100]) == percent for at in range(200))
    gaps = [at for at, is_turn in enumerate(begins) if is_turn]
    distances = {after - before for before, after in pairwise(gaps)}
    assert not distances or max(distances) - min(distances) <= 1


def test_the_first_turn_is_of_the_retries() -> None:
    """They have waited before."""
    assert Turns().retries_begin(1)


@pytest.mark.parametrize("queues", [1, 2, 5, 10])
def test_every_queue_is_first_equally_often_for_each_kind(queues: int) -> None:
    """With one rotation for both, and five queues, one queue's retries alone would be first."""
    turns, new, retries = Turns(), Counter[int](), Counter[int]()
    for _ in range(50 * queues):
        if turns.retries_begin(20):
            retries[turns.queues_for_retries(queues)[0]] += 1
        else:
            new[turns.queues_for_new(queues)[0]] += 1
    assert retries == dict.fromkeys(range(queues), 10)
    assert new == dict.fromkeys(range(queues), 40)


def kind(bodies: list[bytes]) -> str:
    """Return which messages a batch holds."""
    return "+".join(sorted({body.split(b"-")[0].decode() for body in bodies}))


def test_retries_that_never_end_do_not_starve_new_messages(run: Run) -> None:
    """One receive in five begins with them; the other four bring new messages."""

    async def scenario(bus: Any) -> None:
        await bus.group(retry_max_times=-1)
        await bus.send(*[b"old-%d" % number for number in range(64)])
        for _ in range(2):
            await bus.receive(invisible_s=10)
        await bus.send(*[b"new-%d" % number for number in range(8 * 32)])
        await bus.sleep(11)
        kinds = [kind((await bus.receive(invisible_s=600)).bodies) for _ in range(10)]
        assert kinds == ["old", "new", "new", "new", "new"] * 2

    run(scenario)


def test_new_messages_that_never_end_do_not_starve_retries(run: Run) -> None:
    """As many new ones as are asked for are always there."""

    async def scenario(bus: Any) -> None:
        await bus.send(*[b"old-%d" % number for number in range(3)])
        await bus.receive(invisible_s=10)
        await bus.send(*[b"new-%d" % number for number in range(20)])
        await bus.sleep(11)
        kinds = [kind((await bus.receive(batch=1)).bodies) for _ in range(12)]
        assert [at for at, one in enumerate(kinds) if one == "old"] == [0, 5, 10]

    run(scenario)


def test_a_batch_is_filled_up_with_the_other_kind(run: Run) -> None:
    """Whichever is first."""

    async def scenario(bus: Any) -> None:
        await bus.send(*[b"old-%d" % number for number in range(4)])
        await bus.receive(invisible_s=10)
        await bus.send(b"new-0", b"new-1")
        await bus.sleep(11)
        first = await bus.receive(batch=5)
        assert first.bodies == [b"old-0", b"old-1", b"old-2", b"old-3", b"new-0"]
        for handle in first.handles[:4]:
            await bus.change(handle, 0)
        await bus.send(b"new-2")
        assert (await bus.receive(batch=4)).bodies == [b"new-1", b"new-2", b"old-0", b"old-1"]

    run(scenario)


@pytest.mark.parametrize(("percent", "first"), [(0, "new"), (100, "old")])
def test_the_share_is_a_setting(run: Run, percent: int, first: str) -> None:
    """Up to always and never; what is first fills the batch."""

    async def scenario(bus: Any) -> None:
        await bus.send(*[b"old-%d" % number for number in range(10)])
        await bus.receive(invisible_s=10)
        await bus.send(*[b"new-%d" % number for number in range(10)])
        await bus.sleep(11)
        kinds = [kind((await bus.receive(batch=1)).bodies) for _ in range(10)]
        assert kinds == [first] * 10

    run(scenario, retry_percent=percent)


def test_a_filter_that_nothing_passes_does_not_keep_retries_waiting(run: Run) -> None:
    """Of what is not wanted one step is passed over, then the retries have their turn."""

    async def scenario(bus: Any) -> None:
        await bus.send(b"old-0", tag="a")
        await bus.receive(tags="a", invisible_s=10)
        await bus.send(*[b"other-%d" % number for number in range(5)], tag="b")
        await bus.sleep(11)
        for _ in range(4):
            (handle,) = (await bus.receive(tags="a", batch=1)).handles
            await bus.change(handle, 0)
            await bus.send(b"other", tag="b")

    run(scenario)


def test_a_fifo_group_has_its_retries_first(run: Run) -> None:
    """Whatever the setting: what lies before everything new must come before it."""

    async def scenario(bus: Any) -> None:
        await bus.group(consume_message_orderly=True, retry_max_times=-1)
        await bus.send(b"old-0", b"new-0")
        for _ in range(6):
            assert (await bus.receive(batch=1, invisible_s=10)).bodies == [b"old-0"]
            await bus.sleep(11)

    run(scenario, retry_percent=0)


def kept(bus: Any) -> set[tuple[str, str]]:
    """Return the groups and topics whose turns are known."""
    return {
        (group, topic) for group, topics in bus.context.consuming._turns.items() for topic in topics
    }


def test_what_is_kept_about_turns_goes_with_its_topic_and_its_group(run: Run) -> None:
    """Else it would grow with every name."""

    async def scenario(bus: Any) -> None:
        await bus.topic("T2")
        for topic, group in ("T", "G"), ("T2", "G"), ("T", "G2"):
            await bus.send(b"1", topic=topic)
            await bus.receive(topic=topic, group=group)
        bus.context.broker.forget_topic("T2")
        assert kept(bus) == {("G", "T"), ("G2", "T")}
        bus.context.broker.forget_group("G2")
        assert kept(bus) == {("G", "T")}

    run(scenario)
