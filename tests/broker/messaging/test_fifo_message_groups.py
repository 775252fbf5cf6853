"""FIFO groups that lock message groups: a stuck one does not hold up its neighbours."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing

from commitbus.broker.core.validation import MESSAGES_MAX
from commitbus.broker.metadata.groups import FIFO_LOCK_UNIT_ATTRIBUTE, LockUnit
from commitbus.broker.observe.backlog import backlogs
from commitbus.broker.receiving import locked_queue
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from tests.work import lines_executed

Run = Callable[..., None]
BY_GROUP = {FIFO_LOCK_UNIT_ATTRIBUTE: LockUnit.MESSAGE_GROUP}


async def set_up(bus: Any, *bodies: bytes, **group: Any) -> None:
    """Make topic F (one queue) and group O, and send messages; a body begins with its group."""
    await bus.topic("F", attributes={"message.type": "FIFO"})
    await bus.group("O", consume_message_orderly=True, attributes=BY_GROUP, **group)
    await send(bus, *bodies)


async def send(bus: Any, *bodies: bytes) -> None:
    for body in bodies:
        message = pb.Message(body=body)
        message.topic.name = "F"
        message.system_properties.message_id = f"id-{body!r}"
        message.system_properties.message_group = body[:1].decode()
        response = await bus.unary("SendMessage", pb.SendMessageRequest(messages=[message]))
        assert response.status.code == pb.OK, response.status.message
    bus.settle()


async def send_many(bus: Any, group: bytes, count: int) -> None:
    """Send messages of one group, many with each request."""
    for start in range(0, count, MESSAGES_MAX):
        request = pb.SendMessageRequest()
        for number in range(start, min(start + MESSAGES_MAX, count)):
            message = request.messages.add(body=group)
            message.topic.name = "F"
            message.system_properties.message_id = f"id-{number}"
            message.system_properties.message_group = group.decode()
        response = await bus.unary("SendMessage", request)
        assert response.status.code == pb.OK, response.status.message
    bus.settle()


async def receive(bus: Any, batch: int = 32, **options: Any) -> dict[bytes, str]:
    """Return what comes, in order, with the handles; the shortest wait if nothing does."""
    received = await bus.receive(topic="F", group="O", batch=batch, polling_s=5, **options)
    return dict(zip(received.bodies, received.handles, strict=True))


async def ack(bus: Any, *handles: str) -> None:
    assert await bus.ack(*handles, topic="F", group="O") == [pb.OK] * len(handles)


def progress(bus: Any) -> Any:
    return bus.context.progress.get("O", "F", 0)


def test_a_stuck_message_group_is_passed_by_its_neighbours(run: Run) -> None:
    """Its own messages wait in order, and come when it is free."""

    async def scenario(bus: Any) -> None:
        await set_up(bus, b"a0", b"b0", b"a1", b"c0", b"b1", b"a2")
        stuck = await receive(bus, 1)
        assert list(stuck) == [b"a0"]
        second = await receive(bus, 2)
        assert list(second) == [b"b0", b"c0"]
        await ack(bus, *second.values())
        third = await receive(bus)
        assert list(third) == [b"b1"]
        await ack(bus, *stuck.values())
        fourth = await bus.receive(topic="F", group="O")
        assert fourth.bodies == [b"a1", b"a2"]
        # Held back is not delivered: these are first attempts.
        assert [m.system_properties.delivery_attempt for m in fourth.messages] == [1, 1]
        await ack(bus, *third.values(), *fourth.handles)
        assert progress(bus).committed_offset == 6
        assert progress(bus).in_flight_count == 0

    run(scenario)


def test_an_acknowledgement_wakes_who_waits_for_its_group(run: Run) -> None:
    """At once, though another group of the queue is still out."""

    async def scenario(bus: Any) -> None:
        await set_up(bus, b"a0", b"b0", b"b1")
        first = await receive(bus, 2)
        assert list(first) == [b"a0", b"b0"]
        async with bus.receiving(topic="F", group="O") as results:
            await bus.sleep(1)
            await ack(bus, first[b"b0"])
            await trio.testing.wait_all_tasks_blocked()
            assert [received.bodies for received in results] == [[b"b1"]]

    run(scenario)


def test_what_is_stepped_over_is_bounded(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    """By a setting, which the log and the answer name when it stops the neighbours."""

    async def scenario(bus: Any) -> None:
        await set_up(bus, *(b"a%d" % n for n in range(150)), b"b")
        (handle,) = (await receive(bus, 1)).values()
        # Reached by looking on, in turns, past a's; but not past a hundred of them.
        with caplog.at_level(logging.WARNING):
            for _ in range(2):
                async with bus.receiving(topic="F", group="O", polling_s=5) as results:
                    await bus.sleep(5.1)
                (nothing,) = results
                assert nothing.status.code == pb.MESSAGE_NOT_FOUND
                assert "100 messages of locked message groups" in nothing.status.message
        (logged,) = [record for record in caplog.records if "held back" in record.message]
        assert (logged.group, logged.topic, logged.queue_id) == ("O", "F", 0)  # type: ignore[attr-defined] # extra
        assert progress(bus).in_flight_count == 1 + 100
        await ack(bus, handle)
        bodies: list[bytes] = []
        while b"b" not in bodies:
            batch = await receive(bus)
            bodies += batch
            await ack(bus, *batch.values())
        assert bodies == [*(b"a%d" % n for n in range(1, 150)), b"b"]

    run(scenario, held_back_max=100)


def test_a_neighbour_behind_ten_thousand_of_a_stuck_group_is_found(run: Run) -> None:
    """What is held back is not in flight, of which there may be 10,000."""

    async def scenario(bus: Any) -> None:
        await set_up(bus, b"a")
        await receive(bus, 1, invisible_s=600)
        await send_many(bus, b"a", 12_000)
        assert await work_of_a_neighbour(bus)
        assert progress(bus).in_flight_count == 12_001

    run(scenario, log_file_bytes=16 << 20)


def test_a_neighbour_behind_hundreds_of_a_stuck_group_is_found(run: Run) -> None:
    """In several steps of one receive."""

    async def scenario(bus: Any) -> None:
        await set_up(bus, *(b"a%d" % n for n in range(300)), b"b0", b"b1")
        await receive(bus, 1)
        assert list(await receive(bus, 1)) == [b"b0"]
        # One is locked by its batch now, like a.
        assert progress(bus).in_flight_count == 302

    run(scenario)


async def work_of_a_neighbour(bus: Any, **options: Any) -> int:
    """Send a message of group b, receive and acknowledge it; return the lines that executed."""
    await send(bus, b"b")
    with lines_executed("/broker/") as work:
        neighbour = await receive(bus, 1, **options)
        await ack(bus, *neighbour.values())
    assert list(neighbour) == [b"b"]
    return work.lines


@pytest.mark.parametrize("attempt_id", ["", "A"])
def test_a_stuck_group_costs_its_neighbours_nothing_that_grows(run: Run, attempt_id: str) -> None:
    """Whatever it holds back: what is looked at counts, not how long that takes."""

    async def scenario(bus: Any) -> None:
        await set_up(bus, b"a")
        await receive(bus, 1, invisible_s=600)
        options: dict[str, Any] = {"attempt_id": attempt_id}
        costs: list[int] = []
        for held in 50, 3_000:
            await send_many(bus, b"a", held)
            await work_of_a_neighbour(bus, **options)  # steps over what is new
            assert progress(bus).in_flight_count > held
            costs.append(await work_of_a_neighbour(bus, **options))
        assert costs[1] <= costs[0] * 1.1

    run(scenario)


def test_a_stuck_group_costs_those_who_wait_nothing_that_grows(run: Run) -> None:
    """A look that finds nothing, and the next one's time."""

    async def scenario(bus: Any) -> None:
        await set_up(bus, b"a")
        await receive(bus, 1, invisible_s=600)
        costs: list[int] = []
        for held in 50, 3_000:
            await send_many(bus, b"a", held)
            await work_of_a_neighbour(bus)
            with lines_executed("/messaging/fifo", "/messaging/pop", "fifo_lock") as work:
                async with bus.receiving(topic="F", group="O", polling_s=5) as results:
                    await bus.sleep(5.1)
            assert results[0].bodies == []
            costs.append(work.lines)
        assert costs[1] <= costs[0] * 1.1

    run(scenario)


