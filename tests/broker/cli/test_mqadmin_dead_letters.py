"""mqadmin's commands about dead letters, against a running broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from commitbus.broker.cli.mqadmin import main
from commitbus.broker.config import Transport
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from tests.broker.admin.served import Served

Run = Callable[..., str]
RunJson = Callable[..., Any]
Names = tuple[str, str]


@pytest.fixture(scope="module", params=[Transport.GRPCIO, Transport.TRIO])
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """The one that `mqadmin` speaks to."""
    served = Served(tmp_path_factory.mktemp("store"), request.param)
    yield served
    served.stop()


@pytest.fixture
def names(broker: Served, request: pytest.FixtureRequest) -> Names:
    """A topic and a group of this test."""
    name = str(request.node.originalname)[-100:]
    return broker.topic(f"T-{name}"), broker.group(f"G-{name}")


def bury(broker: Served, topic: str, group: str, *bodies: bytes, **fields: str) -> list[str]:
    """Have a group give up on messages; return their ids."""
    ids = broker.send(topic, *bodies, **fields)
    for message in broker.receive(topic, group):
        request = pb.ForwardMessageToDeadLetterQueueRequest(
            receipt_handle=message.system_properties.receipt_handle
        )
        request.group.name, request.topic.name = group, topic
        assert broker.messaging("ForwardMessageToDeadLetterQueue", request).status.code == pb.OK
    assert broker.store.dispatched.wait(broker.store.end_offset, 10)
    return ids


def test_dead_letters_are_listed_and_read(
    mqadmin: Run, mqadmin_json: RunJson, broker: Served, names: Names
) -> None:
    topic, group = names
    assert len(bury(broker, topic, group, b"bad", b"worse", tag="t", key="k")) == 2
    ids = [row["message_id"] for row in mqadmin_json("listDeadLetters", "-g", group)]
    lines = mqadmin("listDeadLetters", "-g", group, "-m", "1").splitlines()
    assert lines[0].split() == [
        *("#Message", "ID", "#Offset", "#Origin", "Topic", "#Tag", "#Store", "Time")
    ]
    assert lines[1].split()[:4] == [ids[0], "0", topic, "t"]
    assert len(lines) == 2
    row = mqadmin_json("listDeadLetters", "-g", group)[1]
    assert (row["origin_topic"], row["origin_message_id"]) == (topic, ids[1])
    assert (row["queue_offset"], row["keys"]) == (1, ["k"])
    assert mqadmin_json("listDeadLetters", "-g", group, "-e", "1") == []
    found = mqadmin_json("readDeadLetter", "-g", group, "-i", ids[1])
    assert found["topic"] == f"%DLQ%{group}"
    assert Path(found["body_path"]).read_bytes() == b"worse"


def test_all_dead_letters_are_sent_back_once(
    mqadmin: Run, mqadmin_json: RunJson, broker: Served, names: Names
) -> None:
    """To where they came from, as they were; however often it is asked for."""
    topic, group = names
    bodies = [b"%d" % n for n in range(70)]
    for start in (0, 32, 64):
        bury(broker, topic, group, *bodies[start : start + 32], tag="t", key="k")
    back = ("sendBackDeadLetters", "-g", group)
    assert mqadmin(*back, "-o", "60") == "10 sent back, 0 sent back before, 0 failed\n"
    assert mqadmin_json(*back, "--all") == {
        "group": group,
        "sent_back": 60,
        "sent_back_before": 10,
        "failed": [],
    }
    assert mqadmin_json(*back, "--all")["sent_back"] == 0
    assert broker.store.dispatched.wait(broker.store.end_offset, 10)
    received: list[pb.Message] = []
    while len(received) < 70:
        batch = broker.receive(topic, group)
        assert batch
        received += batch
    assert [m.body for m in received] == [*bodies[60:], *bodies[:60]]
    system = received[0].system_properties
    assert (system.tag, list(system.keys), system.delivery_attempt) == ("t", ["k"], 1)
    assert not system.HasField("dead_letter_queue")
    assert dict(received[0].user_properties) == {}


def test_one_dead_letter_is_sent_back_and_may_die_again(
    mqadmin_json: RunJson, refused: Run, broker: Served, names: Names
) -> None:
    """It keeps its id; each death is sent back once."""
    topic, group = names
    (message_id,) = bury(broker, topic, group, b"bad")
    back = ("sendBackDeadLetters", "-g", group, "-i", message_id)
    for death in (1, 2):
        assert mqadmin_json(*back)["sent_back"] == 1
        assert mqadmin_json(*back) == {
            "group": group,
            "sent_back": 0,
            "sent_back_before": 1,
            "failed": [],
        }
        assert broker.store.max_offset(topic, 0) == 1 + death
        bury(broker, topic, group)
    letters = mqadmin_json("listDeadLetters", "-g", group)
    assert [row["message_id"] for row in letters] == [message_id] * 3
    assert "no dead letter has the id 'nobody'" in refused(
        "sendBackDeadLetters", "-g", group, "-i", "nobody"
    )


def test_an_orderly_message_goes_back_to_the_queue_of_its_group(
    mqadmin_json: RunJson, broker: Served
) -> None:
    """Where its neighbours are."""
    topic = broker.topic("T-orderly", queues=4, **{"message.type": "FIFO"})
    group = broker.group("G-orderly")
    request = pb.AdminSendMessageRequest(body=b"bad")
    request.topic.name, request.system_properties.message_group = topic, "gA"
    assert broker.admin("AdminSendMessage", request).status.code == pb.OK
    assert broker.store.dispatched.wait(broker.store.end_offset, 10)
    bury(broker, topic, group)
    assert mqadmin_json("sendBackDeadLetters", "-g", group, "--all")["sent_back"] == 1
    assert broker.store.dispatched.wait(broker.store.end_offset, 10)
    assert broker.store.max_offset(topic, 3) == 2
    (message,) = broker.receive(topic, group)
    assert message.system_properties.message_group == "gA"


def test_letters_that_cannot_go_back_are_told_one_by_one(
    mqadmin: Run, broker: Served, names: Names, capsys: pytest.CaptureFixture[str]
) -> None:
    """The others go; the exit status says that some did not."""
    topic, group = names
    gone = broker.topic("T-gone")
    bury(broker, gone, group, b"lost")
    bury(broker, topic, group, b"fine")
    mqadmin("sendMessage", "-t", f"%DLQ%{group}", "-p", "never alive")
    mqadmin("deleteTopic", "-t", gone, "-c", "DefaultCluster")
    assert broker.store.dispatched.wait(broker.store.end_offset, 10)
    status = main(["sendBackDeadLetters", "-n", broker.endpoint, "-g", group, "--all"])
    lines = capsys.readouterr().out.splitlines()
    assert status == 1
    assert lines[0] == "1 sent back, 0 sent back before, 2 failed"
    assert "no such topic: T-gone" in lines[2]
    assert "no such topic" in lines[3]


def test_a_group_without_dead_letters(
    mqadmin: Run, mqadmin_json: RunJson, refused: Run, names: Names
) -> None:
    """Has none: that is no error. One that does not exist is."""
    _, group = names
    assert mqadmin_json("listDeadLetters", "-g", group) == []
    nothing = "0 sent back, 0 sent back before, 0 failed\n"
    assert mqadmin("sendBackDeadLetters", "-g", group, "--all") == nothing
    assert "no dead letter has the id 'x'" in refused("sendBackDeadLetters", "-g", group, "-i", "x")
    assert "no such topic: %DLQ%Nobody" in refused("listDeadLetters", "-g", "Nobody")
    assert "no consumer group 'Nobody'" in refused("sendBackDeadLetters", "-g", "Nobody", "-a")
