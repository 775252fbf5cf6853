"""Messages that retention deleted: groups go on with what is left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from commitbus.broker.messaging.context import MessagingContext
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from commitbus.commitlog.types import PhysicalOffset

FILE = 1 << 20


def delete_first_file(context: MessagingContext) -> int:
    """Let the first log file go; return the first queue offset that is left."""
    store = context.store
    assert store.durable_watermark.wait(store.end_offset, 20)
    store._housekeeping._delete_before(PhysicalOffset(FILE))
    store._housekeeping._trim()
    assert store.min_physical_offset == FILE
    return store.min_offset("T", 0)


def test_a_group_below_the_beginning_goes_on_at_the_beginning(run: Callable[..., None]) -> None:
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


def test_a_group_whose_queue_is_empty_now_waits_for_news(run: Callable[..., None]) -> None:
    """Everything of a queue was deleted: the next message comes."""

    async def scenario(bus: Any) -> None:
        await bus.topic("Other")
        await bus.send(b"old")
        await bus.send(*(bytes(60_000) for _ in range(20)), topic="Other")
        assert delete_first_file(bus.context) == 1
        await bus.send(b"new")
        assert (await bus.receive()).bodies == [b"new"]

    run(scenario)


def test_what_is_deleted_while_it_is_in_flight_counts_as_done(run: Callable[..., None]) -> None:
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
