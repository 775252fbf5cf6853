"""PullMessage: whoever keeps his own offsets gets what is there, and is told where to go on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import get_ident
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from commitbus.broker.consuming import delivering, queue_watch
from commitbus.broker.messaging.filters import prepare_filter
from commitbus.broker.receiving import allowance, scan
from commitbus.broker.rpc.call import Response, RpcError, StatusCode
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from commitbus.broker.store import store_reader
from commitbus.commitlog.errors import OffsetOutOfRangeError
from commitbus.commitlog.log_reader import LogReader
from commitbus.commitlog.record_format import encode_properties
from commitbus.commitlog.types import Host, OutgoingMessage
from tests.broker.messaging.bus import make_all_reads_cold, noted_threads
from tests.broker.messaging.pulls import Pulled, pull, request_of

Run = Callable[..., None]


async def pull_all(bus: Any, **changes: Any) -> list[bytes]:
    """Return what a consumer sees that begins at 0 and stops at the end of the queue."""
    bodies: list[bytes] = []
    offset = 0
    while offset < bus.context.store.max_offset("T", changes.get("queue_id", 0)):
        pulled = await pull(bus, offset, **changes)
        bodies += pulled.bodies
        assert pulled.next_offset is not None
        assert pulled.next_offset > offset
        offset = pulled.next_offset
    return bodies


def test_messages_come_from_the_offset_on_and_may_come_again(run: Run) -> None:
    """Nothing is put in flight, and the group's progress is where it was."""

    async def scenario(bus: Any) -> None:
        await bus.send(b"0", b"1", b"2", b"3")
        for _ in range(2):
            pulled = await pull(bus, 1, batch=2)
            assert (pulled.code, pulled.bodies, pulled.next_offset) == (pb.OK, [b"1", b"2"], 3)
            assert pulled.kinds == ["status", "message", "message", "next_offset"]
        assert bus.context.progress.get("G", "T", 0) is None
        assert bus.context.consuming.delivering.total_bytes == 0
        assert (await bus.receive()).bodies == [b"0", b"1", b"2", b"3"]

    run(scenario)


def test_a_pulled_message_is_that_of_a_receive_without_what_is_of_a_delivery(run: Run) -> None:
    """There is nothing to acknowledge and no attempt is counted."""

    async def scenario(bus: Any) -> None:
        await bus.send(b"body", tag="A", colour="red")
        (pulled,) = (await pull(bus)).messages
        assert not pulled.system_properties.HasField("receipt_handle")
        assert not pulled.system_properties.HasField("delivery_attempt")
        (received,) = (await bus.receive()).messages
        received.system_properties.ClearField("receipt_handle")
        received.system_properties.ClearField("delivery_attempt")
        assert pulled == received

    run(scenario)


@pytest.mark.parametrize(("offset", "nearest"), [(-1, 0), (3, 2), (2**62, 2)])
def test_an_offset_that_is_none_of_the_queue_is_answered_with_the_nearest(
    run: Run, offset: int, nearest: int
) -> None:
    """At once: there is nothing to wait for."""

    async def scenario(bus: Any) -> None:
        await bus.send(b"0", b"1")
        begin_s = trio.current_time()
        pulled = await pull(bus, offset)
        assert (pulled.code, pulled.next_offset) == (pb.ILLEGAL_OFFSET, nearest)
        assert trio.current_time() == begin_s

    run(scenario)


