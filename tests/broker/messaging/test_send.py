"""SendMessage: what is stored, where, and what the producer is told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commitbus.broker.core import durability
from commitbus.broker.messaging.status import ok
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from commitbus.commitlog.errors import DiskFullError, StoreError, StoreReadOnlyError

Run = Callable[..., None]
Make = Callable[..., pb.Message]


async def send(bus: Any, *messages: pb.Message, call: Any = None) -> pb.SendMessageResponse:
    request = pb.SendMessageRequest(messages=messages)
    response = await bus.unary("SendMessage", request, call)
    assert isinstance(response, pb.SendMessageResponse)
    return response


def test_a_stored_message_has_the_properties_that_rocketmq_stores(run: Run, message: Make) -> None:
    """So that RocketMQ opens our store and finds its own."""

    async def scenario(bus: Any) -> None:
        made = message(b"body", message_id="01ID")
        made.user_properties["colour"] = "red"
        made.system_properties.tag = "A"
        made.system_properties.keys.extend(["k1", "", "k2"])
        await send(bus, made)
        record = bus.context.store.read(0)
        born_ms = str(bus.now_ms())
        assert dict(record.properties) == {
            "UNIQ_KEY": "01ID",
            "TAGS": "A",
            "KEYS": "k1 k2",
            "PGROUP": "T",
            "RECONSUME_TIME": "0",
            "__BORNHOST": "10.1.2.3",
            "BORN_TIMESTAMP": born_ms,
            "CLUSTER": "DefaultCluster",
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
            "colour": "red",
        }
        assert str(record.born_host) == "10.1.2.3:4567"
        assert (record.body, record.sys_flag, record.topic) == (b"body", 0, "T")
        assert record.born_timestamp == bus.now_ms()

    run(scenario)


def test_what_a_producer_says_of_itself_is_stored_as_far_as_it_can_be(
    run: Run, message: Make
) -> None:
    """Otherwise where and when the call came in."""

    async def scenario(bus: Any) -> None:
        good, bad = message(), message()
        good.system_properties.born_host = "web-1"
        good.system_properties.born_timestamp.FromMilliseconds(1234)
        good.system_properties.body_encoding = pb.GZIP
        bad.system_properties.born_host = "a\x01b"
        bad.system_properties.born_timestamp.seconds = 2**63 - 1
        await send(bus, good, bad)
        bus.settle()
        first, second = [bus.context.store.read(u.physical_offset) for u in units(bus, 2)]
        assert (first.properties["__BORNHOST"], first.born_timestamp) == ("web-1", 1234)
        assert first.sys_flag & 1 == 1
        assert second.properties["__BORNHOST"] == "10.1.2.3"
        assert second.born_timestamp == bus.now_ms()

    run(scenario)


def units(bus: Any, count: int) -> Any:
    return bus.context.store.fetch("T", 0, 0, count).units


def test_messages_of_one_request_are_stored_together_with_an_entry_each(
    run: Run, message: Make
) -> None:
    """In order, in one queue; clients count the entries."""

    async def scenario(bus: Any) -> None:
        await bus.topic("Wide", queues=4)
        messages = [message(b"%d" % n, topic="Wide", message_id=f"id{n}") for n in range(3)]
        response = await send(bus, *messages)
        assert response.status.code == pb.OK
        assert [entry.message_id for entry in response.entries] == ["id0", "id1", "id2"]
        assert [entry.offset for entry in response.entries] == [0, 1, 2]
        assert {entry.status.code for entry in response.entries} == {pb.OK}
        # Encoded by hand: exactly what the classes of the protocol make of it.
        made = pb.SendMessageResponse(status=ok())
        for entry in response.entries:
            ids = {"message_id": entry.message_id, "transaction_id": entry.message_id}
            made.entries.add(status=ok(), offset=entry.offset, **ids)
        assert response == made
        bus.settle()
        assert (await bus.receive(topic="Wide")).bodies == [b"0", b"1", b"2"]

    run(scenario)


def test_requests_take_the_queues_of_a_topic_in_turn(run: Run, message: Make) -> None:
    """The queue that the client names does not matter; each topic has its own turn."""

    async def scenario(bus: Any) -> None:
        await bus.topic("Wide", queues=3)
        for number in range(6):
            made = message(b"%d" % number, topic="Wide")
            made.system_properties.queue_id = 2
            await send(bus, made)
            await send(bus, message())
        bus.settle()
        ends = [bus.context.store.max_offset("Wide", queue_id) for queue_id in range(3)]
        assert ends == [2, 2, 2]

    run(scenario)


def test_one_bad_message_keeps_the_whole_request_out(run: Run, message: Make) -> None:
    """Nothing of it is stored."""

    async def scenario(bus: Any) -> None:
        response = await send(bus, message(), message(b""))
        assert response.status.code == pb.MESSAGE_BODY_EMPTY
        assert list(response.entries) == []
        assert bus.context.store.end_offset == 0

    run(scenario)


def test_what_is_wrong_with_the_topic_is_said_last(run: Run, message: Make) -> None:
    """Unknown, sealed, or of another type."""

    async def scenario(bus: Any) -> None:
        await bus.topic("Sealed", perm=4)
        response = await send(bus, message(topic="Nope"))
        assert response.status.code == pb.TOPIC_NOT_FOUND
        assert "topic" in response.status.message
        assert (await send(bus, message(b"", topic="Nope"))).status.code == pb.MESSAGE_BODY_EMPTY
        assert (await send(bus, message(topic="Sealed"))).status.code == pb.FORBIDDEN
        assert (await send(bus, message(topic="TBW102"))).status.code == pb.ILLEGAL_TOPIC
        assert (await send(bus)).status.code == pb.MESSAGE_CORRUPTED
        response = await send(bus, message(), call=bus.call(""))
        assert response.status.code == pb.CLIENT_ID_REQUIRED

    run(scenario)


@pytest.mark.parametrize(
    ("type_", "field", "value"),
    [("LITE", "lite_topic", "l"), ("PRIORITY", "priority", 3)],
)
def test_other_kinds_of_message_are_refused_clearly(
    run: Run, message: Make, type_: str, field: str, value: object
) -> None:
    """The wrong topic for it first, then that it is not supported yet."""

    async def scenario(bus: Any) -> None:
        await bus.topic("Typed", attributes={"message.type": type_})
        await bus.topic("Mixed", attributes={"message.type": "MIXED"})
        for topic, code in [
            ("T", pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
            ("Typed", pb.NOT_IMPLEMENTED),
        ]:
            made = message(topic=topic)
            setattr(made.system_properties, field, value)
            response = await send(bus, made)
            assert response.status.code == code
            assert type_ in response.status.message
        response = await send(bus, message(topic="Typed"))
        assert response.status.code == pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
        assert (await send(bus, message(topic="Mixed"))).status.code == pb.OK

    run(scenario)


def test_the_largest_body_is_stored_and_received(run: Run, message: Make) -> None:
    """Exactly as many bytes as clients are told."""

    async def scenario(bus: Any) -> None:
        limit = bus.context.config.max_body_bytes
        assert (await send(bus, message(bytes(limit)))).status.code == pb.OK
        response = await send(bus, message(bytes(limit + 1)))
        assert response.status.code == pb.MESSAGE_BODY_TOO_LARGE
        bus.settle()
        assert (await bus.receive()).bodies == [bytes(limit)]

    run(scenario)


@pytest.mark.parametrize(
    "error", [DiskFullError(Path("log"), 1), StoreReadOnlyError("a flush failed")]
)
def test_a_store_that_cannot_take_it_gives_the_true_reason(
    run: Run, message: Make, monkeypatch: pytest.MonkeyPatch, error: StoreError
) -> None:
    """Not a time-out, not a made-up text."""

    async def scenario(bus: Any) -> None:
        def fail(_: object) -> None:
            raise error

        monkeypatch.setattr(bus.context.store, "put", fail)
        status = (await send(bus, message())).status
        assert (status.code, status.message) == (pb.INTERNAL_SERVER_ERROR, str(error))

    run(scenario)


def test_a_synchronous_flush_answers_once_the_message_is_durable(run: Run, message: Make) -> None:
    """Not before."""

    async def scenario(bus: Any) -> None:
        for _ in range(3):
            assert (await send(bus, message())).status.code == pb.OK
            assert bus.context.store.durable_watermark.offset == bus.context.store.end_offset
        bus.settle()
        assert len((await bus.receive()).messages) == 3

    run(scenario, flush_mode="SYNC_FLUSH")


def test_sends_beyond_what_may_wait_for_the_disk_are_turned_away(
    run: Run, message: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is stored: the producer backs off and tries again."""
    monkeypatch.setattr(durability, "WAITING_MAX", 0)

    async def scenario(bus: Any) -> None:
        assert (await send(bus, message())).status.code == pb.TOO_MANY_REQUESTS
        assert bus.context.store.end_offset == 0

    run(scenario)


