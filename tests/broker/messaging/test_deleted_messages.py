"""Messages that retention deleted: groups go on with what is left."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from commitbus.broker.messaging.context import MessagingContext
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from commitbus.commitlog.errors import OffsetOutOfRangeError
from commitbus.commitlog.types import PhysicalOffset

FILE = 1 << 20
Run = Callable[..., None]


def delete_first_file(context: MessagingContext) -> int:
    """Let the first log file go; return the first queue offset that is left."""
    store = context.store
    assert store.durable_watermark.wait(store.end_offset, 20)
    store._housekeeping._delete_before(PhysicalOffset(FILE))
    store._housekeeping._trim()
    assert store.min_physical_offset == FILE
    return store.min_offset("T", 0)


def test_a_group_below_the_beginning_goes_on_at_the_beginning(run: Run) -> None:
    """What it had not seen is gone; what is left comes in order, once, and can be acknowledged."""

    async def scenario(bus: Any) -> None:
        await bus.send(b"seen")
        (handle,) = (await bus.receive()).handles
        assert await bus.ack(handle) == [pb.OK]
        bodies = [b"%d" % number + bytes(60_000) for number in range(20)]
        await bus.send(*bodies)
        begin = delete_first_file(bus.context)
        assert begin > 1
        # The first message is at offset 0, and body number n at n + 1.
        left = bodies[begin - 1 :]
        received = await bus.receive()
        assert received.bodies == left
        assert set(await bus.ack(*received.handles)) == {pb.OK}
        assert bus.context.progress.get("G", "T", 0).committed_offset == len(bodies) + 1

    run(scenario)


def test_a_group_whose_queue_is_empty_now_waits_for_news(run: Run) -> None:
    """Everything of a queue was deleted: the next message comes."""

    async def scenario(bus: Any) -> None:
        await bus.topic("Other")
        await bus.send(b"old")
        await bus.send(*(bytes(60_000) for _ in range(20)), topic="Other")
        assert delete_first_file(bus.context) == 1
        await bus.send(b"new")
        assert (await bus.receive()).bodies == [b"new"]

    run(scenario)


def test_what_is_deleted_while_it_is_in_flight_counts_as_done(run: Run) -> None:
    """Acknowledged or not: it is not delivered again, and nothing waits for it."""

    async def scenario(bus: Any) -> None:
        await bus.send(b"a", b"b", *(bytes(60_000) for _ in range(20)))
        first = await bus.receive(batch=2, invisible_s=30)
        delete_first_file(bus.context)
        assert await bus.ack(first.handles[0]) == [pb.OK]
        await bus.sleep(31)
        rest = await bus.receive()
        assert b"b" not in rest.bodies
        await bus.ack(*rest.handles)
        assert bus.context.progress.get("G", "T", 0).in_flight_count == 0

    run(scenario)


def test_a_group_that_comes_after_the_beginning_was_deleted_sees_the_last_message(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As RocketMQ has it: what is left of an old queue is history."""

    async def scenario(bus: Any) -> None:
        await bus.send(b"1", b"2", b"3")
        store = bus.context.store
        monkeypatch.setattr(store, "min_offset", lambda *_: 1)
        monkeypatch.setattr(type(store), "min_physical_offset", 100)
        assert (await bus.receive(group="Late")).bodies == [b"3"]

    run(scenario)


def test_a_message_deleted_while_in_flight_is_done(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention does not wait for consumers, and nothing is left to deliver again."""

    async def scenario(bus: Any) -> None:
        await bus.send(b"1", b"2")
        await bus.receive(invisible_s=5)
        fetch = bus.context.store.fetch_cached
        monkeypatch.setattr(
            bus.context.store,
            "fetch_cached",
            lambda topic, queue_id, offset, *rest: fetch(topic, queue_id, max(offset, 1), *rest),
        )
        await bus.sleep(6)
        assert (await bus.receive()).bodies == [b"2"]
        assert bus.context.progress.get("G", "T", 0).committed_offset == 1

    run(scenario)


def test_a_message_deleted_while_it_is_read_is_done(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue still named it, the log has it no longer."""

    async def scenario(bus: Any) -> None:
        await bus.send(b"1", b"2")
        store = bus.context.store
        read = store.read_cached

        def unless_deleted(call: Any, physical_offset: int, *arguments: int) -> Any:
            if physical_offset == 0:
                raise OffsetOutOfRangeError("physical offset", 0, 1, 2)
            return call(physical_offset, *arguments)

        monkeypatch.setattr(store, "read_cached", partial(unless_deleted, read))
        assert (await bus.receive()).bodies == [b"2"]
        assert bus.context.progress.get("G", "T", 0).committed_offset == 1

    run(scenario)
