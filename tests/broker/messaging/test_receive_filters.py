"""ReceiveMessage with filters: what is not wanted is passed over, a little at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from commitbus.broker.filters import sql_filter, tag_filter
from commitbus.broker.messaging.filters import prepare_filter
from commitbus.broker.receiving import scan
from commitbus.broker.rpc.call import RpcError, StatusCode
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from tests.broker.messaging.bus import make_all_reads_cold

Run = Callable[..., None]
RED = "colour = 'red'"


def prepared(sql: str = RED) -> None:
    """Compile a filter now: while the clock is moved no other thread may be at work."""
    trio.run(prepare_filter, pb.FilterExpression(type=pb.SQL, expression=sql))


def test_an_sql_filter_skips_the_others_for_good(run: Run) -> None:
    """They are never in flight, and count as consumed by the group."""

    async def scenario(bus: Any) -> None:
        await bus.send(b"1", colour="red", size="7")
        await bus.send(b"2", colour="green", size="7")
        await bus.send(b"3", colour="red")
        await bus.send(b"4", tag="A", colour="red", size="8")
        received = await bus.receive(sql="colour = 'red' AND (size > 7 OR size IS NULL)")
        assert received.bodies == [b"3", b"4"]
        assert list(bus.context.progress.get("G", "T", 0).in_flight) == [2, 3]

    run(scenario)


@pytest.mark.parametrize("length", [2, 64, 66, 16_384, 16_386])
def test_tags_without_a_tag_are_refused_once(run: Run, length: int) -> None:
    """Short or long: a refusal is in no cache, and must not be looked for again and again."""

    async def scenario(bus: Any) -> None:
        with trio.fail_after(5):
            received = await bus.receive(tags="|" * length)
        assert received.status.code == pb.ILLEGAL_FILTER_EXPRESSION

    run(scenario)


@pytest.mark.parametrize("tags", [" " * 80, "*" + " " * 80])
def test_blanks_around_everything_need_no_thread(run: Run, tags: str) -> None:
    """However many."""

    async def scenario(bus: Any) -> None:
        await bus.send(b"1")
        assert tag_filter.is_quick(tags)
        assert (await bus.receive(tags=tags)).bodies == [b"1"]

    run(scenario)


@pytest.mark.parametrize("text", ["", "colour LIKE 'r%'", "a = "])
def test_bad_sql_is_refused_when_announced_and_when_used(run: Run, text: str) -> None:
    """With the protocol's own code."""

    async def scenario(bus: Any) -> None:
        received = await bus.receive(sql=text)
        assert received.status.code == pb.ILLEGAL_FILTER_EXPRESSION
        command = pb.TelemetryCommand()
        command.settings.client_type = pb.PUSH_CONSUMER
        command.settings.subscription.group.name = "G"
        entry = command.settings.subscription.subscriptions.add()
        entry.topic.name = "T"
        entry.expression.type, entry.expression.expression = pb.SQL, text
        with pytest.raises(RpcError) as caught:
            await bus.telemetry(command)
        assert caught.value.code is StatusCode.INVALID_ARGUMENT

    run(scenario)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("sql", "colour = 'blue' OR TAGS IN ('blue', 'green', 'azure', 'turquoise', 'navy')"),
        ("tags", " || ".join(["blue", *(f"other-{number}" for number in range(10))])),
    ],
)
def test_filters_that_consumers_wait_with_take_a_bounded_part_of_the_memory(
    run: Run, monkeypatch: pytest.MonkeyPatch, kind: str, text: str
) -> None:
    """A short one always has room; whoever has a long one of his own comes back later."""
    prepared(RED)
    for cache in (sql_filter.cache, tag_filter.cache):
        monkeypatch.setattr(cache, "length_max", -1)

    async def scenario(bus: Any) -> None:
        await bus.send(b"1", colour="red")
        assert (await bus.receive(sql=RED)).bodies == [b"1"]
        assert (await bus.receive(**{kind: text})).status.code == pb.TOO_MANY_REQUESTS
        monkeypatch.undo()
        await bus.send(b"2", tag="blue", colour="blue")
        assert (await bus.receive(**{kind: text})).bodies == [b"2"]

    run(scenario)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Make each step of a scan look at one message and take a second; list where they began."""
    monkeypatch.setattr(scan, "STEP_UNITS", 1)
    step, starts = scan.Scan.step, list[int]()

    async def slow(self: scan.Scan, start: Any, max_count: int) -> scan.Found:
        starts.append(start)
        await trio.sleep(1)
        return await step(self, start, max_count)

    monkeypatch.setattr(scan.Scan, "step", slow)
    return starts


def test_a_long_scan_ends_in_time_and_goes_on_where_it_ended(run: Run, steps: list[int]) -> None:
    """In the next receive, and after a restart as well."""
    prepared()

    async def before(bus: Any) -> None:
        await bus.send(*(b"x" for _ in range(12)), colour="green")
        await bus.send(b"found", colour="red")
        bus.clock.autojump_threshold = 0
        received = await bus.receive(sql=RED, polling_s=5)
        assert received.status.code == pb.MESSAGE_NOT_FOUND
        assert trio.current_time() <= 6
        assert steps == list(range(len(steps)))
        assert bus.context.progress.get("G", "T", 0).committed_offset == len(steps)

    async def after(bus: Any) -> None:
        bus.clock.autojump_threshold = 0
        answers = [await bus.receive(sql=RED, polling_s=5) for _ in range(2)]
        assert [answer.bodies for answer in answers] == [[], [b"found"]]
        assert steps == list(range(13)), "nothing was looked at twice"

    run(before)
    run(after)


def test_what_is_found_does_not_wait_for_the_rest_of_the_scan(run: Run, steps: list[int]) -> None:
    """Of two that wait the second goes on."""
    prepared()

    async def scenario(bus: Any) -> None:
        await bus.send(b"1", colour="red")
        await bus.send(*(b"x" for _ in range(3)), colour="green")
        await bus.send(b"2", colour="red")
        bodies: list[tuple[float, list[bytes]]] = []

        async def receive() -> None:
            received = await bus.receive(sql=RED)
            bodies.append((trio.current_time(), received.bodies))

        bus.clock.autojump_threshold = 0
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(receive)
        assert bodies == [(1, [b"1"]), (5, [b"2"])]
        assert steps == [0, 1, 2, 3, 4], "the group looks at each message once"

    run(scenario)


def test_of_many_scans_one_goes_on_at_a_time(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever else has something to do gets a turn after each step."""
    prepared()
    monkeypatch.setattr(scan, "STEP_UNITS", 1)
    begun = list[int]()
    turns = 0
    step = scan.Scan._by_properties

    def noted(self: scan.Scan, *arguments: Any, **options: Any) -> scan.Found | None:
        begun.append(turns)
        return step(self, *arguments, **options)

    monkeypatch.setattr(scan.Scan, "_by_properties", noted)

    async def scenario(bus: Any) -> None:
        await bus.send(*(b"x" for _ in range(10)), colour="green")
        await bus.send(b"found", colour="red")

        async def count_turns() -> None:
            nonlocal turns
            while True:
                turns += 1
                await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(count_turns)
            async with trio.open_nursery() as groups:
                for group in "ABCD":
                    groups.start_soon(partial(bus.receive, group=group, sql=RED))
            nursery.cancel_scope.cancel()
        assert len(begun) == 4 * 11
        # One in each tick of trio, in which the counter comes before it or after it.
        assert max(Counter(begun).values()) <= 2

    run(scenario)


