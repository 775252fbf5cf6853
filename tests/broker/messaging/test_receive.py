"""ReceiveMessage: what is handed out, to whom, how long it waits."""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import Any

import pytest
import trio
import trio.testing

from commitbus.broker.receiving import allowance
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from commitbus.commitlog.log_reader import LogReader
from tests.broker.messaging.bus import make_all_reads_cold, noted_threads

Run = Callable[..., None]


def test_a_sent_message_is_received_with_everything_the_clients_verify(run: Run) -> None:
    """Status, then the message with digest, handle and system properties, then the time."""

    async def scenario(bus: Any) -> None:
        message = pb.Message(body=b"hello", user_properties={"p": "v", "ünï": "ßx y"})
        message.topic.name = "T"
        system = message.system_properties
        system.message_id, system.tag = "01ABC", "tagA"
        system.keys.extend(["k1", "k2"])
        system.body_encoding = pb.GZIP
        system.born_timestamp.FromMilliseconds(1_700_000_000_123)
        system.born_host = "laptop"
        system.trace_context = "00-abc"
        response = await bus.unary("SendMessage", pb.SendMessageRequest(messages=[message]))
        (entry,) = response.entries
        assert (entry.message_id, entry.transaction_id, entry.offset) == ("01ABC", "01ABC", 0)
        bus.settle()

        received = await bus.receive()
        assert received.kinds == ["status", "message", "delivery_timestamp"]
        (got,) = received.messages
        assert got.topic.name == "T"
        assert got.body == b"hello"
        assert dict(got.user_properties) == {"p": "v", "ünï": "ßx y"}
        system = got.system_properties
        assert (system.message_id, system.tag, list(system.keys)) == ("01ABC", "tagA", ["k1", "k2"])
        assert system.body_digest.type == pb.MD5
        assert system.body_digest.checksum == "5D41402ABC4B2A76B9719D911017C592"
        assert (system.body_encoding, system.message_type) == (pb.GZIP, pb.NORMAL)
        assert system.born_timestamp.ToMilliseconds() == 1_700_000_000_123
        assert (system.born_host, system.store_host) == ("laptop", "127.0.0.1:10911")
        assert (system.queue_id, system.queue_offset, system.delivery_attempt) == (0, 0, 1)
        assert system.trace_context == "00-abc"
        assert system.receipt_handle.split()[1:8] == [
            *(str(bus.now_ms()), "30000", "0", "0", "broker-a", "0", "0")
        ]

    run(scenario)


def test_without_messages_the_answer_is_not_found_after_the_polling_time(run: Run) -> None:
    """Which clients take for success; the wait is what makes it cheap."""

    async def scenario(bus: Any) -> None:
        async with bus.receiving(polling_s=7) as results:
            await bus.sleep(6.9)
            assert not results
            await bus.sleep(0.2)
        (received,) = results
        assert received.status.code == pb.MESSAGE_NOT_FOUND
        assert received.kinds == ["status", "delivery_timestamp"]

    run(scenario)


def test_an_arriving_message_ends_the_wait(run: Run) -> None:
    """The store's thread wakes the receiver; no time passes."""

    async def scenario(bus: Any) -> None:
        async with bus.receiving() as results:
            await bus.send(b"a")
        assert results[0].bodies == [b"a"]

    run(scenario)


@pytest.mark.parametrize(
    ("polling_s", "deadline_s", "waits_s"),
    [
        (1, None, 5),
        (60, None, 20),
        (None, None, 20),
        (10, 30.0, 10),
        (20, 8.0, 7.8),
        (None, 11.5, 10),
        (None, 5.0, 4.8),
        (5, 4.9, 4.7),
    ],
)
def test_the_wait_fits_the_limits_and_the_deadline(
    run: Run, polling_s: int | None, deadline_s: float | None, waits_s: float
) -> None:
    """5 to 20 seconds, and an answer before the client gives up."""

    async def scenario(bus: Any) -> None:
        finished = trio.Event()

        async def receive() -> None:
            await bus.receive(polling_s=polling_s, call=bus.call(deadline_s=deadline_s))
            finished.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive)
            await bus.sleep(waits_s - 0.05)
            assert not finished.is_set()
            await bus.sleep(0.1)
            assert finished.is_set()

    run(scenario)


@pytest.mark.parametrize(
    ("version", "code"), [("5.1.2", pb.ILLEGAL_POLLING_TIME), ("5.0.2", pb.BAD_REQUEST)]
)
def test_a_deadline_too_short_to_poll_is_refused_at_once(
    run: Run, version: str, code: pb.Code
) -> None:
    """With the code that the client's version knows."""

    async def scenario(bus: Any) -> None:
        call = bus.call(deadline_s=4.4, **{"x-mq-client-version": version})
        received = await bus.receive(call=call)
        assert received.status.code == code

    run(scenario)