def test_what_was_deleted_is_no_offset_any_more(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever was away for too long learns where the queue begins now."""

    async def scenario(bus: Any) -> None:
        await bus.send(b"0", b"1", b"2")
        monkeypatch.setattr(bus.context.store, "min_offset", lambda *_: 1)
        pulled = await pull(bus)
        assert (pulled.code, pulled.next_offset) == (pb.ILLEGAL_OFFSET, 1)

    run(scenario)


async def start(nursery: trio.Nursery, bus: Any, offset: int = 0, **changes: Any) -> Pulled:
    """Begin to pull, and return what will be filled."""
    pulled, request = Pulled(), request_of(offset, **changes)
    # No other thread may be at work while the clock is moved.
    await prepare_filter(request.filter_expression)
    nursery.start_soon(bus.stream, "PullMessage", request, pulled.take)
    await trio.testing.wait_all_tasks_blocked()
    return pulled


async def until(condition: Callable[[], bool]) -> None:
    """Let what the store's threads have set off happen."""
    for _ in range(2000):
        if condition():
            return
        await trio.testing.wait_all_tasks_blocked(0.005)
    pytest.fail("it never came")


def put(bus: Any, body: bytes, *, queue_id: int = 0, **properties: str) -> None:
    """Store a message in a queue of choice."""
    message = OutgoingMessage(
        "T", queue_id, body, encode_properties(properties), 0, Host(b"\x7f\x00\x00\x01", 1)
    )
    bus.context.store.put(message)
    bus.settle()


def test_at_the_end_it_waits_for_the_next_message(run: Run) -> None:
    """Of its own queue; and everybody gets it who waits for it."""

    async def scenario(bus: Any) -> None:
        await bus.topic("T", queues=2)
        async with trio.open_nursery() as nursery:
            waiting = [await start(nursery, bus, queue_id=number % 2) for number in range(4)]
            put(bus, b"0")
            await until(lambda: all(waiting[number].bodies for number in (0, 2)))
            assert [pulled.bodies for pulled in waiting] == [[b"0"], [], [b"0"], []]
            put(bus, b"1", queue_id=1)
        assert [pulled.bodies for pulled in waiting] == [[b"0"], [b"1"], [b"0"], [b"1"]]
        assert {pulled.next_offset for pulled in waiting} == {1}

    run(scenario)


def test_nothing_comes_at_the_end_of_its_time(run: Run) -> None:
    """Not before, though messages arrive that its filter does not let pass."""

    async def scenario(bus: Any) -> None:
        async with trio.open_nursery() as nursery:
            by_tag = await start(nursery, bus, tags="A")
            by_sql = await start(nursery, bus, sql="colour = 'red'")
            for _ in range(4):
                await bus.sleep(1.2)
                await bus.send(b"other", tag="B", colour="green")
            await trio.testing.wait_all_tasks_blocked()
            assert by_tag.code == by_sql.code == -1
            await bus.sleep(0.3)
            for pulled in (by_tag, by_sql):
                assert (pulled.code, pulled.next_offset) == (pb.MESSAGE_NOT_FOUND, 4)

    run(scenario)


def test_a_message_between_the_look_and_the_wait_is_not_missed(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It arrives when nobody was there yet to be woken."""

    async def scenario(bus: Any) -> None:
        watch = bus.context.consuming.watch
        add = watch.add

        def late(*arguments: Any) -> None:
            put(bus, b"late")
            add(*arguments)

        monkeypatch.setattr(watch, "add", late)
        assert (await pull(bus)).bodies == [b"late"]

    run(scenario)


@pytest.mark.parametrize("batch", [0, -1])
def test_a_batch_of_nothing_is_refused(run: Run, batch: int) -> None:
    """It could only wait; and more than 32 are 32."""

    async def scenario(bus: Any) -> None:
        await bus.send(*(b"%d" % number for number in range(40)))
        assert (await pull(bus, batch=batch)).code == pb.BAD_REQUEST
        pulled = await pull(bus, batch=1000)
        assert (len(pulled.messages), pulled.next_offset) == (32, 32)

    run(scenario)


def test_who_may_pull_and_from_where(run: Run) -> None:
    """A group is made by its first pull; the rest must be there."""

    async def scenario(bus: Any) -> None:
        await bus.send(b"0")
        await bus.topic("Sealed", perm=2)
        await bus.group("Idle", consume_enable=False)
        assert (await pull(bus, group="New")).bodies == [b"0"]
        assert bus.context.metadata.group("New") is not None
        for changes, code in (
            ({"topic": "Other"}, pb.TOPIC_NOT_FOUND),
            ({"topic": "Sealed"}, pb.FORBIDDEN),
            ({"group": "Idle"}, pb.FORBIDDEN),
            ({"queue_id": 1}, pb.BAD_REQUEST),
            ({"sql": "colour LIKE 'r%'"}, pb.ILLEGAL_FILTER_EXPRESSION),
            ({"group": "a b"}, pb.ILLEGAL_CONSUMER_GROUP),
        ):
            assert (await pull(bus, **changes)).code == code, changes

    run(scenario)


def test_a_topic_that_is_deleted_ends_the_wait(run: Run) -> None:
    """Its messages will never come."""

    async def scenario(bus: Any) -> None:
        async with trio.open_nursery() as nursery:
            pulled = await start(nursery, bus)
            async with bus.context.metadata.topic_deleted("T"):
                bus.context.store.delete_topic("T")
            bus.context.broker.forget_topic("T")
        assert pulled.code == pb.TOPIC_NOT_FOUND

    run(scenario)


def test_a_group_that_is_deleted_ends_the_wait(run: Run) -> None:
    """Only its own."""

    async def scenario(bus: Any) -> None:
        async with trio.open_nursery() as nursery:
            pulled, other = [await start(nursery, bus, group=group) for group in ("G", "H")]
            await bus.context.metadata.delete_groups(("G",))
            bus.context.broker.forget_group("G")
            await trio.testing.wait_all_tasks_blocked()
            assert (pulled.code, pulled.next_offset) == (pb.CONSUMER_GROUP_NOT_FOUND, 0)
            assert other.code == -1
            await bus.send(b"0")
        assert other.bodies == [b"0"]

    run(scenario)


def test_a_client_that_goes_leaves_nothing_behind(run: Run) -> None:
    """Nobody is woken for it any more."""

    async def scenario(bus: Any) -> None:
        async with trio.open_nursery() as nursery:
            await start(nursery, bus)
            client = bus.context.clients.get("client")
            assert (client.streams, len(bus.context.consuming.watch)) == (1, 1)
            nursery.cancel_scope.cancel()
        assert (client.streams, len(bus.context.consuming.watch)) == (0, 0)

    run(scenario)


def test_not_everybody_may_wait(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each message would have to wake all of them."""
    monkeypatch.setattr(queue_watch, "WATCHERS_MAX", 1)

    async def scenario(bus: Any) -> None:
        async with trio.open_nursery() as nursery:
            first = await start(nursery, bus)
            assert (await pull(bus)).code == pb.TOO_MANY_REQUESTS
            await bus.send(b"0")
        assert first.bodies == [b"0"]

    run(scenario)


def test_an_answer_has_a_bounded_number_of_bytes(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends before the message that would be too much; one always fits."""
    monkeypatch.setattr(allowance, "BATCH_BYTES_MAX", 3000)

    async def scenario(bus: Any) -> None:
        sizes = [1000, 1000, 1000, 9000]
        await bus.send(*(bytes([size // 1000]) * size for size in sizes))
        answers = [await pull(bus, offset) for offset in (0, 2, 3)]
        assert [[len(body) for body in answer.bodies] for answer in answers] == [
            [1000, 1000],
            [1000],
            [9000],
        ]
        assert [answer.next_offset for answer in answers] == [2, 3, 4]

    run(scenario)


def test_slow_readers_hold_a_bounded_number_of_bytes_for_a_bounded_time(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others are told to come back."""
    monkeypatch.setattr(delivering, "DELIVERING_BYTES_MAX", 100)

    async def scenario(bus: Any) -> None:
        await bus.send(b"a" * 100)

        async def never(*_: Response) -> None:
            await trio.sleep_forever()

        async def read_slowly() -> None:
            with pytest.raises(RpcError) as caught:
                await bus.stream("PullMessage", request_of(), never)
            assert caught.value.code is StatusCode.DEADLINE_EXCEEDED

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_slowly)
            await trio.testing.wait_all_tasks_blocked()
            assert (await pull(bus)).code == pb.TOO_MANY_REQUESTS
            await bus.sleep(60.1)
        assert bus.context.consuming.delivering.total_bytes == 0
        assert (await pull(bus)).code == pb.OK

    run(scenario)


def test_what_cannot_be_read_is_passed_over(
    run: Run, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the same offset again the consumer would get no further; the log tells."""

    async def scenario(bus: Any) -> None:
        await bus.send(b"deleted", b"the damaged one", b"2")
        store = bus.context.store
        log_file = store.directory / "commitlog" / f"{0:020}"
        with log_file.open("r+b") as file:
            file.seek(file.read(4096).index(b"the damaged one"))
            file.write(b"T")
        read = store.read_cached

        def unless_deleted(physical_offset: int, size_bytes: int) -> Any:
            if physical_offset == 0:
                raise OffsetOutOfRangeError("physical offset", 0, 1, 2)
            return read(physical_offset, size_bytes)

        monkeypatch.setattr(store, "read_cached", unless_deleted)
        for offset in (0, 1, 2):
            pulled = await pull(bus, offset)
            assert (pulled.bodies, pulled.next_offset) == ([b"2"], 3)

    run(scenario)
    assert "message unreadable" in caplog.text


def test_cold_records_are_read_on_another_thread(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have to come from the disk, and the trio thread does not wait for disks."""
    make_all_reads_cold(monkeypatch)
    threads = noted_threads(monkeypatch, LogReader, "read_bytes")

    async def scenario(bus: Any) -> None:
        await bus.send(b"1", colour="red")
        await bus.send(b"2", colour="green")
        assert (await pull(bus)).bodies == [b"1", b"2"]
        assert (await pull(bus, sql="colour = 'green'")).bodies == [b"2"]

    run(scenario)
    assert threads
    assert get_ident() not in threads


def test_two_that_broadcast_to_themselves_see_everything(run: Run) -> None:
    """Each pulls every queue and keeps its own offsets; the group has none."""

    async def scenario(bus: Any) -> None:
        await bus.topic("T", queues=4)
        await bus.send(*(b"%d" % number for number in range(100)))
        seen = dict[str, list[bytes]](one=[], other=[])

        async def consume(client_id: str) -> None:
            for queue_id in range(4):
                seen[client_id] += await pull_all(bus, queue_id=queue_id, batch=7)

        async with trio.open_nursery() as nursery:
            for client_id in seen:
                nursery.start_soon(consume, client_id)
        expected = sorted(b"%d" % number for number in range(100))
        assert sorted(seen["one"]) == sorted(seen["other"]) == expected
        assert bus.context.progress.get("G", "T", 0) is None

    run(scenario)


def test_a_pull_consumer_is_welcome(run: Run) -> None:
    """RocketMQ refuses the client type."""

    async def scenario(bus: Any) -> None:
        command = pb.TelemetryCommand()
        command.settings.client_type = pb.PULL_CONSUMER
        command.settings.subscription.group.name = "G"
        entry = command.settings.subscription.subscriptions.add()
        entry.topic.name = "T"
        entry.expression.type, entry.expression.expression = pb.SQL, "colour = 'red'"
        (answer,) = await bus.telemetry(command)
        assert answer.status.code == pb.OK
        assert bus.context.clients.get("client").kind == pb.PULL_CONSUMER

    run(scenario)


COLOURS = ("red", "green", "blue", "Aa", "BB")
"""The last two have the same hash."""


def test_any_filter_and_batch_give_exactly_what_was_asked_for(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In order, each once, however small the steps of the scan are."""

    async def scenario(bus: Any) -> None:
        token = trio.lowlevel.current_trio_token()
        stored: list[str] = []

        @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
        @given(
            more=st.lists(st.sampled_from(COLOURS), max_size=20),
            wanted=st.lists(st.sampled_from(COLOURS), min_size=1, max_size=3),
            by_sql=st.booleans(),
            batch=st.integers(1, 40),
            step=st.integers(1, 20),
        )
        def pulls(
            more: list[str], wanted: list[str], *, by_sql: bool, batch: int, step: int
        ) -> None:
            for colour in more:
                put(bus, b"%d" % len(stored), TAGS=colour)
                stored.append(colour)
            monkeypatch.setattr(scan, "STEP_UNITS", step)
            monkeypatch.setattr(store_reader, "SCAN_UNITS_MAX", step)
            names = ", ".join(f"'{colour}'" for colour in wanted)
            changes = {"sql": f"TAGS IN ({names})"} if by_sql else {"tags": " || ".join(wanted)}
            found = trio.from_thread.run(
                partial(pull_all, bus, batch=batch, **changes), trio_token=token
            )
            expected = [number for number, colour in enumerate(stored) if colour in wanted]
            assert [int(body) for body in found] == expected

        # Who finds nothing more at the end of the queue waits for its polling time.
        bus.clock.rate = 1000
        await trio.to_thread.run_sync(pulls)

    run(scenario)
