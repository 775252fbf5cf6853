"""Everything is the same where reads have to wait for a disk: always, or now and then.

The tests of other modules once more, and what may happen while one of several waits.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from commitbus.broker.consuming import store_reads
from commitbus.broker.rpc.call import RpcError
from commitbus.commitlog.log_reader import LogReader
from commitbus.consumequeue.consume_queue import ConsumeQueue
from tests.broker.messaging import fifo_group
from tests.broker.messaging.bus import make_all_reads_cold, work_in_turn
from tests.broker.messaging.test_acks import (
    test_a_handle_of_a_lost_message_does_not_acknowledge_the_one_in_its_place,
    test_each_entry_has_its_own_result,
    test_the_old_handle_acknowledges_until_its_own_time_is_over,
)
from tests.broker.messaging.test_fifo_attempts import (
    test_an_attempt_that_took_of_several_queues_gets_them_all_again,
    test_two_receivers_of_one_attempt_do_not_get_what_one_of_them_is_burying,
    test_what_another_attempt_took_over_is_not_repeated,
)
from tests.broker.messaging.test_fifo_message_groups import (
    test_a_dead_letter_holds_up_its_own_group_only,
    test_a_stuck_message_group_is_passed_by_its_neighbours,
    test_an_acknowledgement_wakes_who_waits_for_its_group,
    test_the_same_attempt_gets_its_part_of_each_group_again,
)
from tests.broker.messaging.test_pull import (
    test_an_answer_has_a_bounded_number_of_bytes,
    test_at_the_end_it_waits_for_the_next_message,
)
from tests.broker.messaging.test_receive import (
    test_a_damaged_record_is_not_delivered_and_not_forgotten,
    test_a_tag_of_the_same_hash_is_skipped_as_well,
    test_an_answer_never_holds_more_than_its_share_of_memory,
)
from tests.broker.messaging.test_redelivery import (
    test_a_client_that_goes_while_messages_are_sent_gives_them_back,
    test_an_acknowledged_message_never_comes_again_after_a_restart,
    test_an_unacknowledged_message_comes_again_when_its_time_is_over,
    test_what_became_visible_comes_before_what_is_new,
    test_who_waits_already_gets_what_a_client_that_went_gave_back,
)
from tests.broker.receiving.test_fifo import (
    test_a_dead_letter_waits_for_what_lies_before_it,
    test_a_smaller_batch_takes_the_first_ones_and_nothing_new,
    test_after_the_last_attempt_a_message_is_a_dead_letter_and_the_queue_goes_on,
    test_several_negative_acknowledgements_wait_for_the_last,
    test_what_expires_comes_again_first_and_in_order,
)
from tests.broker.settling.test_dead_letters import (
    forward,
    test_a_dead_letter_that_can_never_be_stored_is_given_up,
    test_a_message_delivered_too_often_is_buried_instead,
    test_forwarding_twice_moves_it_once,
)

AGAIN = (
    test_a_client_that_goes_while_messages_are_sent_gives_them_back,
    test_a_damaged_record_is_not_delivered_and_not_forgotten,
    test_a_dead_letter_holds_up_its_own_group_only,
    test_a_dead_letter_that_can_never_be_stored_is_given_up,
    test_a_dead_letter_waits_for_what_lies_before_it,
    test_a_handle_of_a_lost_message_does_not_acknowledge_the_one_in_its_place,
    test_a_message_delivered_too_often_is_buried_instead,
    test_a_smaller_batch_takes_the_first_ones_and_nothing_new,
    test_a_stuck_message_group_is_passed_by_its_neighbours,
    test_a_tag_of_the_same_hash_is_skipped_as_well,
    test_after_the_last_attempt_a_message_is_a_dead_letter_and_the_queue_goes_on,
    test_an_acknowledged_message_never_comes_again_after_a_restart,
    test_an_acknowledgement_wakes_who_waits_for_its_group,
    test_an_answer_has_a_bounded_number_of_bytes,
    test_an_answer_never_holds_more_than_its_share_of_memory,
    test_an_attempt_that_took_of_several_queues_gets_them_all_again,
    test_an_unacknowledged_message_comes_again_when_its_time_is_over,
    test_at_the_end_it_waits_for_the_next_message,
    test_each_entry_has_its_own_result,
    test_forwarding_twice_moves_it_once,
    test_several_negative_acknowledgements_wait_for_the_last,
    test_the_old_handle_acknowledges_until_its_own_time_is_over,
    test_the_same_attempt_gets_its_part_of_each_group_again,
    test_two_receivers_of_one_attempt_do_not_get_what_one_of_them_is_burying,
    test_what_another_attempt_took_over_is_not_repeated,
    test_what_became_visible_comes_before_what_is_new,
    test_what_expires_comes_again_first_and_in_order,
    test_who_waits_already_gets_what_a_client_that_went_gave_back,
)
"""Collected here again, with the fixture below."""
Run = Callable[..., None]


@pytest.fixture(autouse=True, params=["all", "some"])
def cold(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all reads wait for a disk, or every other one by chance."""
    work_in_turn(monkeypatch)
    if request.param == "all":
        make_all_reads_cold(monkeypatch)
        return
    chance = random.Random(request.node.name)  # noqa: S311 - no secret
    for reader in LogReader, ConsumeQueue:
        read = reader.read_cached

        def read_by_chance(*place: Any, read: Any = read) -> bytes | None:
            return read(*place) if chance.random() < 0.5 else None

        monkeypatch.setattr(reader, "read_cached", read_by_chance)