def test_what_is_wrong_with_a_request_is_its_status(run: Run) -> None:
    """Never a gRPC error, and always the time of delivery last."""

    async def scenario(bus: Any) -> None:
        await bus.topic("Sealed", perm=2)
        await bus.group("Off", consume_enable=False)
        expected: dict[pb.Code, dict[str, Any]] = {
            pb.ILLEGAL_TOPIC: {"topic": "rmq_sys_x"},
            pb.TOPIC_NOT_FOUND: {"topic": "Nope"},
            pb.ILLEGAL_CONSUMER_GROUP: {"group": "a b"},
            pb.ILLEGAL_INVISIBLE_TIME: {"invisible_s": 0.9},
            pb.ILLEGAL_FILTER_EXPRESSION: {"tags": "||"},
            pb.CLIENT_ID_REQUIRED: {"call": bus.call(" ")},
        }
        for code, arguments in expected.items():
            received = await bus.receive(**arguments)
            assert received.status.code == code, received.status
            assert received.kinds == ["status", "delivery_timestamp"]
        for arguments in ({"topic": "Sealed"}, {"group": "Off"}):
            assert (await bus.receive(**arguments)).status.code == pb.FORBIDDEN
        assert (await bus.receive(invisible_s=None)).status.code == pb.ILLEGAL_INVISIBLE_TIME

    run(scenario)


def test_a_client_that_nobody_introduced_is_served_and_its_group_created(run: Run) -> None:
    """After a restart nobody is introduced: everything needed is in the request."""

    async def scenario(bus: Any) -> None:
        await bus.send(b"a")
        assert (await bus.receive(group="Unheard")).bodies == [b"a"]
        assert bus.context.metadata.group("Unheard") is not None
        assert bus.context.clients.get("client") is not None

    run(scenario)


def test_an_unknown_topic_is_created_where_that_is_allowed(run: Run) -> None:
    """By the first request that names it, with eight queues."""

    async def scenario(bus: Any) -> None:
        await bus.send(b"a", topic="Fresh")
        assert bus.context.metadata.topic("Fresh").read_queue_nums == 8
        assert (await bus.receive(topic="Fresh")).bodies == [b"a"]

    run(scenario, auto_create_topics=True)


def test_batches_stop_at_the_size_asked_for_and_at_32(run: Run) -> None:
    """What is left comes with the next receive."""

    async def scenario(bus: Any) -> None:
        await bus.send(*(b"%d" % number for number in range(40)))
        assert (await bus.receive(batch=3)).bodies == [b"0", b"1", b"2"]
        assert len((await bus.receive(batch=1000)).messages) == 32
        assert (await bus.receive()).bodies == [b"35", b"36", b"37", b"38", b"39"]

    run(scenario)


@pytest.mark.parametrize("batch", [0, -(2**31)])
def test_asking_for_nothing_waits_and_gets_nothing(run: Run, batch: int) -> None:
    """As RocketMQ does; the message stays for others."""

    async def scenario(bus: Any) -> None:
        await bus.send(b"a")
        async with bus.receiving(batch=batch, polling_s=5) as results:
            await bus.sleep(5.1)
        assert results[0].status.code == pb.MESSAGE_NOT_FOUND
        assert (await bus.receive()).bodies == [b"a"]

    run(scenario)


