"""Dead letters: what a group gave up on is kept in a topic of its own."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from commitbus.broker.config import CLUSTER_NAME_BYTES_MAX
from commitbus.broker.consuming.state import LETTERS_MAX
from commitbus.broker.core.kinds import NORMAL
from commitbus.broker.core.outgoing import to_outgoing
from commitbus.broker.core.validation import (
    USER_PROPERTIES_BYTES_MAX,
    USER_PROPERTIES_MAX,
    check_message,
)
from commitbus.broker.messaging.validate import new_message
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from commitbus.broker.settling import dead_letters
from commitbus.commitlog.errors import DiskFullError
from commitbus.commitlog.record_format import MAX_PROPERTIES_BYTES
from commitbus.commitlog.types import Host, OutgoingMessage
from tests.broker.messaging.bus import PEER, copy_as_killed, make_message

Run = Callable[..., None]


async def forward(bus: Any, handle: str, **names: str) -> pb.Code:
    request = pb.ForwardMessageToDeadLetterQueueRequest(receipt_handle=handle)
    request.group.name = names.get("group", "G")
    request.topic.name = names.get("topic", "T")
    response = await bus.unary("ForwardMessageToDeadLetterQueue", request)
    code: pb.Code = response.status.code
    return code


def test_a_forwarded_message_moves_to_the_groups_dead_letter_queue(run: Run) -> None:
    """Its copy says where it came from; the original is acknowledged."""

    async def scenario(bus: Any) -> None:
        await bus.send(b"bad", tag="dl")
        received = await bus.receive()
        assert await forward(bus, received.handles[0]) == pb.OK
        topic = bus.context.metadata.topic("%DLQ%G")
        assert (topic.read_queue_nums, topic.write_queue_nums) == (1, 1)
        assert bus.context.progress.get("G", "T", 0).committed_offset == 1
        bus.settle()
        (letter,) = (await bus.receive(topic="%DLQ%G", group="Undertaker")).messages
        system = letter.system_properties
        assert (letter.body, system.tag) == (b"bad", "dl")
        assert system.dead_letter_queue.topic == "T"
        assert system.dead_letter_queue.message_id == (
            received.messages[0].system_properties.message_id
        )
        assert dict(letter.user_properties) == {}
        assert bus.context.counters.dead_letters == {("G", "T"): 1}

    run(scenario)


def test_forwarding_twice_moves_it_once(run: Run) -> None:
    """A client repeats a call whose answer it missed."""

    async def scenario(bus: Any) -> None:
        await bus.send(b"bad")
        (handle,) = (await bus.receive()).handles
        assert await forward(bus, handle) == pb.OK
        assert await forward(bus, handle) == pb.OK
        bus.settle()
        assert bus.context.store.max_offset("%DLQ%G", 0) == 1

    run(scenario)


def test_what_cannot_be_forwarded_stays(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Bad names, a bad handle, a full disk."""

    async def scenario(bus: Any) -> None:
        await bus.send(b"bad")
        (handle,) = (await bus.receive()).handles
        assert await forward(bus, handle, topic="") == pb.ILLEGAL_TOPIC
        assert await forward(bus, handle, group="") == pb.ILLEGAL_CONSUMER_GROUP
        assert await forward(bus, "x") == pb.INVALID_RECEIPT_HANDLE

        def fail(_: object) -> None:
            raise DiskFullError(tmp_path, 1)

        with monkeypatch.context() as patch:
            patch.setattr(bus.context.store, "put", fail)
            assert await forward(bus, handle) == pb.INTERNAL_SERVER_ERROR
        assert bus.context.progress.get("G", "T", 0).committed_offset == 0
        assert await forward(bus, handle) == pb.OK

    run(scenario)


def test_a_message_delivered_too_often_is_buried_instead(run: Run) -> None:
    """After the first delivery and the group's retries; others are not held up."""

    async def scenario(bus: Any) -> None:
        await bus.group("Twice", retry_max_times=1)
        await bus.send(b"bad")
        for attempt in (1, 2):
            (message,) = (await bus.receive(group="Twice", invisible_s=1)).messages
            assert message.system_properties.delivery_attempt == attempt
            await bus.sleep(1.5)
        await bus.send(b"good")
        assert (await bus.receive(group="Twice")).bodies == [b"good"]
        bus.settle()
        assert (await bus.receive(topic="%DLQ%Twice", group="Other")).bodies == [b"bad"]
        (unit,) = bus.context.store.fetch("%DLQ%Twice", 0, 0, 1).units
        assert bus.context.store.read(unit.physical_offset).reconsume_times == 1

    run(scenario)


def test_a_group_without_a_limit_is_tried_for_ever(run: Run) -> None:
    """RocketMQ writes -1 for it."""

    async def scenario(bus: Any) -> None:
        await bus.group("Stubborn", retry_max_times=-1)
        await bus.send(b"bad")
        for attempt in range(1, 30):
            (message,) = (await bus.receive(group="Stubborn", invisible_s=1)).messages
            assert message.system_properties.delivery_attempt == attempt
            await bus.sleep(1.5)

    run(scenario)


