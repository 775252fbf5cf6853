"""Receiving while an operator changes things, and as long as there is room for one more group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing

from commitbus.broker.rpc.call import Response, RpcError, StatusCode
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb

Run = Callable[..., None]


def test_a_topic_deleted_under_a_waiting_receiver_is_not_found(run: Run) -> None:
    """The receiver hears of it at its next look, and leaves no progress behind."""

    async def scenario(bus: Any) -> None:
        async with bus.receiving() as results, bus.context.metadata.topic_deleted("T"):
            bus.context.broker.forget_topic("T")
            bus.context.progress.delete_topic("T")
        assert results[0].status.code == pb.TOPIC_NOT_FOUND
        assert bus.context.progress.items() == []

    run(scenario)


def test_a_group_deleted_under_a_waiting_receiver_is_not_found(run: Run) -> None:
    """At once, and without an arrival; its progress is gone and does not come back."""

    async def scenario(bus: Any) -> None:
        results: list[Any] = []

        async def receive() -> None:
            results.append(await bus.receive())

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(receive)
            await trio.testing.wait_all_tasks_blocked()
            await bus.context.metadata.delete_groups(("G",))
            bus.context.broker.forget_group("G")
            bus.context.progress.delete_group("G")
            await trio.testing.wait_all_tasks_blocked()
            assert [received.status.code for received in results] == [
                pb.CONSUMER_GROUP_NOT_FOUND
            ] * 3
        assert bus.context.progress.items() == []

    run(scenario)


def test_a_topic_that_is_closed_under_a_waiting_receiver_gives_nothing_more(run: Run) -> None:
    """What an operator changes holds from the next look on, not from the next call on."""

    async def scenario(bus: Any) -> None:
        async with bus.receiving() as results:
            await bus.topic(perm=2)
            await bus.send(b"a")
        assert results[0].status.code == pb.FORBIDDEN

    run(scenario)


def test_a_topic_that_grows_under_a_waiting_receiver_is_seen_in_full(run: Run) -> None:
    """Also after it shrank in between: what lies in the queues beyond waits there."""

    async def scenario(bus: Any) -> None:
        await bus.topic(queues=4)
        await bus.send(b"0", b"1", b"2", b"3")
        await bus.topic(queues=2)
        assert sorted((await bus.receive()).bodies) == [b"0", b"1"]
        async with bus.receiving() as results:
            await bus.topic(queues=4)
            await bus.send(b"4")
        assert sorted(results[0].bodies) == [b"2", b"3", b"4"]

    run(scenario)


@pytest.mark.parametrize("batch", [1, 2])
def test_tags_with_the_same_hash_do_not_hold_up_the_ones_asked_for(run: Run, batch: int) -> None:
    """'BB' has the hash of 'Aa': a batch may be full of what has to be dropped."""

    async def scenario(bus: Any) -> None:
        await bus.send(b"1", b"2", b"3", tag="BB")
        await bus.send(b"4", tag="Aa")
        assert (await bus.receive(tags="Aa", batch=batch)).bodies == [b"4"]
        async with bus.receiving(tags="Aa", batch=batch) as results:
            await bus.send(b"5", b"6", tag="BB")
            await trio.testing.wait_all_tasks_blocked()
            await bus.send(b"7", tag="Aa")
        assert results[0].bodies == [b"7"]

    run(scenario)


def test_clients_cannot_create_groups_and_topics_without_end(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator still can, and what there is goes on."""
    monkeypatch.setattr("commitbus.broker.core.broker.CREATED_BY_CLIENTS_MAX", 2)

    async def scenario(bus: Any) -> None:
        async def heartbeat(group: str) -> pb.Code:
            request = pb.HeartbeatRequest(client_type=pb.SIMPLE_CONSUMER)
            request.group.name = group
            code: pb.Code = (await bus.unary("Heartbeat", request)).status.code
            return code

        async def route(topic: str) -> pb.Code:
            request = pb.QueryRouteRequest()
            request.topic.name = topic
            code: pb.Code = (await bus.unary("QueryRoute", request)).status.code
            return code

        codes = [await heartbeat(name) for name in ("G", "second", "third", "second")]
        assert codes == [pb.OK, pb.OK, pb.TOO_MANY_REQUESTS, pb.OK]
        await bus.group("third")
        assert await heartbeat("third") == pb.OK
        codes = [await route(name) for name in ("T", "second", "third", "second")]
        assert codes == [pb.OK, pb.OK, pb.TOO_MANY_REQUESTS, pb.OK]
        await bus.topic("third")
        assert await route("third") == pb.OK

    run(scenario, auto_create_topics=True)


def test_progress_does_not_grow_without_end(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """One queue of one group more than the limit is refused; the others go on."""
    monkeypatch.setattr("commitbus.broker.receiving.taken.PROGRESS_MAX", 1)

    async def scenario(bus: Any) -> None:
        await bus.send(b"a")
        assert (await bus.receive()).bodies == [b"a"]
        assert (await bus.receive(group="other")).status.code == pb.TOO_MANY_REQUESTS
        await bus.send(b"b")
        assert (await bus.receive()).bodies == [b"b"]

    run(scenario)


def test_slow_readers_hold_a_bounded_number_of_bytes_for_a_bounded_time(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others are told to come back, and get what the slow one did not read."""
    monkeypatch.setattr("commitbus.broker.consuming.delivering.DELIVERING_BYTES_MAX", 100)

    async def never(*_: Response) -> None:
        await trio.sleep_forever()

    async def scenario(bus: Any) -> None:
        await bus.send(b"a" * 100, b"b")
        errors: list[RpcError] = []

        async def read_slowly() -> None:
            with pytest.raises(RpcError) as caught:
                await bus.receive(batch=1, send=never, invisible_s=600)
            errors.append(caught.value)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_slowly)
            await trio.testing.wait_all_tasks_blocked()
            assert (await bus.receive()).status.code == pb.TOO_MANY_REQUESTS
            await bus.sleep(60.1)
        assert errors[0].code is StatusCode.DEADLINE_EXCEEDED
        assert bus.context.consuming.delivering.total_bytes == 0
        assert (await bus.receive()).bodies == [b"b"]
        await bus.sleep(1.1)
        assert (await bus.receive()).bodies == [b"a" * 100]
        assert bus.context.consuming.delivering.total_bytes == 0

    run(scenario)
