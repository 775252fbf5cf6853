"""UpdateOffset, GetOffset and QueryOffset, on the progress that POP uses too."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from time import monotonic
from typing import Any

import pytest
import trio
import trio.testing

from commitbus.broker.admin.groups import reset_group_offsets
from commitbus.broker.rpc.call import Call
from commitbus.broker.rpc.proto import admin_v1_pb2 as admin_pb
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from commitbus.broker.store.store_reader import StoreReader
from commitbus.commitlog.types import QueueOffset
from tests.broker.messaging.pulls import pull

Run = Callable[..., None]


async def update(bus: Any, offset: int, *, queue_id: int = 0, group: str = "G") -> pb.Code:
    request = pb.UpdateOffsetRequest(offset=offset)
    request.group.name, request.message_queue.topic.name = group, "T"
    request.message_queue.id = queue_id
    code: pb.Code = (await bus.unary("UpdateOffset", request)).status.code
    return code


async def committed(bus: Any, *, group: str = "G", queue_id: int = 0) -> tuple[pb.Code, int]:
    request = pb.GetOffsetRequest()
    request.group.name, request.message_queue.topic.name = group, "T"
    request.message_queue.id = queue_id
    answer = await bus.unary("GetOffset", request)
    return answer.status.code, answer.offset


async def query(
    bus: Any,
    policy: pb.QueryOffsetPolicy,
    timestamp_ms: int | None = None,
    call: Call | None = None,
) -> tuple[pb.Code, int]:
    request = pb.QueryOffsetRequest(query_offset_policy=policy)
    request.message_queue.topic.name = "T"
    if timestamp_ms is not None:
        request.timestamp.FromMilliseconds(timestamp_ms)
    answer = await bus.unary("QueryOffset", request, call)
    return answer.status.code, answer.offset


def test_an_updated_offset_is_where_the_group_goes_on(run: Run) -> None:
    """Forwards and backwards, for GetOffset as for a receive, and after a restart."""

    async def scenario(bus: Any) -> None:
        await bus.send(b"0", b"1", b"2")
        assert await update(bus, 2) == pb.OK
        assert await committed(bus) == (pb.OK, 2)
        received = await bus.receive()
        assert received.bodies == [b"2"]
        await bus.ack(*received.handles)
        assert await committed(bus) == (pb.OK, 3)
        assert await update(bus, 1) == pb.OK
        assert (await bus.receive()).bodies == [b"1", b"2"]

    run(scenario)


def test_what_is_in_flight_is_forgotten(run: Run) -> None:
    """Else a message before the new offset would come again when it becomes visible."""

    async def scenario(bus: Any) -> None:
        await bus.send(b"0", b"1")
        await bus.receive(batch=1)
        assert await committed(bus) == (pb.OK, 0)
        assert await update(bus, 1) == pb.OK
        await bus.sleep(60)
        assert (await bus.receive()).bodies == [b"1"]

    run(scenario)


@pytest.mark.parametrize(
    ("policy", "bodies"), [(pb.BEGINNING, [b"0", b"1", b"2"]), (pb.END, [b"2"])]
)
def test_a_new_group_that_pulls_begins_where_it_asks_for(
    run: Run, policy: pb.QueryOffsetPolicy, bodies: list[bytes]
) -> None:
    """It has no offset until it says one; then a restart, or a receive, goes on there."""

    async def begin(bus: Any) -> None:
        await bus.send(b"0", b"1")
        _, offset = await query(bus, policy)
        await bus.send(b"2")
        assert (await pull(bus, offset, group="New")).bodies == bodies
        assert await committed(bus, group="New") == (pb.OFFSET_NOT_FOUND, 0)
        assert await update(bus, 2, group="New") == pb.OK

    async def go_on(bus: Any) -> None:
        _, offset = await committed(bus, group="New")
        assert (await pull(bus, offset, group="New")).bodies == [b"2"]
        assert (await bus.receive(group="New")).bodies == [b"2"]

    run(begin)
    run(go_on)


def test_who_pulls_goes_on_where_an_operator_has_reset_the_group_to(run: Run) -> None:
    """As soon as it asks for its offset; who waits at the old one is not disturbed."""

    async def scenario(bus: Any) -> None:
        await bus.send(b"0", b"1", b"2")
        assert await update(bus, 3) == pb.OK
        found: list[bytes] = []

        async def wait() -> None:
            found.extend((await pull(bus, 3)).bodies)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            request = admin_pb.ResetOffsetsRequest(group="G", topic="T", timestamp_ms=0)
            await reset_group_offsets(bus.admin(), request)
            assert await committed(bus) == (pb.OK, 0)
            assert (await pull(bus, 0)).bodies == [b"0", b"1", b"2"]
            assert found == []
            await bus.send(b"3")
        assert found == [b"3"]

    run(scenario)


def test_offsets_of_groups_and_queues_that_do_not_exist(run: Run) -> None:
    """Each has its own code; asking makes nothing."""

    async def scenario(bus: Any) -> None:
        await bus.send(b"0")
        assert await committed(bus) == (pb.OFFSET_NOT_FOUND, 0)
        assert await committed(bus, group="Other") == (pb.OFFSET_NOT_FOUND, 0)
        assert await committed(bus, queue_id=1) == (pb.BAD_REQUEST, 0)
        assert await update(bus, 0, group="Other") == pb.CONSUMER_GROUP_NOT_FOUND
        assert await update(bus, 0, queue_id=-1) == pb.BAD_REQUEST
        assert bus.context.metadata.group("Other") is None

    run(scenario)


@pytest.mark.parametrize("offset", [-1, 2, 2**63 - 1])
def test_an_offset_outside_the_queue_is_illegal(run: Run, offset: int) -> None:
    """One past the last message is the last legal one."""

    async def scenario(bus: Any) -> None:
        await bus.send(b"0")
        assert await update(bus, 1) == pb.OK
        assert await update(bus, offset) == pb.ILLEGAL_OFFSET
        assert await committed(bus) == (pb.OK, 1)

    run(scenario)


def test_offsets_can_be_queried_by_policy(run: Run) -> None:
    """The beginning, the end, and the first message stored at a time or later."""

    async def scenario(bus: Any) -> None:
        await bus.send(b"0", b"1")
        stored_ms = bus.context.store.read(0).store_timestamp
        assert await query(bus, pb.BEGINNING) == (pb.OK, 0)
        assert await query(bus, pb.END) == (pb.OK, 2)
        assert await query(bus, pb.TIMESTAMP, stored_ms) == (pb.OK, 0)
        assert await query(bus, pb.TIMESTAMP, stored_ms + 3_600_000) == (pb.OK, 2)
        assert await query(bus, pb.TIMESTAMP) == (pb.BAD_REQUEST, 0)

    run(scenario)


def test_a_topic_must_exist(run: Run) -> None:
    """None of these calls makes one."""

    async def scenario(bus: Any) -> None:
        request = pb.QueryOffsetRequest()
        request.message_queue.topic.name = "Unknown"
        answer = await bus.unary("QueryOffset", request)
        assert answer.status.code == pb.TOPIC_NOT_FOUND
        assert bus.context.metadata.topic("Unknown") is None

    run(scenario)


def test_slow_queries_of_one_address_keep_nobody_else_waiting(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are, from however many connections: each caller's work has its line."""
    go_on, search = threading.Event(), StoreReader.offset_by_timestamp

    def slow_at_first(store: StoreReader, topic: str, queue_id: int, ms: int) -> QueueOffset:
        if ms == 1:
            go_on.wait(10)
        return search(store, topic, queue_id, ms)

    monkeypatch.setattr(StoreReader, "offset_by_timestamp", slow_at_first)

    async def scenario(bus: Any) -> None:
        await bus.send(b"0")
        answers: list[tuple[pb.Code, int]] = []

        async def query_as(peer: str, ms: int) -> None:
            call = replace(bus.call(), peer=peer)
            answers.append(await query(bus, pb.TIMESTAMP, ms, call))

        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(query_as, f"10.0.0.1:{number // 10}", 1)
            await trio.testing.wait_all_tasks_blocked(0.1)
            begin = monotonic()
            await query_as("10.0.0.2:1", 2)
            assert monotonic() - begin < 5
            assert answers == [(pb.OK, 0)]
            go_on.set()
        assert answers == [(pb.OK, 0)] * 101

    run(scenario)