@pytest.mark.parametrize(
    ("seconds", "nanos", "born_ms"),
    [
        (0, 1_000_000, 1),
        (253_402_300_799, 999_999_999, 253_402_300_799_999),
        (253_402_300_799, 1_000_000_000, None),
        (253_402_300_800, 0, None),
        (2**63 - 1, 2**31 - 1, None),
        (-(2**63), -(2**31), None),
        (-1, 2**31 - 1, 1147),
        (0, 0, None),
    ],
)
def test_a_born_time_that_no_client_could_read_again_is_the_time_of_the_send(
    run: Run, message: Any, seconds: int, nanos: int, born_ms: int | None
) -> None:
    """Official clients raise an error at a time beyond the year 9999, whoever wrote it."""

    async def scenario(bus: Any) -> None:
        sent = message(b"x")
        sent.system_properties.born_timestamp.seconds = seconds
        sent.system_properties.born_timestamp.nanos = nanos
        request = pb.SendMessageRequest(messages=[sent])
        assert (await bus.unary("SendMessage", request)).status.code == pb.OK
        bus.settle()
        (received,) = (await bus.receive()).messages
        got = received.system_properties.born_timestamp
        assert got.ToMilliseconds() == (bus.now_ms() if born_ms is None else born_ms)

    run(scenario)