def test_a_dead_letter_that_cannot_be_stored_stays_in_flight(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Any
) -> None:
    """And is tried again; the receiver gets what else there is."""

    async def scenario(bus: Any) -> None:
        await bus.group("Once", retry_max_times=0)
        await bus.send(b"bad")
        await bus.receive(group="Once", invisible_s=1)
        await bus.send(b"good")
        await bus.sleep(1.5)

        def fail(_: object) -> None:
            raise DiskFullError(tmp_path, 1)

        with monkeypatch.context() as patch:
            patch.setattr(bus.context.store, "put", fail)
            assert (await bus.receive(group="Once", invisible_s=1)).bodies == [b"good"]
        assert bus.context.progress.get("Once", "T", 0).committed_offset == 0
        assert bus.context.metadata.topic("%DLQ%Once") is not None

    run(scenario)
    assert "dead letter not stored" in caplog.text


async def send_full(bus: Any, body: bytes, *, size: int, topic: str = "T") -> None:
    """Send a message whose stored properties have exactly this many bytes."""
    message = make_message(body, topic=topic)
    if topic == "F":
        message.system_properties.message_group = "g"
    context = bus.context

    def encoded() -> bytes:
        made, cluster = new_message(message), context.config.cluster_name
        kind = check_message(made, max_body_bytes=100, now_ms=bus.now_ms())
        return to_outgoing(made, kind, topic, 0, cluster, peer=PEER, now_ms=bus.now_ms()).properties

    message.system_properties.trace_context = "t"
    message.system_properties.trace_context = "t" * (size - len(encoded()) + 1)
    assert len(encoded()) == size
    response = await bus.unary("SendMessage", pb.SendMessageRequest(messages=[message]))
    assert response.status.code == pb.OK, response.status.message
    bus.settle()


ORIGIN_BYTES = len("DLQ_ORIGIN_TOPIC=T;DLQ_ORIGIN_MESSAGE_ID=id;")


@pytest.mark.parametrize("free_bytes", [0, ORIGIN_BYTES - 1, ORIGIN_BYTES])
def test_a_message_that_is_full_of_properties_is_buried_all_the_same(
    run: Run, free_bytes: int
) -> None:
    """Where there is no room for it, the dead letter does not say where it came from."""

    async def scenario(bus: Any) -> None:
        await send_full(bus, b"bad", size=MAX_PROPERTIES_BYTES - free_bytes)
        (message,) = (await bus.receive()).messages
        assert await forward(bus, message.system_properties.receipt_handle) == pb.OK
        bus.settle()
        (letter,) = (await bus.receive(topic="%DLQ%G", group="Undertaker")).messages
        assert letter.body == b"bad"
        assert letter.system_properties.trace_context == message.system_properties.trace_context
        says_origin = letter.system_properties.HasField("dead_letter_queue")
        assert says_origin == (free_bytes == ORIGIN_BYTES)

    run(scenario)


def test_a_fifo_group_gets_past_a_message_that_is_full_of_properties(run: Run) -> None:
    """It becomes a dead letter, and the next one comes."""

    async def scenario(bus: Any) -> None:
        await bus.topic("F", attributes={"message.type": "FIFO"})
        await bus.group("O", consume_message_orderly=True, retry_max_times=0)
        await send_full(bus, b"bad", size=MAX_PROPERTIES_BYTES, topic="F")
        await send_full(bus, b"good", size=1000, topic="F")
        assert (await bus.receive(topic="F", group="O", batch=1)).bodies == [b"bad"]
        await bus.sleep(31)
        assert (await bus.receive(topic="F", group="O")).bodies == [b"good"]
        bus.settle()
        assert (await bus.receive(topic="%DLQ%O")).bodies == [b"bad"]

    run(scenario)


@pytest.mark.parametrize("orderly", [False, True])
def test_a_dead_letter_that_can_never_be_stored_is_given_up(
    run: Run, caplog: pytest.LogCaptureFixture, *, orderly: bool
) -> None:
    """The log says which message it was; the group goes on."""

    async def before(bus: Any) -> None:
        await bus.send(b"x" * 60_000, b"good")

    async def after(bus: Any) -> None:
        await bus.group("Once", retry_max_times=0, consume_message_orderly=orderly)
        assert len((await bus.receive(group="Once", batch=1, invisible_s=1)).messages) == 1
        await bus.sleep(1.5)
        assert (await bus.receive(group="Once")).bodies == [b"good"]
        assert bus.context.progress.get("Once", "T", 0).committed_offset == 1
        bus.settle()
        assert bus.context.store.max_offset("%DLQ%Once", 0) == 0

    run(before)
    # An operator allows less than before.
    run(after, max_body_bytes=50_000)
    (record,) = [record for record in caplog.records if record.msg == "dead letter refused"]
    assert vars(record).items() >= {
        "group": "Once", "topic": "T", "queue_id": 0, "queue_offset": 0,
    }.items()  # fmt: skip