def test_somebody_else_goes_on_when_a_client_leaves_in_a_scan(run: Run, steps: list[int]) -> None:
    """Who waits had left the queue to the one that is gone."""
    prepared()

    async def scenario(bus: Any) -> None:
        await bus.send(*(b"x" for _ in range(4)), colour="green")
        await bus.send(b"found", colour="red")
        bodies: list[bytes] = []

        async def receive() -> None:
            bodies.extend((await bus.receive(sql=RED)).bodies)

        async with trio.open_nursery() as nursery:
            async with trio.open_nursery() as leaving:
                leaving.start_soon(receive)
                await bus.sleep(1.5)
                assert steps == [0, 1]
                nursery.start_soon(receive)
                await trio.testing.wait_all_tasks_blocked()
                assert steps == [0, 1]
                leaving.cancel_scope.cancel()
            bus.clock.autojump_threshold = 0
        assert bodies == [b"found"]
        assert bus.context.consuming.scanning == set()

    run(scenario)


def test_an_operator_who_resets_a_group_is_heard_in_the_middle_of_a_scan(
    run: Run, steps: list[int]
) -> None:
    """What the step found belongs to where the group is no more."""
    prepared()

    async def scenario(bus: Any) -> None:
        await bus.send(b"0", colour="red")
        await bus.send(*(b"x" for _ in range(4)), colour="green")
        await bus.send(b"5", colour="red")
        bus.context.progress.create("G", "T", 0, 1)
        bodies: list[bytes] = []

        async def receive() -> None:
            bodies.extend((await bus.receive(sql=RED)).bodies)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive)
            await bus.sleep(2.5)
            bus.context.progress.reset("G", "T", 0, 0)
            bus.clock.autojump_threshold = 0
        assert bodies == [b"0"]
        assert steps == [1, 2, 0]

    run(scenario)