@pytest.mark.parametrize(
    ("seconds", "nanos", "code"),
    [
        (2**63 - 1, 2**31 - 1, pb.ILLEGAL_DELIVERY_TIME),
        (-(2**63), -(2**31), pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    ],
)
def test_a_delivery_time_out_of_all_ranges_is_refused(
    run: Run, message: Any, seconds: int, nanos: int, code: pb.Code
) -> None:
    """The past is no error of its own: such a message is of another type than the topic's."""

    async def scenario(bus: Any) -> None:
        sent = message(b"x")
        sent.system_properties.delivery_timestamp.seconds = seconds
        sent.system_properties.delivery_timestamp.nanos = nanos
        request = pb.SendMessageRequest(messages=[sent])
        assert (await bus.unary("SendMessage", request)).status.code == code

    run(scenario)


@pytest.mark.parametrize("separator", ["\x01", "\x02"])
@pytest.mark.parametrize(
    ("field", "code"),
    [
        ("tag", pb.ILLEGAL_MESSAGE_TAG),
        ("keys", pb.ILLEGAL_MESSAGE_KEY),
        ("message_id", pb.ILLEGAL_MESSAGE_ID),
        ("message_group", pb.ILLEGAL_MESSAGE_GROUP),
        ("lite_topic", pb.ILLEGAL_LITE_TOPIC),
        ("trace_context", pb.ILLEGAL_MESSAGE_PROPERTY_KEY),
        ("name", pb.ILLEGAL_MESSAGE_PROPERTY_KEY),
        ("value", pb.ILLEGAL_MESSAGE_PROPERTY_KEY),
        ("born_host", pb.OK),
    ],
)
def test_the_separators_of_stored_properties_reach_the_log_nowhere(
    run: Run, message: Any, field: str, code: pb.Code, separator: str
) -> None:
    """Each field is refused with its code; a host that cannot be stored is the peer's instead."""

    async def scenario(bus: Any) -> None:
        text, sent = f"a{separator}b", message(b"x")
        if field == "keys":
            sent.system_properties.keys.append(text)
        elif field == "name":
            sent.user_properties[text] = "v"
        elif field == "value":
            sent.user_properties["n"] = text
        else:
            setattr(sent.system_properties, field, text)
        request = pb.SendMessageRequest(messages=[sent])
        assert (await bus.unary("SendMessage", request)).status.code == code

    run(scenario)
