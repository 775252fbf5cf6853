"""Groups that clients made: forgotten when they are idle and hold nothing, and shared out."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
import trio
import trio.testing

from commitbus.broker.admin.groups import put_group
from commitbus.broker.common.errors import GroupNotFoundError, TooManyRequestsError
from commitbus.broker.core.client_groups import ClientGroups
from commitbus.broker.messaging.client_groups import (
    IDLE_S,
    LOOK_INTERVAL_S,
    forget_idle,
    may_forget,
)
from commitbus.broker.rpc.proto import admin_v1_pb2 as admin_pb
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb

Run = Callable[..., None]


async def heartbeat(bus: Any, group: str) -> pb.Code:
    request = pb.HeartbeatRequest(client_type=pb.SIMPLE_CONSUMER)
    request.group.name = group
    code: pb.Code = (await bus.unary("Heartbeat", request)).status.code
    return code


async def until_idle(bus: Any) -> None:
    """Let so much time pass that whatever is not used meanwhile is looked at when it is idle."""
    for _ in range(round(3 * IDLE_S / LOOK_INTERVAL_S)):
        await bus.sleep(LOOK_INTERVAL_S)


async def forgotten(bus: Any, group: str) -> None:
    """Wait for the database's thread, for which no time passes."""
    while bus.context.metadata.group(group) is not None:
        await trio.testing.wait_all_tasks_blocked(0.01)


def test_a_group_that_nobody_uses_is_forgotten(run: Run) -> None:
    """With all that is kept for it; one that lives, and one that an operator wants, stays."""

    async def scenario(bus: Any) -> None:
        context = bus.context
        assert await bus.ack("none", group="named") == [pb.INVALID_RECEIPT_HANDLE]
        for group in ("idle", "alive", "wanted"):
            assert await heartbeat(bus, group) == pb.OK
        request = pb.QueryRouteRequest()
        request.topic.name = "%RETRY%idle"
        assert (await bus.unary("QueryRoute", request)).status.code == pb.OK
        await put_group(bus.admin(), admin_pb.PutGroupRequest(name="wanted"))
        async with bus.receiving(group="idle"):
            await bus.sleep(60)
        assert context.progress.topics_of("idle") == ["T"]
        for _ in range(round(3 * IDLE_S / LOOK_INTERVAL_S)):
            await heartbeat(bus, "alive")
            await bus.sleep(LOOK_INTERVAL_S)
        await forgotten(bus, "idle")
        await until_idle(bus)
        names = {group.name for group in context.metadata.groups()}
        assert names >= {"G", "wanted"}
        assert context.metadata.topic("%RETRY%idle") is None
        assert context.progress.topics_of("idle") == []
        assert "idle" not in context.consuming._turns
        assert await heartbeat(bus, "idle") == pb.OK

    run(scenario)


def test_a_restart_knows_who_made_a_group(run: Run) -> None:
    """What a client made is forgotten after it as well, and an operator's is not."""

    async def before(bus: Any) -> None:
        await heartbeat(bus, "idle")
        await heartbeat(bus, "wanted")
        await put_group(bus.admin(), admin_pb.PutGroupRequest(name="wanted"))

    async def after(bus: Any) -> None:
        assert bus.context.metadata.group("idle") is not None
        await until_idle(bus)
        await forgotten(bus, "idle")
        assert bus.context.metadata.group("wanted") is not None
        assert bus.context.metadata.group("G") is not None

    run(before)
    run(after)


def become_idle(context: Any) -> None:
    """Let everybody be gone for long."""
    for client in list(context.clients.all()):
        context.clients.remove(client.client_id)
    for _ in range(3):
        context.client_groups.turn()


def test_what_was_not_acknowledged_is_delivered_again_to_a_forgotten_group(run: Run) -> None:
    """Naming a group and leaving messages unacknowledged keeps it no longer than their time."""

    async def scenario(bus: Any) -> None:
        await bus.send(b"0", b"1", b"2")
        assert (await bus.receive(group="N", batch=2, invisible_s=3000)).bodies == [b"0", b"1"]
        become_idle(bus.context)
        assert not may_forget(bus.context, "N"), "somebody may be at work"
        await bus.sleep(3001)
        become_idle(bus.context)
        assert may_forget(bus.context, "N")
        assert await forget_idle(bus.context, ["N"]) == 1
        assert bus.context.metadata.group("N") is None
        assert (await bus.receive(group="N")).bodies == [b"0", b"1", b"2"]

    run(scenario)


def test_a_group_with_a_connected_client_stays(run: Run) -> None:
    """However silent the client is; not much longer than its stream."""

    async def scenario(bus: Any) -> None:
        context = bus.context
        await heartbeat(bus, "N")
        client = context.clients.get(bus.call().client_id)
        with context.clients.streaming(client):
            await until_idle(bus)
            assert not may_forget(context, "N")
            assert context.metadata.group("N") is not None
        await until_idle(bus)
        await forgotten(bus, "N")

    run(scenario)