def test_a_queue_that_was_locked_by_message_group_costs_nothing_that_grows(run: Run) -> None:
    """When the group locks queues from now on, what was held back is one unit of the queue."""

    async def scenario(bus: Any) -> None:
        await set_up(bus, b"a")
        stuck = await receive(bus, 1, invisible_s=600)
        costs: list[int] = []
        for held in 50, 3_000:
            await bus.group("O", consume_message_orderly=True, attributes=BY_GROUP)
            await send_many(bus, b"a", held)
            await work_of_a_neighbour(bus)
            await bus.group("O", consume_message_orderly=True)
            await bus.change(*stuck.values(), 0, topic="F", group="O", suspend=True)
            (first,) = (await receive(bus, 1)).values()
            await ack(bus, first)
            stuck = await receive(bus, 1)
            with lines_executed("/broker/") as work:
                await ack(bus, *stuck.values())
                stuck = await receive(bus, 1, invisible_s=600)
            assert list(stuck) == [b"a"]
            costs.append(work.lines)
        assert costs[1] <= costs[0] * 1.1

    run(scenario)


def test_a_group_that_is_free_again_comes_in_order_in_batches(run: Run) -> None:
    """Each batch costs what it holds, however much waits behind it."""

    async def scenario(bus: Any) -> None:
        await set_up(bus)
        offsets: list[int] = []
        costs: list[float] = []
        for held in 100, 3_000:
            await send_many(bus, b"a", 1 + held)
            (handle,) = (await receive(bus, 1, invisible_s=600)).values()
            await work_of_a_neighbour(bus)
            await ack(bus, handle)
            with lines_executed("/broker/") as work:
                for _ in range(3):
                    received = await bus.receive(topic="F", group="O", batch=32)
                    await ack(bus, *received.handles)
                    offsets += [m.system_properties.queue_offset for m in received.messages]
            costs.append(work.lines)
            while progress(bus).in_flight_count:
                rest = await bus.receive(topic="F", group="O", batch=32)
                await ack(bus, *rest.handles)
        # Without the first of each, the neighbours, and what was not counted.
        assert offsets == [*range(1, 97), *range(103, 199)]
        assert costs[1] <= costs[0] * 1.5

    run(scenario)


