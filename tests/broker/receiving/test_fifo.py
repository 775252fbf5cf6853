"""FIFO groups: each queue in order, one batch at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from commitbus.broker.metadata.errors import StateWriteError
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from commitbus.commitlog.log_reader import LogReader
from tests.broker.messaging.fifo_group import (
    ack,
    attempts,
    finds_nothing,
    nack,
    receive,
    send,
    set_up,
    waiting,
)

Run = Callable[..., None]


def test_the_next_batch_waits_until_all_of_the_first_is_acknowledged(run: Run) -> None:
    """Whoever asks; and a part that is acknowledged is not enough."""

    async def scenario(bus: Any) -> None:
        await set_up(bus, b"0", b"1", b"2", b"3")
        first = await receive(bus, 2)
        assert first.bodies == [b"0", b"1"]
        await ack(bus, first.handles[1])
        assert await finds_nothing(bus)
        await ack(bus, first.handles[0])
        assert (await receive(bus)).bodies == [b"2", b"3"]

    run(scenario)


def test_an_acknowledgement_wakes_who_waits_for_the_queue(run: Run) -> None:
    """At once, without an arrival."""

    async def scenario(bus: Any) -> None:
        await set_up(bus, b"0", b"1")
        first = await receive(bus, 1)
        async with waiting(bus) as results:
            await bus.sleep(1)
            await ack(bus, *first.handles)
        assert results[0].bodies == [b"1"]

    run(scenario)


def test_after_the_wall_clock_was_set_back_a_queue_is_free_as_soon_as_it_says(run: Run) -> None:
    """Who waits for it noted another time: that of a message that is settled now."""

    async def scenario(bus: Any) -> None:
        await set_up(bus, b"0", b"1")
        first = await receive(bus, invisible_s=60)
        await nack(bus, first.handles[0], 5)
        await bus.sleep(10)
        # 0 is visible, and waits for 1.
        async with waiting(bus) as results:
            bus.context.clock.offset_ms = -7_000
            await ack(bus, first.handles[1])
            await bus.sleep(1.9)
            assert not results
            await bus.sleep(0.2)
        assert (results[0].bodies, attempts(results[0])) == ([b"0"], [2])

    run(scenario)


def test_a_message_given_up_by_its_consumer_lets_the_queue_go_on(run: Run) -> None:
    """Forwarded to the dead letter queue is settled, too."""

    async def scenario(bus: Any) -> None:
        await set_up(bus, b"0", b"1")
        (handle,) = (await receive(bus, 1)).handles
        request = pb.ForwardMessageToDeadLetterQueueRequest(receipt_handle=handle)
        request.group.name, request.topic.name = "O", "F"
        async with waiting(bus) as results:
            await bus.sleep(1)
            response = await bus.unary("ForwardMessageToDeadLetterQueue", request)
            assert response.status.code == pb.OK
        assert results[0].bodies == [b"1"]
        bus.settle()
        (dead,) = (await bus.receive(topic="%DLQ%O")).messages
        assert (dead.body, dead.system_properties.message_group) == (b"0", "g")

    run(scenario)


def test_what_expires_comes_again_first_and_in_order(run: Run) -> None:
    """What was acknowledged in the middle does not; what is new follows in the same batch."""

    async def scenario(bus: Any) -> None:
        await set_up(bus, *(b"%d" % n for n in range(6)))
        first = await receive(bus, 4)
        await ack(bus, first.handles[1])
        await bus.sleep(31)
        again = await receive(bus, 4)
        assert again.bodies == [b"0", b"2", b"3", b"4"]
        assert attempts(again) == [2, 2, 2, 1]
        # The handles of the first delivery are expired, those of the second are good.
        assert await bus.ack(first.handles[0], topic="F", group="O") == [pb.INVALID_RECEIPT_HANDLE]
        await ack(bus, *again.handles)
        assert (await receive(bus)).bodies == [b"5"]

    run(scenario)


def test_a_smaller_batch_takes_the_first_ones_and_nothing_new(run: Run) -> None:
    """Of what expired; the rest waits for these."""

    async def scenario(bus: Any) -> None:
        await set_up(bus, b"0", b"1", b"2")
        await receive(bus, 2)
        await bus.sleep(31)
        again = await receive(bus, 1)
        assert again.bodies == [b"0"]
        assert await finds_nothing(bus)
        await ack(bus, *again.handles)
        rest = await receive(bus)
        assert (rest.bodies, attempts(rest)) == ([b"1", b"2"], [2, 1])

    run(scenario)


def test_a_negative_acknowledgement_holds_up_what_lies_behind(run: Run) -> None:
    """Even what was acknowledged does not let later ones pass; the expiry wakes who waits."""

    async def scenario(bus: Any) -> None:
        await set_up(bus, b"0", b"1", b"2")
        first = await receive(bus, 2)
        await ack(bus, first.handles[1])
        await nack(bus, first.handles[0], 7)
        async with waiting(bus) as results:
            await bus.sleep(6.9)
            assert not results
            await bus.sleep(0.2)
        assert (results[0].bodies, attempts(results[0])) == ([b"0", b"2"], [2, 1])

    run(scenario)


def test_several_negative_acknowledgements_wait_for_the_last(run: Run) -> None:
    """Whoever is woken by the first finds the queue locked, and is woken again: no busy waiting."""

    async def scenario(bus: Any) -> None:
        await set_up(bus, b"0", b"1")
        first = await receive(bus)
        await nack(bus, first.handles[0], 2)
        await nack(bus, first.handles[1], 6, suspend=True)
        async with waiting(bus) as results:
            await bus.sleep(5.9)
            assert not results
            await bus.sleep(0.2)
        assert (results[0].bodies, attempts(results[0])) == ([b"0", b"1"], [2, 1])

    run(scenario)


def test_each_queue_is_locked_by_itself(run: Run) -> None:
    """A locked one holds up no other, and one receive may take of several."""

    async def scenario(bus: Any) -> None:
        await set_up(bus)
        await bus.topic("F", queues=4, attributes={"message.type": "FIFO"})
        await send(bus, b"a0", b"a1", message_group="gA")
        await send(bus, b"s0", b"s1", message_group="s-1")
        both = await receive(bus)
        assert sorted(both.bodies) == [b"a0", b"a1", b"s0", b"s1"]
        queues = [message.system_properties.queue_id for message in both.messages]
        assert queues in ([0, 0, 3, 3], [3, 3, 0, 0])
        await send(bus, b"a2", message_group="gA")
        await send(bus, b"s2", message_group="s-1")
        of_a = [h for h, q in zip(both.handles, queues, strict=True) if q == 3]
        await ack(bus, *of_a)
        assert (await receive(bus)).bodies == [b"a2"]

    run(scenario)


def test_after_the_last_attempt_a_message_is_a_dead_letter_and_the_queue_goes_on(run: Run) -> None:
    """In order: what lies behind waits until then, and is delivered in the same receive."""

    async def scenario(bus: Any) -> None:
        await set_up(bus, b"0", b"1", retry_max_times=1)
        assert attempts(await receive(bus, 1)) == [1]
        await bus.sleep(31)
        assert attempts(await receive(bus, 1)) == [2]
        await bus.sleep(31)
        received = await receive(bus)
        assert (received.bodies, attempts(received)) == ([b"1"], [1])
        bus.settle()
        assert (await bus.receive(topic="%DLQ%O")).bodies == [b"0"]
        assert bus.context.progress.get("O", "F", 0).committed_offset == 1

    run(scenario)


def test_a_dead_letter_waits_for_what_lies_before_it(run: Run) -> None:
    """Its neighbour has an attempt left; neither overtakes the other on any way."""

    async def scenario(bus: Any) -> None:
        await set_up(bus, b"0", b"1", b"2", retry_max_times=1)
        first = await receive(bus, 2)
        # Of 0 this delivery will not count.
        await nack(bus, first.handles[0], 1, suspend=True)
        await nack(bus, first.handles[1], 1)
        await bus.sleep(1.1)
        second = await receive(bus, 2)
        assert attempts(second) == [1, 2]
        await bus.sleep(31)
        third = await receive(bus)
        assert (third.bodies, attempts(third)) == ([b"0"], [2])
        assert bus.context.metadata.topic("%DLQ%O") is None
        await ack(bus, *third.handles)
        assert (await receive(bus)).bodies == [b"2"]
        bus.settle()
        assert (await bus.receive(topic="%DLQ%O")).bodies == [b"1"]

    run(scenario)


def test_a_dead_letter_that_cannot_be_stored_keeps_the_queue_locked(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing overtakes it; it is tried again when it becomes visible."""

    async def scenario(bus: Any) -> None:
        await set_up(bus, b"0", b"1", retry_max_times=0)
        await bus.topic("%DLQ%O")
        await receive(bus, 1)
        await bus.sleep(31)

        def fail(_message: object) -> None:
            raise StateWriteError(Path("log"), "no space left")

        with monkeypatch.context() as patch:
            patch.setattr(bus.context.store, "put", fail)
            assert await finds_nothing(bus)
        await bus.sleep(31)
        assert (await receive(bus)).bodies == [b"1"]
        bus.settle()
        assert (await bus.receive(topic="%DLQ%O")).bodies == [b"0"]

    run(scenario)