@pytest.mark.parametrize("filters", [{"sql": RED}, {"tags": "red"}])
def test_an_arrival_that_is_not_wanted_does_not_end_the_wait(
    run: Run, filters: dict[str, str]
) -> None:
    """The one that is wanted does."""
    prepared()

    async def scenario(bus: Any) -> None:
        async with bus.receiving(**filters) as results:
            for _ in range(5):
                await bus.send(b"other", tag="green", colour="green")
                await bus.sleep(1)
            assert not results
            await bus.send(b"wanted", tag="red", colour="red")
        assert results[0].bodies == [b"wanted"]
        assert trio.current_time() == 5

    run(scenario)


@pytest.mark.parametrize("is_cached", [True, False])
def test_a_filter_finds_its_messages_in_log_files_of_any_number(
    run: Run, monkeypatch: pytest.MonkeyPatch, *, is_cached: bool
) -> None:
    """On another thread where they may have to come from the disk."""
    if not is_cached:
        make_all_reads_cold(monkeypatch)
    prepared()

    async def scenario(bus: Any) -> None:
        await bus.topic("T", queues=2)
        for number in range(40):
            colour = "red" if number % 5 == 0 else "green"
            await bus.send(b"%02d" % number + b"x" * 8000, colour=colour)
        found = []
        for _ in range(20):
            received = await bus.receive(sql=RED, batch=3)
            found += [int(body[:2]) for body in received.bodies]
            if len(found) == 8:
                break
        assert sorted(found) == [0, 5, 10, 15, 20, 25, 30, 35]

    run(scenario, log_file_bytes=128 * 1024, max_body_bytes=8192)


def test_a_damaged_record_is_not_taken_for_one_that_is_not_wanted(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody knows what it was: the group's lag shows it."""
    prepared()

    async def scenario(bus: Any) -> None:
        await bus.send(b"the damaged one", colour="red")
        await bus.send(b"2", colour="red")
        log_file = bus.context.store.directory / "commitlog" / f"{0:020}"
        with log_file.open("r+b") as file:
            file.write(b"\x00\x00\x00\x07")
        received = await bus.receive(sql=RED)
        assert received.bodies == [b"2"]
        await bus.ack(*received.handles)
        assert bus.context.progress.get("G", "T", 0).committed_offset == 0

    run(scenario)
    assert "message unreadable" in caplog.text
