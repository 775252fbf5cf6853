"""AckMessage and ChangeInvisibleDuration: which handles are good, and what they do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from commitbus.broker.messaging.acks import ENTRIES_MAX
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb

Run = Callable[..., None]


def replaced(handle: str, field: int, value: object) -> str:
    """A handle with one of its fields changed."""
    fields = handle.split(" ")
    fields[field] = str(value)
    return " ".join(fields)


def test_an_acknowledged_message_is_done_and_may_be_acknowledged_again(run: Run) -> None:
    """A client repeats an ack whose answer it missed."""

    async def scenario(bus: Any) -> None:
        await bus.send(b"1", b"2")
        handles = (await bus.receive()).handles
        assert await bus.ack(*handles) == [pb.OK, pb.OK]
        assert await bus.ack(handles[0]) == [pb.OK]
        await bus.sleep(60)
        assert await bus.ack(handles[0]) == [pb.OK]
        progress = bus.context.progress.get("G", "T", 0)
        assert (progress.committed_offset, progress.in_flight_count) == (2, 0)

    run(scenario)


def test_the_answer_echoes_what_was_acknowledged_in_its_order(run: Run) -> None:
    """Of any queue; what one request names twice is counted once."""

    async def scenario(bus: Any) -> None:
        await bus.topic(queues=2)
        await bus.send(b"1", b"2", b"3" * 200)
        handles = (await bus.receive()).handles
        names = [*zip(handles, ("m1", "m2", "m" * 200), strict=True), (handles[0], "")]
        request = pb.AckMessageRequest()
        request.group.name, request.topic.name = "G", "T"
        for handle, message_id in names:
            request.entries.add(receipt_handle=handle, message_id=message_id)
        response = await bus.unary("AckMessage", request)
        assert (response.status.code, response.status.message) == (pb.OK, "OK")
        assert [(entry.receipt_handle, entry.message_id) for entry in response.entries] == names
        assert {entry.status.code for entry in response.entries} == {pb.OK}
        assert bus.context.counters.acknowledged["G", "T"] == 3
        assert [progress.in_flight_count for _, progress in bus.context.progress.items()] == [0, 0]

    run(scenario)


def test_each_entry_has_its_own_result(run: Run) -> None:
    """And the response says when they differ; each echoes what was asked."""

    async def scenario(bus: Any) -> None:
        await bus.send(b"1")
        (handle,) = (await bus.receive()).handles
        request = pb.AckMessageRequest()
        request.group.name, request.topic.name = "G", "T"
        request.entries.add(receipt_handle=handle, message_id="m1")
        request.entries.add(receipt_handle="garbage", message_id="m2")
        response = await bus.unary("AckMessage", request)
        assert response.status.code == pb.MULTIPLE_RESULTS
        assert [entry.message_id for entry in response.entries] == ["m1", "m2"]
        assert [entry.receipt_handle for entry in response.entries] == [handle, "garbage"]
        assert [entry.status.code for entry in response.entries] == [
            *(pb.OK, pb.INVALID_RECEIPT_HANDLE)
        ]

    run(scenario)


def test_handles_that_name_nothing_delivered_are_invalid(run: Run) -> None:
    """Made up, of another broker, queue, group or topic, or not delivered yet."""

    async def scenario(bus: Any) -> None:
        await bus.topic("Other")
        await bus.send(b"1", b"2")
        (handle,) = (await bus.receive(batch=1)).handles
        wrong = [
            "",
            replaced(handle, 5, "broker-b"),
            replaced(handle, 6, 7),
            replaced(handle, 7, 1),
            replaced(handle, 7, 2**62),
        ]
        assert set(await bus.ack(*wrong)) == {pb.INVALID_RECEIPT_HANDLE}
        assert await bus.ack(handle, group="Nobody") == [pb.INVALID_RECEIPT_HANDLE]
        assert await bus.ack(handle, topic="Other") == [pb.INVALID_RECEIPT_HANDLE]
        assert await bus.ack(handle) == [pb.OK]

    run(scenario)


def test_an_expired_handle_is_invalid_even_before_the_redelivery(run: Run) -> None:
    """Whoever holds it must not work on the message any longer."""

    async def scenario(bus: Any) -> None:
        await bus.send(b"1")
        (handle,) = (await bus.receive(invisible_s=10)).handles
        await bus.sleep(10)
        assert await bus.ack(handle) == [pb.INVALID_RECEIPT_HANDLE]
        assert (await bus.receive()).bodies == [b"1"]

    run(scenario)


def test_a_changed_time_counts_from_the_change_and_gives_a_new_handle(run: Run) -> None:
    """A receiver that waits gets the message when the new time is over."""

    async def scenario(bus: Any) -> None:
        await bus.send(b"1")
        (handle,) = (await bus.receive(invisible_s=60)).handles
        async with bus.receiving() as results:
            await bus.sleep(1)
            response = await bus.change(handle, 4)
            assert response.status.code == pb.OK
            assert response.receipt_handle != handle
            await bus.sleep(3.9)
            assert not results
            await bus.sleep(0.2)
            assert results[0].bodies == [b"1"]
        assert results[0].messages[0].system_properties.delivery_attempt == 2

    run(scenario)


def test_the_old_handle_acknowledges_until_its_own_time_is_over(run: Run) -> None:
    """A client may have lost the answer that brought the new one."""

    async def scenario(bus: Any) -> None:
        await bus.send(b"1", b"2")
        first, second = (await bus.receive(invisible_s=10)).handles
        await bus.sleep(1)
        for handle in (first, second):
            await bus.change(handle, 3600)
        await bus.sleep(8)
        assert await bus.ack(first) == [pb.OK]
        await bus.sleep(2)
        assert await bus.ack(second) == [pb.INVALID_RECEIPT_HANDLE]
        assert bus.context.progress.get("G", "T", 0).committed_offset == 1

    run(scenario)


def test_the_latest_handle_is_good_as_long_as_the_changed_time(run: Run) -> None:
    """However short the first time was."""

    async def scenario(bus: Any) -> None:
        await bus.send(b"1")
        (handle,) = (await bus.receive(invisible_s=2)).handles
        await bus.sleep(1)
        changed = (await bus.change(handle, 3600)).receipt_handle
        await bus.sleep(3000)
        assert await bus.ack(changed) == [pb.OK]

    run(scenario)


@pytest.mark.parametrize(("suspend", "attempt"), [(True, 1), (False, 2)])
def test_a_message_given_back_at_once_is_there_at_once(
    run: Run, attempt: int, *, suspend: bool
) -> None:
    """A time of zero is legal here; a suspended delivery does not count as an attempt."""

    async def scenario(bus: Any) -> None:
        await bus.send(b"1")
        (handle,) = (await bus.receive()).handles
        assert (await bus.change(handle, 0, suspend=suspend)).status.code == pb.OK
        (message,) = (await bus.receive()).messages
        assert message.system_properties.delivery_attempt == attempt

    run(scenario)


def test_a_change_is_refused_for_what_is_not_in_flight_and_for_illegal_times(run: Run) -> None:
    """An acknowledged message must not come back."""

    async def scenario(bus: Any) -> None:
        await bus.send(b"1")
        (handle,) = (await bus.receive()).handles
        for seconds in (-1, 12 * 3600 + 1):
            response = await bus.change(handle, seconds)
            assert response.status.code == pb.ILLEGAL_INVISIBLE_TIME
        assert (await bus.change("x", 1)).status.code == pb.INVALID_RECEIPT_HANDLE
        assert (await bus.change(handle, 1, topic="")).status.code == pb.ILLEGAL_TOPIC
        assert (await bus.change(handle, 1, group="")).status.code == pb.ILLEGAL_CONSUMER_GROUP
        await bus.ack(handle)
        assert (await bus.change(handle, 1)).status.code == pb.INVALID_RECEIPT_HANDLE

    run(scenario)


def test_more_entries_than_one_request_may_have_are_refused_at_once(run: Run) -> None:
    """Nobody else is served while they are looked up."""

    async def scenario(bus: Any) -> None:
        request = pb.AckMessageRequest()
        request.group.name, request.topic.name = "G", "T"
        for _ in range(ENTRIES_MAX + 1):
            request.entries.add(receipt_handle="x")
        assert (await bus.unary("AckMessage", request)).status.code == pb.BAD_REQUEST
        del request.entries[-1]
        response = await bus.unary("AckMessage", request)
        assert response.status.code == pb.INVALID_RECEIPT_HANDLE
        assert len(response.entries) == ENTRIES_MAX

    run(scenario)


def test_a_handle_of_a_lost_message_does_not_acknowledge_the_one_in_its_place(run: Run) -> None:
    """A power cut, or a topic that was made anew, gives its queue offset to another message."""

    async def scenario(bus: Any) -> None:
        await bus.send(b"1")
        (handle,) = (await bus.receive()).handles
        older = replaced(handle, 1, bus.now_ms() - 1)
        assert await bus.ack(replaced(older, 8, 77777)) == [pb.INVALID_RECEIPT_HANDLE]
        assert bus.context.progress.get("G", "T", 0).in_flight_count == 1
        assert await bus.ack(older) == [pb.OK]

    run(scenario)


@pytest.mark.parametrize(
    ("ms", "code"),
    [
        (-1, pb.ILLEGAL_INVISIBLE_TIME),
        (0, pb.OK),
        (12 * 3600 * 1000, pb.OK),
        (12 * 3600 * 1000 + 1, pb.ILLEGAL_INVISIBLE_TIME),
    ],
)
def test_a_message_is_invisible_for_up_to_twelve_hours(run: Run, ms: int, code: pb.Code) -> None:
    """And not at all with 0: its consumer gives it back."""

    async def scenario(bus: Any) -> None:
        await bus.send(b"1")
        (handle,) = (await bus.receive()).handles
        response = await bus.change(handle, ms / 1000)
        assert response.status.code == code
        if code == pb.OK:
            await bus.sleep(ms / 1000 - 0.001 if ms else 0)
            assert bool(ms) == (await bus.ack(response.receipt_handle) == [pb.OK])

    run(scenario)


def test_the_handle_of_a_nack_is_not_good_for_the_delivery_of_the_same_millisecond(
    run: Run,
) -> None:
    """Who gave a message back at once must not acknowledge it for whoever has it then."""

    async def scenario(bus: Any) -> None:
        await bus.send(b"1")
        (handle,) = (await bus.receive()).handles
        await bus.sleep(1)
        given_back = (await bus.change(handle, 0)).receipt_handle
        (latest,) = (await bus.receive()).handles
        await bus.sleep(0.01)
        assert await bus.ack(given_back) == [pb.INVALID_RECEIPT_HANDLE]
        assert await bus.ack(latest) == [pb.OK]

    run(scenario)