def test_an_answer_never_holds_more_than_its_share_of_memory(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends before the message that would be too much; one always fits."""
    monkeypatch.setattr(allowance, "BATCH_BYTES_MAX", 3000)

    async def scenario(bus: Any) -> None:
        await bus.send(*[bytes([number]) * 1000 for number in range(3)], bytes([3]) * 9000)
        for _ in ("new", "visible again"):
            answers = [await bus.receive(invisible_s=5) for _ in range(3)]
            sizes = [[len(body) for body in answer.bodies] for answer in answers]
            assert sizes == [[1000, 1000], [1000], [9000]]
            await bus.sleep(6)

    run(scenario)


def test_all_queues_of_a_topic_are_served_whichever_is_named(run: Run) -> None:
    """And none is served first every time."""

    async def scenario(bus: Any) -> None:
        await bus.topic("Wide", queues=4)
        await bus.send(*(b"%d" % number for number in range(8)), topic="Wide")
        queues = []
        for _ in range(8):
            (message,) = (await bus.receive(topic="Wide", batch=1)).messages
            queues.append(message.system_properties.queue_id)
        assert queues == [0, 1, 2, 3, 0, 1, 2, 3]

    run(scenario)


def test_a_tag_filter_skips_the_others_for_good(run: Run) -> None:
    """They count as consumed by the group, so nothing is left behind."""

    async def scenario(bus: Any) -> None:
        await bus.send(b"1", tag="A")
        await bus.send(b"2", tag="B")
        await bus.send(b"3")
        await bus.send(b"4", tag="C")
        assert (await bus.receive(tags="A || C")).bodies == [b"1", b"4"]
        progress = bus.context.progress.get("G", "T", 0)
        assert (progress.next_offset, progress.in_flight_count) == (4, 2)

    run(scenario)


def test_a_tag_of_the_same_hash_is_skipped_as_well(run: Run) -> None:
    """Aa and BB look the same in the queue; the record tells them apart."""

    async def scenario(bus: Any) -> None:
        await bus.send(b"wrong", tag="BB")
        await bus.send(b"right", tag="Aa")
        assert (await bus.receive(tags="Aa")).bodies == [b"right"]
        assert bus.context.progress.get("G", "T", 0).in_flight_count == 1

    run(scenario)


def test_a_filter_that_nothing_passes_comes_to_the_end_of_a_long_queue(run: Run) -> None:
    """In steps, between which others get their turn."""

    async def scenario(bus: Any) -> None:
        await bus.send(*(b"x" for _ in range(100)), tag="A")
        await bus.send(b"found", tag="B")
        assert (await bus.receive(tags="B", batch=1)).bodies == [b"found"]
        assert bus.context.progress.get("G", "T", 0).committed_offset == 100

    run(scenario)


def test_groups_receive_independently(run: Run) -> None:
    """Each group gets every message."""

    async def scenario(bus: Any) -> None:
        await bus.send(b"a")
        assert (await bus.receive(group="G")).bodies == [b"a"]
        assert (await bus.receive(group="H")).bodies == [b"a"]

    run(scenario)


def test_a_group_that_comes_late_sees_a_queue_from_its_beginning(run: Run) -> None:
    """As long as the beginning is stored."""

    async def scenario(bus: Any) -> None:
        await bus.send(b"1", b"2")
        assert (await bus.receive(group="Late")).bodies == [b"1", b"2"]

    run(scenario)


def test_a_group_that_comes_late_sees_a_topic_that_was_made_anew_from_its_beginning(
    run: Run,
) -> None:
    """Its queues go on counting where the deleted ones ended, and nothing of them is gone."""

    async def scenario(bus: Any) -> None:
        await bus.send(b"old", b"old")
        async with bus.context.metadata.topic_deleted("T"):
            bus.context.store.delete_topic("T")
        await bus.topic()
        await bus.send(b"1", b"2", b"3")
        assert bus.context.store.min_offset("T", 0) == 2
        assert (await bus.receive(group="Late")).bodies == [b"1", b"2", b"3"]

    run(scenario)


def test_a_group_stops_at_its_limit_of_unacknowledged_messages(run: Run) -> None:
    """An acknowledgement makes room, for a receiver that waits already as well."""

    async def scenario(bus: Any) -> None:
        bus.context.progress.in_flight_max = 2
        await bus.send(b"1", b"2", b"3")
        received = await bus.receive()
        assert received.bodies == [b"1", b"2"]
        async with bus.receiving() as results:
            assert not results
            await bus.ack(received.handles[0])
        assert results[0].bodies == [b"3"]

    run(scenario)


def test_cold_records_are_read_on_another_thread(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have to come from the disk, and the trio thread does not wait for disks."""
    make_all_reads_cold(monkeypatch)
    threads = noted_threads(monkeypatch, LogReader, "read_bytes")

    async def scenario(bus: Any) -> None:
        await bus.send(b"1", b"2")
        assert (await bus.receive()).bodies == [b"1", b"2"]

    run(scenario)
    assert threads
    assert get_ident() not in threads


def test_a_damaged_record_is_not_delivered_and_not_forgotten(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """The others are delivered; the group's lag keeps showing it."""

    async def scenario(bus: Any) -> None:
        await bus.send(b"the damaged one", b"2")
        log_file = bus.context.store.directory / "commitlog" / f"{0:020}"
        with log_file.open("r+b") as file:
            file.seek(file.read(4096).index(b"the damaged one"))
            file.write(b"T")
        received = await bus.receive()
        assert received.bodies == [b"2"]
        await bus.ack(*received.handles)
        assert bus.context.progress.get("G", "T", 0).committed_offset == 0

    run(scenario)
    assert "message unreadable" in caplog.text


def test_traffic_is_counted(run: Run) -> None:
    """By topic on the way in, by group and topic on the way out."""

    async def scenario(bus: Any) -> None:
        await bus.send(b"12", b"345")
        received = await bus.receive()
        await bus.ack(received.handles[0])
        counters = bus.context.counters
        assert (counters.sent["T"].messages, counters.sent["T"].bytes) == (2, 5)
        traffic = counters.received["G", "T"]
        assert (traffic.messages, traffic.bytes) == (2, 5)
        assert counters.acknowledged["G", "T"] == 1

    run(scenario)