@pytest.mark.parametrize("acknowledged", [0, 1])
def test_a_group_that_acknowledged_anything_stays(run: Run, acknowledged: int) -> None:
    """The first message or another."""

    async def scenario(bus: Any) -> None:
        await bus.send(b"0", b"1")
        received = await bus.receive(group="N", invisible_s=30)
        await bus.ack(received.handles[acknowledged], group="N")
        await bus.sleep(31)
        become_idle(bus.context)
        assert not may_forget(bus.context, "N")
        again = await bus.receive(group="N")
        assert again.bodies == [received.bodies[1 - acknowledged]]

    run(scenario)


def test_a_group_with_dead_letters_stays(run: Run) -> None:
    """Somebody may want them."""

    async def scenario(bus: Any) -> None:
        await heartbeat(bus, "N")
        await bus.topic("%DLQ%N")
        await bus.send(b"dead", topic="%DLQ%N")
        become_idle(bus.context)
        assert not may_forget(bus.context, "N")

    run(scenario)


def test_a_group_that_is_used_while_it_is_forgotten_stays(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the progress that it made meanwhile, and what operators see of it."""

    async def scenario(bus: Any) -> None:
        context = bus.context
        await bus.send(b"0")
        await heartbeat(bus, "N")
        become_idle(context)
        delete_groups = context.metadata.delete_groups

        async def delete_and_receive(names: list[str]) -> None:
            received = await bus.receive(group="N")
            await bus.ack(*received.handles, group="N")
            await delete_groups(names)

        monkeypatch.setattr(context.metadata, "delete_groups", delete_and_receive)
        assert may_forget(context, "N")
        assert await forget_idle(context, ["N"]) == 0
        assert context.metadata.group("N") is not None
        assert context.metadata.group("N").created_by_client
        assert context.progress.get("N", "T", 0).committed_offset == 1

    run(scenario)


def test_clients_of_one_address_make_half_of_the_groups(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others still make theirs; what is forgotten counts no more."""
    monkeypatch.setattr("commitbus.broker.core.broker.CREATED_BY_CLIENTS_MAX", 8)

    async def scenario(bus: Any) -> None:
        bus.peer = "10.0.0.1:5"
        codes = [await heartbeat(bus, f"g{number}") for number in range(6)]
        assert codes == [*[pb.OK] * 5, pb.TOO_MANY_REQUESTS]
        bus.peer = "10.0.0.2:5"
        assert await heartbeat(bus, "other") == pb.OK
        become_idle(bus.context)
        assert await forget_idle(bus.context, ["g0"]) == 1
        bus.peer = "10.0.0.1:6"
        assert await heartbeat(bus, "g5") == pb.OK

    run(scenario)


def test_groups_that_are_just_made_count() -> None:
    """However many are made at once; one that could not be made counts no more."""
    groups = ClientGroups()
    with (
        groups.making("a", "", count=1, limit=2),
        pytest.raises(TooManyRequestsError),
        groups.making("b", "", count=1, limit=2),
    ):
        pass
    with pytest.raises(OSError, match="full"), groups.making("c", "h", count=1, limit=2):
        raise OSError("full")
    with groups.making("c", "h", count=1, limit=2):
        pass
    assert groups._made == {"h": 1}


def test_groups_that_an_address_is_making_are_in_its_share() -> None:
    """Thousands of calls may wait for the disk at the same time."""
    groups = ClientGroups()
    with ExitStack() as making:
        for name in "abc":
            making.enter_context(groups.making(name, "h", count=0, limit=4))
        with pytest.raises(TooManyRequestsError):
            making.enter_context(groups.making("d", "h", count=0, limit=4))
        making.enter_context(groups.making("d", "other", count=0, limit=4))
        # By a second call, which finds it made.
        making.enter_context(groups.making("d", "third", count=0, limit=5))
    assert groups._made == {"h": 3, "third": 1}
    for name in "abcd":
        groups.forget(name)
    assert not groups._made


def test_names_of_groups_that_are_not_made_are_not_kept(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or whoever names a new one with each call could fill the memory within a turn."""
    monkeypatch.setattr("commitbus.broker.core.broker.CREATED_BY_CLIENTS_MAX", 0)

    async def scenario(bus: Any) -> None:
        assert await heartbeat(bus, "refused") == pb.TOO_MANY_REQUESTS
        received = await bus.receive(group="refused2")
        assert received.status.code == pb.TOO_MANY_REQUESTS
        with pytest.raises(GroupNotFoundError):
            bus.context.consuming_group("not there")
        assert bus.context.client_groups._used <= {"G"}

    run(scenario)