def test_renewal_keeps_a_queue_locked_and_ends_with_its_client(run: Run) -> None:
    """A push consumer works for minutes; a second after its goodbye another gets it."""

    async def scenario(bus: Any) -> None:
        await set_up(bus, b"0", b"1")
        first = await receive(bus, 1, auto_renew=True, invisible_s=None, attempt_id="A")
        heartbeat = pb.HeartbeatRequest(client_type=pb.PUSH_CONSUMER)
        heartbeat.group.name = "O"
        for _ in range(30):
            await bus.unary("Heartbeat", heartbeat)
            await bus.sleep(5)
            await bus.sleep(5)
        other = bus.call("other")
        async with waiting(bus, call=other) as results:
            await bus.sleep(1)
            assert not results
            await bus.unary("NotifyClientTermination", pb.NotifyClientTerminationRequest())
            await bus.sleep(1.1)
        assert (results[0].bodies, attempts(results[0])) == ([b"0", b"1"], [2, 1])
        assert first.bodies == [b"0"]

    run(scenario)


def test_other_groups_are_not_locked(run: Run) -> None:
    """Neither another FIFO group nor an ordinary one, which has no order to keep."""

    async def scenario(bus: Any) -> None:
        await set_up(bus, b"0", b"1")
        await bus.group("P", consume_message_orderly=True)
        assert (await receive(bus, 1)).bodies == [b"0"]
        assert (await bus.receive(topic="F", group="P", batch=1)).bodies == [b"0"]
        assert (await bus.receive(topic="F", batch=1)).bodies == [b"0"]
        assert (await bus.receive(topic="F", batch=1)).bodies == [b"1"]

    run(scenario)