@pytest.mark.parametrize("orderly", [False, True])
@pytest.mark.parametrize("is_stored", [False, True])
def test_a_kill_before_a_dead_letter_is_acknowledged_loses_nothing(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, orderly: bool, is_stored: bool
) -> None:
    """Stored or not: it lies in the dead letter queue, perhaps twice, and the group goes on."""
    store, killed = tmp_path / "store", tmp_path / "killed"
    bury = dead_letters.bury

    async def bury_and_be_killed(*arguments: Any) -> None:
        if not is_stored:
            copy_as_killed(store, killed)
        await bury(*arguments)
        if is_stored:
            copy_as_killed(store, killed)

    async def before(bus: Any) -> None:
        await bus.group("Once", retry_max_times=0, consume_message_orderly=orderly)
        await bus.send(b"bad", b"good")
        assert (await bus.receive(group="Once", batch=1)).bodies == [b"bad"]
        await bus.sleep(31)
        with monkeypatch.context() as patch:
            patch.setattr(dead_letters, "bury", bury_and_be_killed)
            await bus.receive(group="Once")

    async def after(bus: Any) -> None:
        # Time begins anew with each run.
        await bus.sleep(3600)
        assert (await bus.receive(group="Once")).bodies == [b"good"]
        bus.settle()
        buried = (await bus.receive(topic="%DLQ%Once", group="Undertaker")).bodies
        assert buried in ([b"bad"], [b"bad"] * (1 + is_stored))
        assert bus.context.progress.get("Once", "T", 0).committed_offset == 1

    run(before)
    shutil.rmtree(store)
    killed.rename(store)
    run(after)


def test_a_message_with_properties_that_cannot_be_stored_again_is_buried_all_the_same(
    run: Run,
) -> None:
    """RocketMQ's remoting producers may put a separator into a value."""

    async def scenario(bus: Any) -> None:
        bus.context.store.put(
            OutgoingMessage(
                topic="T",
                queue_id=0,
                body=b"bad",
                properties=b"UNIQ_KEY\x01id\x02odd\x01a\x01b\x02TAGS\x01t\x02",
                born_timestamp=1,
                born_host=Host.parse("127.0.0.1", 1),
            )
        )
        bus.settle()
        (handle,) = (await bus.receive()).handles
        assert await forward(bus, handle) == pb.OK
        bus.settle()
        (letter,) = (await bus.receive(topic="%DLQ%G", group="Undertaker")).messages
        assert (letter.body, letter.system_properties.tag) == (b"bad", "t")
        assert dict(letter.user_properties) == {}

    run(scenario)


def test_the_longest_name_of_a_cluster_leaves_room_for_the_largest_message() -> None:
    """It is stored with each: the properties that a client may send fit in all the same."""
    message = make_message(message_id="i" * 255)
    system = message.system_properties
    system.tag, system.keys[:] = "t" * 100, ["k" * 100]
    system.trace_context, system.born_host = "c" * 1000, "h" * 255
    left = USER_PROPERTIES_BYTES_MAX - 200
    names = [f"{number:04}" for number in range(USER_PROPERTIES_MAX)]
    for name in names:
        message.user_properties[name] = "v" * (left // len(names) - len(name))
    made, cluster = new_message(message), "x" * CLUSTER_NAME_BYTES_MAX
    assert check_message(made, max_body_bytes=100, now_ms=1) is NORMAL
    stored = to_outgoing(made, NORMAL, "T" * 127, 0, cluster, peer=PEER, now_ms=1)
    # A dead letter remembers more: ids, topic, group, and how often it was tried.
    assert len(stored.properties) + 4096 < MAX_PROPERTIES_BYTES


def test_messages_that_wait_to_be_dead_letters_on_disk_are_few_in_memory(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many calls give one up: the rest waits before it is read."""
    held, most = 0, 0

    async def wait(*_: object) -> None:
        nonlocal held, most
        held += 1
        most = max(most, held)
        await trio.sleep(1)
        held -= 1

    async def scenario(bus: Any) -> None:
        bodies = [b"%d" % number for number in range(32)]
        await bus.send(*bodies)
        handles = (await bus.receive(invisible_s=600)).handles
        await dead_letters.prepare(bus.context, "G")
        monkeypatch.setattr(bus.context.durability, "wait", wait)

        async def give_up(handle: str) -> None:
            request = pb.ForwardMessageToDeadLetterQueueRequest(receipt_handle=handle)
            request.group.name, request.topic.name = "G", "T"
            answer = await bus.unary("ForwardMessageToDeadLetterQueue", request)
            assert answer.status.code == pb.OK

        async with trio.open_nursery() as nursery:
            for handle in handles:
                nursery.start_soon(give_up, handle)
            while nursery.child_tasks:
                await trio.testing.wait_all_tasks_blocked(cushion=0.005)
                await bus.sleep(1)
        assert most == LETTERS_MAX

    run(scenario)