def test_locks_and_what_is_held_back_survive_a_restart(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message groups are read again, on another thread if they are many."""
    monkeypatch.setattr(locked_queue, "READ_AT_ONCE_MAX", 1)
    stuck: list[str] = []

    async def before(bus: Any) -> None:
        await set_up(bus, b"a0", b"a1", b"b0", b"a2", b"c0")
        stuck.extend((await receive(bus, 1)).values())
        assert list(await receive(bus, 1)) == [b"b0"]

    async def after(bus: Any) -> None:
        await send(bus, b"b1")
        assert list(await receive(bus)) == [b"c0"]
        await ack(bus, *stuck)
        assert list(await receive(bus)) == [b"a1", b"a2"]

    run(before)
    run(after)


def test_a_group_that_ceases_to_be_fifo_gets_what_was_held_back(run: Run) -> None:
    """Nothing is left behind, and it is the first attempt."""

    async def scenario(bus: Any) -> None:
        await set_up(bus, b"a0", b"a1", b"b0")
        await receive(bus, 1)
        assert list(await receive(bus)) == [b"b0"]
        await bus.group("O")
        received = await bus.receive(topic="F", group="O")
        assert received.bodies == [b"a1"]
        assert received.messages[0].system_properties.delivery_attempt == 1

    run(scenario)


def test_what_was_never_delivered_cannot_be_acknowledged(run: Run) -> None:
    """With a handle that somebody made up for a message that is held back."""

    async def scenario(bus: Any) -> None:
        await set_up(bus, b"a0", b"a1", b"b0")
        (handle,) = (await receive(bus, 1)).values()
        await receive(bus)
        fields = handle.split()
        fields[7] = "1"
        forged = " ".join(fields)
        assert await bus.ack(forged, topic="F", group="O") == [pb.INVALID_RECEIPT_HANDLE]
        assert (await bus.change(forged, 10, topic="F", group="O")).status.code == (
            pb.INVALID_RECEIPT_HANDLE
        )

    run(scenario)


def test_the_same_attempt_gets_its_part_of_each_group_again(run: Run) -> None:
    """Others go on meanwhile."""

    async def scenario(bus: Any) -> None:
        await set_up(bus, b"a0", b"b0", b"c0", b"a1")
        assert list(await receive(bus, 2, attempt_id="A")) == [b"a0", b"b0"]
        assert list(await receive(bus, 2, attempt_id="B")) == [b"c0"]
        assert list(await receive(bus, attempt_id="A")) == [b"a0", b"b0"]

    run(scenario)


def test_a_dead_letter_holds_up_its_own_group_only(run: Run) -> None:
    """While it waits for what lies before it in its group, its neighbours go on."""

    async def scenario(bus: Any) -> None:
        await set_up(bus, b"a0", b"a1", retry_max_times=0)
        first = await receive(bus)
        await bus.change(first[b"a0"], 1, topic="F", group="O", suspend=True)
        await bus.change(first[b"a1"], 1, topic="F", group="O")
        await bus.sleep(1.1)
        await send(bus, b"b0", b"a2")
        second = await receive(bus)
        assert list(second) == [b"a0", b"b0"]
        await ack(bus, second[b"a0"])
        assert list(await receive(bus)) == [b"a2"]
        bus.settle()
        assert (await bus.receive(topic="%DLQ%O")).bodies == [b"a1"]

    run(scenario)


def test_many_dead_letters_are_made_in_turns(run: Run) -> None:
    """One receive sees to all of them, and gets what lies behind."""

    async def scenario(bus: Any) -> None:
        letters = [b"%c" % code for code in range(ord("A"), ord("A") + 50)]
        await set_up(bus, *letters, retry_max_times=0)
        assert len(await receive(bus)) + len(await receive(bus)) == 50
        await bus.sleep(31)
        await send(bus, b"z")
        assert list(await receive(bus)) == [b"z"]
        bus.settle()
        assert bus.context.store.max_offset("%DLQ%O", 0) == 50

    run(scenario)


def test_messages_without_a_group_are_one_unit(run: Run) -> None:
    """As those of a topic of normal messages: the queue's order then."""

    async def scenario(bus: Any) -> None:
        await bus.group("O", consume_message_orderly=True, attributes=BY_GROUP)
        await bus.send(b"0", b"1", b"2")
        first = await bus.receive(group="O", batch=1)
        assert await bus.ack(*first.handles, group="O") == [pb.OK]
        assert (await bus.receive(group="O", batch=1)).bodies == [b"1"]
        assert bus.context.progress.get("O", "T", 0).in_flight_count == 2

    run(scenario)


def test_groups_that_fail_again_and_again_leave_their_neighbours_turns(run: Run) -> None:
    """Enough of them for whole batches, visible again before each receive."""

    async def scenario(bus: Any) -> None:
        await set_up(bus, *(b"%c0" % c for c in b"abcd"), retry_max_times=-1)
        failing = await receive(bus, 4, invisible_s=10)
        assert list(failing) == [b"a0", b"b0", b"c0", b"d0"]
        await send(bus, *(b"%c0" % c for c in b"efghijklmnop"))
        done: list[bytes] = []
        tried_again = 0
        for _ in range(5):
            await bus.sleep(10.1)
            batch = await receive(bus, 4, invisible_s=10)
            assert len(batch) == 4
            neighbours = {body: handle for body, handle in batch.items() if body[:1] > b"d"}
            await ack(bus, *neighbours.values())
            done += neighbours
            tried_again += not neighbours
        assert done == [b"%c0" % c for c in b"efghijklmnop"]
        assert tried_again == 2

    run(scenario)


def test_of_groups_that_failed_the_one_that_waits_longest_is_first(run: Run) -> None:
    """A later one does not wait until all before it have succeeded."""

    async def scenario(bus: Any) -> None:
        await set_up(bus, *(b"%c0" % c for c in b"abcdefgh"), retry_max_times=-1)
        first, second = (
            list(await receive(bus, 4, invisible_s=10)),
            list(await receive(bus, 4, invisible_s=10)),
        )
        assert [*first, *second] == [b"%c0" % c for c in b"abcdefgh"]
        for _ in range(2):
            await bus.sleep(10.1)
            assert list(await receive(bus, 4, invisible_s=10)) == first
            await bus.sleep(10.1)
            assert list(await receive(bus, 4, invisible_s=10)) == second

    run(scenario)


def test_what_is_held_back_is_before_the_group_and_not_in_flight(run: Run) -> None:
    """A thousand behind one stuck message were said to be delivered."""

    async def scenario(bus: Any) -> None:
        await set_up(bus, *(b"a%d" % n for n in range(5)), b"b")
        assert list(await receive(bus)) == [b"a0", b"a1", b"a2", b"a3", b"a4", b"b"]
        await send(bus, b"a5", b"a6", b"c")
        (handle,) = (await receive(bus)).values()
        await ack(bus, handle)
        (queue,) = backlogs(bus.context.store, bus.context.progress, "O", "F")
        assert (queue.lag, queue.in_flight) == (8, 6)

    run(scenario)