def test_a_fifo_group_has_order_in_a_topic_of_normal_messages(run: Run) -> None:
    """As they are stored, queue by queue."""

    async def scenario(bus: Any) -> None:
        await bus.group("O", consume_message_orderly=True)
        await bus.send(b"0", b"1", b"2")
        first = await bus.receive(group="O", batch=2)
        assert first.bodies == [b"0", b"1"]
        assert await bus.ack(*first.handles, group="O") == [pb.OK] * 2
        assert (await bus.receive(group="O")).bodies == [b"2"]

    run(scenario)


def test_handles_are_marked_as_rocketmq_does(run: Run) -> None:
    """The revive queue 999, also after a change; of an ordinary group 0."""

    async def scenario(bus: Any) -> None:
        await set_up(bus, b"0")
        (handle,) = (await receive(bus)).handles
        assert handle.split()[3] == "999"
        assert (await nack(bus, handle, 10)).split()[3] == "999"
        assert (await bus.receive(topic="F")).handles[0].split()[3] == "0"

    run(scenario)


def test_an_older_handle_follows_the_rules_of_all_groups(run: Run) -> None:
    """Good until its own time ends, also after the message was given a new one."""

    async def scenario(bus: Any) -> None:
        await set_up(bus, b"0", b"1")
        (handle,) = (await receive(bus, 1)).handles
        newer = await nack(bus, handle, 5)
        await ack(bus, handle)
        await ack(bus, newer)
        assert (await receive(bus)).bodies == [b"1"]

    run(scenario)


