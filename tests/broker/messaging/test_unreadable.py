"""Messages that the disk does not give back: what becomes of them, and that all others go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from commitbus.broker.receiving.undelivered import UNREADABLE_ATTEMPTS_MAX
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from tests.broker.bad_blocks import BadBlocks
from tests.broker.messaging import fifo_group
from tests.broker.messaging.bus import work_in_turn
from tests.broker.messaging.pulls import pull
from tests.broker.messaging.test_fifo_message_groups import BY_GROUP
from tests.broker.settling.test_dead_letters import forward

Run = Callable[..., None]
BODIES = (b"0", b"1", b"2", b"3")


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> BadBlocks:
    return BadBlocks(monkeypatch)


@pytest.fixture(params=["record", "unit"])
def spoil(
    blocks: BadBlocks, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Any, str, int], None]:
    """Make a message unreadable, by its record or by its unit in the queue."""
    work_in_turn(monkeypatch)

    def spoil_one(bus: Any, topic: str, queue_offset: int) -> None:
        if request.param == "record":
            blocks.add_record(bus.context.store, topic, queue_offset)
        else:
            blocks.add_unit(topic, queue_offset)

    return spoil_one


Spoil = Callable[[Any, str, int], None]


async def receive_all(bus: Any, **options: Any) -> list[bytes]:
    """Receive until there is nothing, and acknowledge it."""
    found: list[bytes] = []
    while True:
        async with bus.receiving(polling_s=5, **options) as results:
            await bus.sleep(5.1)
        (received,) = results
        if not received.bodies:
            return found
        names = {key: options[key] for key in ("topic", "group") if key in options}
        await bus.ack(*received.handles, **names)
        found += received.bodies


@pytest.mark.parametrize(
    "options",
    [{}, {"batch": 1}, {"tags": "t"}, {"sql": "TAGS = 't'"}, {"sql": "1 = 1", "batch": 1}],
)
def test_its_neighbours_are_delivered_and_it_comes_once_it_can_be_read(
    run: Run,
    spoil: Spoil,
    blocks: BadBlocks,
    caplog: pytest.LogCaptureFixture,
    options: dict[str, Any],
) -> None:
    """Not before its invisible time is over. Sends go on."""

    async def scenario(bus: Any) -> None:
        await bus.send(*BODIES, tag="t")
        spoil(bus, "T", 1)
        assert sorted(await receive_all(bus, **options)) == [b"0", b"2", b"3"]
        progress = bus.context.progress.get("G", "T", 0)
        assert list(progress.in_flight) == [1]
        await bus.send(b"4", tag="t")
        blocks.repair()
        assert await receive_all(bus, **options) == [b"4"]
        await bus.sleep(31)
        received = await bus.receive(**options)
        assert (received.bodies, fifo_group.attempts(received)) == ([b"1"], [2])

    run(scenario)
    assert "message unreadable" in caplog.text
    reasons = [getattr(record, "reason", "") for record in caplog.records]
    assert any("at position" in reason for reason in reasons), reasons


def test_after_the_last_attempt_it_is_given_up(
    run: Run, spoil: Spoil, caplog: pytest.LogCaptureFixture
) -> None:
    """It cannot become a dead letter; one line of the log is its end, and names its place."""

    async def scenario(bus: Any) -> None:
        await bus.group("G", retry_max_times=1)
        await bus.send(*BODIES)
        spoil(bus, "T", 1)
        assert await receive_all(bus) == [b"0", b"2", b"3"]
        for _ in range(2):
            assert bus.context.progress.get("G", "T", 0).committed_offset == 1
            await bus.sleep(31)
            assert await receive_all(bus) == []
        assert bus.context.progress.get("G", "T", 0).committed_offset == 4
        assert bus.context.store.max_offset("%DLQ%G", 0) == 0

    run(scenario)
    (record,) = [record for record in caplog.records if record.message == "message given up"]
    assert vars(record)["queue_offset"] == 1
    assert "at position" in vars(record)["reason"]


def test_a_group_that_tries_for_ever_gives_it_up_as_well(
    run: Run, spoil: Spoil, caplog: pytest.LogCaptureFixture
) -> None:
    """Its consumers could do nothing about it, and a FIFO group would stand still."""

    async def scenario(bus: Any) -> None:
        await bus.group("G", retry_max_times=-1)
        await bus.send(*BODIES)
        spoil(bus, "T", 1)
        for _ in range(UNREADABLE_ATTEMPTS_MAX):
            await receive_all(bus)
            await bus.sleep(31)
        assert bus.context.progress.get("G", "T", 0).committed_offset == 4

    run(scenario)
    assert "message given up" in caplog.text


def test_renewal_does_not_keep_it(run: Run, spoil: Spoil, blocks: BadBlocks) -> None:
    """Its receiver lives, but never had it."""

    async def scenario(bus: Any) -> None:
        await bus.send(*BODIES)
        spoil(bus, "T", 1)
        assert await receive_all(bus, auto_renew=True, invisible_s=None) == [b"0", b"2", b"3"]
        blocks.repair()
        for _ in range(13):
            await bus.unary("Heartbeat", pb.HeartbeatRequest(client_type=pb.PUSH_CONSUMER))
            await bus.sleep(5)
        assert (await bus.receive()).bodies == [b"1"]

    run(scenario)


@pytest.mark.parametrize("attempt_id", ["", "attempt"])
def test_a_fifo_queue_stays_in_order_and_goes_on_in_the_end(
    run: Run, spoil: Spoil, attempt_id: str
) -> None:
    """No message overtakes it while it is retried, and the ones behind it use up no attempt."""

    async def scenario(bus: Any) -> None:
        await fifo_group.set_up(bus, *BODIES, retry_max_times=1)
        spoil(bus, "F", 1)
        names = {"topic": "F", "group": "O", "attempt_id": attempt_id}
        assert await receive_all(bus, **names) == [b"0"]
        await bus.sleep(31)
        assert await receive_all(bus, **names) == []
        await bus.sleep(31)
        received = await fifo_group.receive(bus)
        assert (received.bodies, fifo_group.attempts(received)) == ([b"2", b"3"], [1, 1])

    run(scenario)


def test_a_fifo_message_comes_in_its_place_once_it_can_be_read(
    run: Run, spoil: Spoil, blocks: BadBlocks
) -> None:
    """It was in flight, and no message behind it was."""

    async def scenario(bus: Any) -> None:
        await fifo_group.set_up(bus, *BODIES)
        spoil(bus, "F", 1)
        assert await receive_all(bus, topic="F", group="O") == [b"0"]
        blocks.repair()
        await bus.sleep(31)
        received = await fifo_group.receive(bus)
        assert (received.bodies, fifo_group.attempts(received)) == ([b"1", b"2", b"3"], [2, 1, 1])

    run(scenario)


def test_other_message_groups_pass_it(run: Run, spoil: Spoil) -> None:
    async def scenario(bus: Any) -> None:
        await fifo_group.set_up(bus, b"a0", retry_max_times=1, attributes=BY_GROUP)
        await fifo_group.send(bus, b"b0", message_group="b")
        await fifo_group.send(bus, b"c0", b"c1", message_group="c")
        spoil(bus, "F", 1)
        assert await receive_all(bus, topic="F", group="O") == [b"a0", b"c0", b"c1"]
        for _ in range(2):
            await bus.sleep(31)
            assert await receive_all(bus, topic="F", group="O") == []
        assert bus.context.progress.get("O", "F", 0).committed_offset == 4

    run(scenario)


def test_a_pull_of_it_is_told_and_where_to_go_on(run: Run, spoil: Spoil) -> None:
    """The messages before it come first; the client may ask for it again."""

    async def scenario(bus: Any) -> None:
        await bus.send(*BODIES)
        spoil(bus, "T", 1)
        pulled = await pull(bus, 0)
        assert (pulled.code, pulled.bodies, pulled.next_offset) == (pb.OK, [b"0"], 1)
        for _ in range(2):
            pulled = await pull(bus, 1)
            assert (pulled.code, pulled.next_offset) == (pb.INTERNAL_SERVER_ERROR, 2)
        pulled = await pull(bus, 2)
        assert (pulled.bodies, pulled.next_offset) == ([b"2", b"3"], 4)

    run(scenario)


def test_a_query_by_time_that_needs_it_is_told(run: Run, spoil: Spoil) -> None:
    async def scenario(bus: Any) -> None:
        await bus.send(*BODIES)
        for offset in range(4):
            spoil(bus, "T", offset)
        request = pb.QueryOffsetRequest(query_offset_policy=pb.TIMESTAMP)
        request.message_queue.topic.name = "T"
        request.timestamp.seconds = 1
        response = await bus.unary("QueryOffset", request)
        assert response.status.code == pb.INTERNAL_SERVER_ERROR
        assert "at position" in response.status.message
        await bus.send(b"4")

    run(scenario)


def test_a_consumer_that_gives_it_up_is_told_and_keeps_it(
    run: Run, spoil: Spoil, blocks: BadBlocks
) -> None:
    """The page was in memory when it was delivered."""

    async def scenario(bus: Any) -> None:
        await bus.send(*BODIES)
        received = await bus.receive()
        spoil(bus, "T", 1)
        codes = [await forward(bus, handle) for handle in received.handles]
        assert codes == [pb.OK, pb.INTERNAL_SERVER_ERROR, pb.OK, pb.OK]
        blocks.repair()
        assert await forward(bus, received.handles[1]) == pb.OK
        assert bus.context.progress.get("G", "T", 0).committed_offset == 4

    run(scenario)


def test_a_handle_that_cannot_be_checked_fails_alone(
    run: Run, blocks: BadBlocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older handle is compared with the message's place."""
    work_in_turn(monkeypatch)

    async def scenario(bus: Any) -> None:
        await bus.send(b"0", b"1")
        received = await bus.receive()
        for handle in received.handles:
            await bus.change(handle, 20)
        blocks.add_unit("T", 0)
        codes = await bus.ack(*received.handles)
        assert codes == [pb.INTERNAL_SERVER_ERROR, pb.OK]
        response = await bus.change(received.handles[0], 20)
        assert response.status.code == pb.INTERNAL_SERVER_ERROR
        blocks.repair()
        assert await bus.ack(received.handles[0]) == [pb.OK]

    run(scenario)