async def receive_beside(bus: Any, count: int, **options: Any) -> list[list[bytes]]:
    """Return the bodies that each of several concurrent receivers gets."""
    found: list[list[bytes]] = []

    async def receive() -> None:
        found.append((await bus.receive(polling_s=5, **options)).bodies)

    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(receive)
        await trio.testing.wait_all_tasks_blocked()
        await bus.sleep(5.1)
    return found


@pytest.mark.parametrize("batch", [1, 3, 32])
def test_receivers_that_wait_for_the_same_messages_get_each_once(run: Run, batch: int) -> None:
    """New ones and those that are visible again: the others have taken some meanwhile."""

    async def scenario(bus: Any) -> None:
        bodies = [b"%d" % number for number in range(10)]
        await bus.send(*bodies)
        for _ in range(2):
            found = await receive_beside(bus, 12, batch=batch)
            assert sorted(body for some in found for body in some) == bodies
            await bus.sleep(31)

    run(scenario)


def test_what_is_settled_while_a_disk_is_waited_for_stays_settled(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not delivered again."""
    read, during = store_reads.read_places, list[Callable[[], None]]()

    def read_and_look_up(*arguments: Any, only_cached: bool, **options: Any) -> Any:
        found = read(*arguments, only_cached=only_cached, **options)
        if not only_cached:
            while during:
                during.pop()()
        return found

    async def scenario(bus: Any) -> None:
        await bus.group("G", retry_max_times=1)
        await bus.send(b"0", b"1")
        await bus.receive()
        await bus.sleep(31)
        table = bus.context.progress
        progress = table.get("G", "T", 0)
        during.append(lambda: table.acknowledge(progress, 0))
        received = await bus.receive(polling_s=5)
        assert (received.bodies, progress.in_flight_count) == ([b"1"], 1)

    monkeypatch.setattr("commitbus.broker.receiving.unordered.read_places", read_and_look_up)
    make_all_reads_cold(monkeypatch)
    run(scenario)


def test_a_dead_letter_is_not_made_of_what_is_settled_meanwhile(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(bus: Any) -> None:
        await bus.group("G", retry_max_times=0)
        await bus.send(b"0")
        await bus.receive()
        await bus.sleep(31)
        progress, read = bus.context.progress.get("G", "T", 0), LogReader.read_bytes

        def read_and_settle(*place: Any) -> bytes:
            bus.context.progress.acknowledge(progress, 0)
            return read(*place)

        make_all_reads_cold(monkeypatch)
        monkeypatch.setattr(LogReader, "read_bytes", read_and_settle)
        assert await receive_beside(bus, 1) == [[]]
        assert bus.context.store.max_offset("%DLQ%G", 0) == 0
        assert progress.committed_offset == 1

    run(scenario)


def test_two_that_give_up_the_same_message_bury_it_once(run: Run) -> None:
    async def scenario(bus: Any) -> None:
        await bus.send(b"0")
        (handle,) = (await bus.receive()).handles
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(forward, bus, handle)
        bus.settle()
        assert bus.context.store.max_offset("%DLQ%G", 0) == 1

    run(scenario)


def test_a_client_that_goes_while_a_disk_is_waited_for_loses_nothing(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a real worker thread; its messages are visible again after a second."""
    monkeypatch.undo()
    make_all_reads_cold(monkeypatch)
    may_read, read = threading.Event(), LogReader.read_bytes

    def read_late(*place: Any) -> bytes:
        assert may_read.wait(30)
        return read(*place)

    monkeypatch.setattr(LogReader, "read_bytes", read_late)

    async def send(*_responses: object) -> None:
        await trio.lowlevel.checkpoint()

    async def scenario(bus: Any) -> None:
        await fifo_group.set_up(bus, b"0", b"1")
        await bus.send(b"0", b"1")
        for names in {}, {"topic": "F", "group": "O"}:
            may_read.clear()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(bus.receive, send=send, **names))
                await trio.testing.wait_all_tasks_blocked(0.05)
                nursery.cancel_scope.cancel()
                may_read.set()
            await bus.sleep(1.1)
            received = await bus.receive(**names)
            assert received.bodies == [b"0", b"1"]

    run(scenario)


def test_a_read_that_fails_unexpectedly_gives_back_what_was_taken(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a second, as if the client had gone."""
    read = LogReader.read_bytes

    async def scenario(bus: Any) -> None:
        await bus.send(b"0", b"1")
        make_all_reads_cold(monkeypatch)
        with monkeypatch.context() as patch:
            patch.setattr(LogReader, "read_bytes", lambda *_: 1 // 0)
            with pytest.raises(RpcError, match="INTERNAL: internal error"):
                await bus.receive()
        assert LogReader.read_bytes is read
        await bus.sleep(1.1)
        assert (await bus.receive()).bodies == [b"0", b"1"]

    run(scenario)