def test_a_filter_leaves_the_rest_in_order(run: Run) -> None:
    """What is not wanted is passed over and holds nothing up."""

    async def scenario(bus: Any) -> None:
        await bus.group("O", consume_message_orderly=True)
        for number in range(6):
            await bus.send(b"%d" % number, tag="even" if number % 2 == 0 else "odd")
        first = await bus.receive(group="O", batch=2, tags="odd")
        assert first.bodies == [b"1", b"3"]
        assert await bus.ack(*first.handles, group="O") == [pb.OK] * 2
        assert (await bus.receive(group="O", tags="odd")).bodies == [b"5"]

    run(scenario)


def test_a_batch_that_the_client_did_not_get_is_free_after_a_second(run: Run) -> None:
    """All of it, in order."""

    async def scenario(bus: Any) -> None:
        await set_up(bus, b"0", b"1")

        async def break_off(*_responses: object) -> None:
            raise trio.BrokenResourceError

        with pytest.raises(trio.BrokenResourceError):
            await receive(bus, send=break_off)
        async with waiting(bus) as results:
            await bus.sleep(0.9)
            assert not results
            await bus.sleep(0.2)
        assert results[0].bodies == [b"0", b"1"]

    run(scenario)


def test_what_has_to_be_dropped_holds_up_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """'BB' has the hash of 'Aa': until it is read the queue is locked, and who looks then waits."""
    monkeypatch.setattr(LogReader, "read_cached", lambda *_: None)
    read, may_read = LogReader.read_bytes, threading.Event()

    def read_late(*arguments: Any) -> Any:
        assert may_read.wait(30)
        return read(*arguments)

    monkeypatch.setattr(LogReader, "read_bytes", read_late)

    async def scenario(bus: Any) -> None:
        await bus.group("O", consume_message_orderly=True)
        wanted = {"group": "O", "tags": "Aa"}
        async with bus.receiving(**wanted) as first, bus.receiving(**wanted) as second:
            # Each arrival wakes one of the two, in turn.
            for body, tag in ((b"0", "BB"), (b"1", "Aa")):
                await bus.send(body, tag=tag)
                await trio.testing.wait_all_tasks_blocked(0.05)
            may_read.set()
            await trio.testing.wait_all_tasks_blocked(0.05)
            await bus.sleep(20.1)
        assert sorted(received.bodies for received in (*first, *second)) == [[], [b"1"]]

    run(scenario)


def test_what_is_in_flight_survives_a_restart(run: Run) -> None:
    """The lock, the attempts, and what was acknowledged in the middle."""
    handles: list[str] = []

    async def before(bus: Any) -> None:
        await set_up(bus, b"0", b"1", b"2", b"3")
        handles.extend((await receive(bus, 3)).handles)
        await ack(bus, handles[1])

    async def after(bus: Any) -> None:
        assert await finds_nothing(bus)
        await ack(bus, handles[0])
        await bus.sleep(31)
        again = await receive(bus)
        assert (again.bodies, attempts(again)) == ([b"2", b"3"], [2, 1])

    run(before)
    run(after)


def test_a_group_that_becomes_fifo_waits_for_what_is_out(run: Run) -> None:
    """And back: then nothing waits any more."""

    async def scenario(bus: Any) -> None:
        await set_up(bus, *(b"%d" % n for n in range(4)))
        await bus.group("O")
        first = [await receive(bus, 1), await receive(bus, 1)]
        await bus.group("O", consume_message_orderly=True)
        assert await finds_nothing(bus)
        await ack(bus, *first[1].handles)
        await bus.sleep(31)
        again = await receive(bus, 2)
        assert (again.bodies, attempts(again)) == ([b"0", b"2"], [2, 1])
        await bus.group("O")
        assert (await receive(bus)).bodies == [b"3"]

    run(scenario)


def test_a_reset_unlocks_the_queue(run: Run) -> None:
    """What was out is forgotten, and the queue begins where the operator said."""

    async def scenario(bus: Any) -> None:
        await set_up(bus, b"0", b"1", b"2")
        old = await receive(bus, 2)
        bus.context.progress.reset("O", "F", 0, 1)
        received = await receive(bus)
        assert (received.bodies, attempts(received)) == ([b"1", b"2"], [1, 1])
        assert await bus.ack(old.handles[0], topic="F", group="O") == [pb.OK]
        assert await finds_nothing(bus)

    run(scenario)
