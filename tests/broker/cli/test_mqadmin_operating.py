"""mqadmin's commands about clients, offsets and what a topic holds, against a running broker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from commitbus.broker.cli.mqadmin import main
from commitbus.broker.config import Transport
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from tests.broker.admin.served import Connections, Consumer, Served

Run = Callable[..., str]
RunJson = Callable[..., Any]
Names = tuple[str, str]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The one that `mqadmin` speaks to."""
    served = Served(tmp_path_factory.mktemp("store"), Transport.TRIO)
    yield served
    served.stop()


@pytest.fixture
def connect(broker: Served) -> Iterator[Connections]:
    """Connect consumers, which are gone after the test."""
    connections = Connections(broker)
    yield connections
    connections.close()


@pytest.fixture
def names(broker: Served, request: pytest.FixtureRequest) -> Names:
    """A topic and a group of this test."""
    name = str(request.node.originalname)[-100:]
    return broker.topic(f"T-{name}", queues=2), broker.group(f"G-{name}")


def words(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_consumers_and_their_subscriptions(
    mqadmin: Run, mqadmin_json: RunJson, names: Names, connect: Connections
) -> None:
    topic, group = names
    connect("c1", group, **{topic: "A || B"})
    lines = words(mqadmin("consumerConnection", "-g", group))
    assert lines == [
        "#ClientId #ClientAddr #Language #Version",
        "c1 127.0.0.1 PYTHON 5.1.2",
        "",
        "Below is subscription:",
        "#Topic #SubExpression",
        f"{topic} A || B",
        "",
        "ConsumeType: CONSUME_POP",
        "MessageModel: CLUSTERING",
        "ConsumeFromWhere: CONSUME_FROM_MAX_OFFSET",
    ]
    connect("c2", group, **{topic: "C"})
    assert f"The clients do not agree about topic {topic}." in mqadmin(
        "consumerConnection", "-g", group
    )
    found = mqadmin_json("consumerConnection", "-g", group)
    assert sorted(row["client_id"] for row in found["clients"]) == ["c1", "c2"]
    assert [row["consistent"] for row in found["subscriptions"]] == [False]


def test_producers_of_a_topic(
    mqadmin: Run, mqadmin_json: RunJson, broker: Served, names: Names
) -> None:
    topic, _ = names
    settings = pb.Settings(client_type=pb.PRODUCER)
    settings.publishing.topics.add(name=topic)
    producer = Consumer(broker, "p1", settings)
    (row,) = mqadmin_json("producerConnection", "-t", topic, "-g", "any")
    assert (row["client_id"], row["language"]) == ("p1", "PYTHON")
    (line,) = words(mqadmin("producerConnection", "-t", topic))
    assert line.startswith("0001 p1 127.0.0.1:")
    producer.hang_up()
    assert mqadmin("producerConnection", "-t", broker.topic("T-without-producer")) == ""


def test_what_a_consumer_holds_and_does(
    mqadmin: Run, mqadmin_json: RunJson, broker: Served, names: Names, connect: Connections
) -> None:
    topic, group = names
    consumer = connect("c1", group, **{topic: "*"})

    def answer(command: pb.TelemetryCommand) -> pb.TelemetryCommand:
        made = pb.TelemetryCommand()
        made.thread_stack_trace.nonce = command.print_thread_stack_trace_command.nonce
        made.thread_stack_trace.thread_stack_trace = "main: asleep"
        return made

    consumer.answer = answer
    broker.send(topic, b"a", b"b")
    broker.receive(topic, group, client_id="c1")
    (row,) = mqadmin_json("consumerStatus", "-g", group)
    assert (row["client_id"], row["version"], row["held"]) == ("c1", "5.1.2", 2)
    assert words(mqadmin("consumerStatus", "-g", group))[1] == "c1 5.1.2 2"
    found = mqadmin_json("consumerStatus", "-g", group, "-i", "c1", "-s")
    assert found["jstack"] == "main: asleep"
    assert found["properties"]["clientType"] == "PUSH_CONSUMER"
    assert sorted(queue["held_count"] for queue in found["queues"]) == [1, 1]
    text = mqadmin("consumerStatus", "-g", group, "-i", "c1", "-s")
    assert "#Consumer jstack#\nmain: asleep" in text
    assert "#Consumer MQ Detail#" in text


def test_a_consumer_that_is_not_there(refused: Run, names: Names) -> None:
    _, group = names
    assert "no client 'c9' is connected" in refused("consumerStatus", "-g", group, "-i", "c9")
    assert "-s needs -i" in refused("consumerStatus", "-g", group, "-s")


def test_who_holds_a_message_of_an_orderly_group(
    mqadmin_json: RunJson, broker: Served, names: Names
) -> None:
    """The client, without the attempt under which the broker knows it."""
    topic, _ = names
    group = broker.group("G-orderly-holder", consume_message_orderly=True)
    broker.send(topic, b"x")
    broker.receive(topic, group, client_id="holder", attempt_id="attempt-1")
    rows = mqadmin_json("consumerProgress", "-g", group, "-s")["queues"]
    assert sorted(row["clients"] for row in rows) == ["N/A", "holder"]


def test_what_became_of_a_message_in_each_group(
    mqadmin: Run, mqadmin_json: RunJson, broker: Served, names: Names
) -> None:
    """In RocketMQ's words; a group that has not begun the topic is not named."""
    topic, group = names
    done = broker.group("G-that-is-done")
    (message_id,) = broker.send(topic, b"x")
    show = ("queryMsgByUniqueKey", "-t", topic, "-i", message_id)
    assert mqadmin_json(*show)["tracks"] == {}
    broker.receive(topic, group, client_id="c1")
    broker.ack(topic, done, *broker.receive(topic, done, client_id="c2"))
    beat = pb.HeartbeatRequest(client_type=pb.SIMPLE_CONSUMER)
    beat.group.name = group
    broker.messaging("Heartbeat", beat, "c1")
    assert mqadmin_json(*show)["tracks"] == {group: "NOT_CONSUME_YET", done: "CONSUMED"}
    broker.messaging("NotifyClientTermination", pb.NotifyClientTerminationRequest(), "c1")
    assert mqadmin_json(*show)["tracks"] == {group: "NOT_ONLINE", done: "CONSUMED"}
    tracks = mqadmin(*show).splitlines()[-2:]
    track = "MessageTrack [consumerGroup={}, trackType={}, exceptionDesc=null]"
    assert sorted(tracks) == sorted(
        [track.format(group, "NOT_ONLINE"), track.format(done, "CONSUMED")]
    )


@pytest.mark.parametrize("code", [pb.OK, pb.FAILED_TO_CONSUME_MESSAGE])
def test_one_client_consumes_a_message_on_demand(
    broker: Served,
    names: Names,
    connect: Connections,
    capsys: pytest.CaptureFixture[str],
    code: pb.Code,
) -> None:
    """Whether it could is the exit status."""
    topic, group = names
    consumer = connect("c1", group, **{topic: "*"})

    def answer(command: pb.TelemetryCommand) -> pb.TelemetryCommand:
        made = pb.TelemetryCommand(status=pb.Status(code=code))
        made.verify_message_result.nonce = command.verify_message_command.nonce
        return made

    consumer.answer = answer
    (message_id,) = broker.send(topic, b"x")
    command = ["queryMsgByUniqueKey", "-n", broker.endpoint, "-t", topic, "-i", message_id]
    status = main([*command, "-g", group, "-d", "c1"])
    assert pb.Code.Name(code) in capsys.readouterr().out
    assert status == (0 if code == pb.OK else 1)
    assert main([*command, "-g", group]) == 1
    assert "-g and -d belong together" in capsys.readouterr().err


def test_offsets_are_reset_to_a_time(
    mqadmin: Run, mqadmin_json: RunJson, broker: Served, names: Names
) -> None:
    """All queues or one, to a time, to now, or to an offset."""
    topic, group = names
    broker.send(topic, b"0", b"1", b"2", b"3")
    reset = ("resetOffsetByTime", "-g", group, "-t", topic)
    assert words(mqadmin(*reset, "-s", "now"))[1:] == [
        "#brokerName #queueId #offset",
        "broker-a 0 2",
        "broker-a 1 2",
    ]
    assert mqadmin_json("consumerProgress", "-g", group)["diff_total"] == 0
    assert [row["offset"] for row in mqadmin_json(*reset, "-s", "0", "-q", "1")] == [0]
    assert [m.body for m in broker.receive(topic, group)] == [b"1", b"3"]
    rows = mqadmin_json(*reset, "-q", "0", "-o", "1", "-b", "broker-a")
    assert [(row["queue_id"], row["offset"]) for row in rows] == [(0, 1)]
    assert [m.body for m in broker.receive(topic, group)] == [b"2"]
    rows = mqadmin_json(*reset, "-s", "2001-01-01#00:00:00:000")
    assert [row["offset"] for row in rows] == [0, 0]


def test_a_reset_without_force_skips_nothing(
    mqadmin_json: RunJson, broker: Served, names: Names
) -> None:
    topic, group = names
    broker.send(topic, b"0", b"1")
    reset = ("resetOffsetByTime", "-g", group, "-t", topic, "-f", "false")
    mqadmin_json(*reset, "-s", "0")
    assert [row["offset"] for row in mqadmin_json(*reset, "-s", "now")] == [0, 0]
    assert sorted(m.body for m in broker.receive(topic, group)) == [b"0", b"1"]


def test_what_has_accumulated_is_skipped(mqadmin: Run, broker: Served, names: Names) -> None:
    topic, group = names
    broker.send(topic, b"0", b"1")
    lines = words(mqadmin("skipAccumulatedMessage", "-g", group, "-t", topic))
    assert lines[2:] == ["broker-a 0 1", "broker-a 1 1"]
    broker.send(topic, b"2")
    assert [m.body for m in broker.receive(topic, group)] == [b"2"]


def test_how_far_a_group_is(
    mqadmin: Run, mqadmin_json: RunJson, broker: Served, names: Names
) -> None:
    """Queue by queue in RocketMQ's columns, with sums, and who holds messages if asked."""
    topic, group = names
    broker.send(topic, b"0", b"1", b"2")
    (message,) = broker.receive(topic, group, batch=1)
    broker.ack(topic, group, message)
    (held,) = broker.receive(topic, group, client_id="holder", batch=1)
    progress = ("consumerProgress", "-g", group, "-t", topic)
    lines = words(mqadmin(*progress))
    assert lines[0] == (
        "#Topic #Broker Name #QID #Broker Offset #Consumer Offset #Diff #Inflight #LastTime"
    )
    assert len(lines[1:3]) == 2
    assert lines[3] == ""
    assert lines[4].startswith("Consume TPS: ")
    assert lines[5:] == ["Consume Diff Total: 2", "Consume Inflight Total: 1"]
    with_clients = words(mqadmin(*progress, "-s", "true"))
    assert "#Client IP #Diff" in with_clients[0]
    row = with_clients[1 + held.system_properties.queue_id]
    assert row.startswith(f"{topic} broker-a {held.system_properties.queue_id} ")
    assert " holder " in row
    rows = {row["group"]: row for row in mqadmin_json("consumerProgress")}
    assert rows[group]["diff_total"] == 2
    assert words(mqadmin("consumerProgress"))[0] == (
        "#Group #Count #Version #Type #Model #TPS #Diff Total"
    )


def test_lag_leaves_out_what_is_acknowledged_behind_a_message_in_flight(
    mqadmin_json: RunJson, broker: Served, names: Names
) -> None:
    topic, group = names
    broker.send(topic, *(b"%d" % n for n in range(20)))
    first, *others = broker.receive(topic, group)
    broker.ack(topic, group, *others)
    found = mqadmin_json("consumerProgress", "-g", group)
    assert (found["diff_total"], found["inflight_total"]) == (1, 1)
    assert [row["diff"] for row in found["queues"]] == [
        int(queue_id == first.system_properties.queue_id) for queue_id in range(2)
    ]
    rows = {row["group"]: row for row in mqadmin_json("consumerProgress")}
    assert rows[group]["diff_total"] == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "name a time with -s"),
        (("-o", "1"), "-o needs -q"),
        (("-q", "7", "-s", "now"), "has the queues 0 to 1"),
        (("-q", "0", "-o", "99"), "is not in [0, 0]"),
        (("-s", "now", "-b", "another"), "not 'another'"),
    ],
)
def test_a_reset_that_makes_no_sense(
    refused: Run, names: Names, arguments: tuple[str, ...], text: str
) -> None:
    topic, group = names
    assert text in refused("resetOffsetByTime", "-g", group, "-t", topic, *arguments)


def test_a_reset_of_what_does_not_exist(refused: Run, names: Names) -> None:
    topic, group = names
    assert "there is no" in refused("skipAccumulatedMessage", "-g", "Nobody", "-t", topic)
    assert "there is no" in refused("skipAccumulatedMessage", "-g", group, "-t", "Nowhere")


def test_messages_are_printed(
    mqadmin: Run, mqadmin_json: RunJson, broker: Served, names: Names
) -> None:
    """Of all queues, page by page, by tag and time."""
    topic, _ = names
    ids = broker.send(topic, *[b"%d" % n for n in range(70)], tag="even", key="k")
    time.sleep(0.05)
    between_ms = time.time_ns() // 1_000_000
    time.sleep(0.05)
    broker.send(topic, b"odd \xff", tag="odd")
    lines = mqadmin("printMsg", "-t", topic).splitlines()
    assert len(lines) == 71
    assert lines[0].startswith(f"MSGID: {ids[0]} QID: 0 OFFSET: 0 STORED: ")
    assert lines[0].endswith(" TAGS: [even] KEYS: [k] BODY: 0")
    assert len(mqadmin("printMsg", "-t", topic, "-s", "even || other").splitlines()) == 70
    assert "BODY" not in mqadmin("printMsg", "-t", topic, "-d", "false")
    (row,) = mqadmin_json("printMsg", "-t", topic, "-b", str(between_ms))
    assert (row["tag"], row["body_base64"]) == ("odd", "b2RkIP8=")
    (row,) = mqadmin_json("printMsg", "-t", topic, "-b", str(between_ms), "-c", "latin-1")
    assert row["body"] == "odd ÿ"
    assert len(mqadmin_json("printMsg", "-t", topic, "-e", str(between_ms))) == 70


def test_messages_are_printed_from_an_offset_on(
    mqadmin: Run, mqadmin_json: RunJson, refused: Run, broker: Served, names: Names
) -> None:
    """No group's progress is touched."""
    topic, group = names
    broker.send(topic, *[b"%d" % n for n in range(6)])
    consume = ("consumeMessage", "-t", topic)
    rows = mqadmin_json(*consume, "-i", "1", "-o", "1", "-g", group, "-b", "broker-a")
    assert [row["body"] for row in rows] == ["3", "5"]
    assert len(mqadmin(*consume, "-c", "4").splitlines()) == 4
    assert len(mqadmin_json(*consume)) == 6
    assert "-o needs -i" in refused(*consume, "-o", "1")
    assert "has the queues 0 to 1" in refused(*consume, "-i", "2")
    assert mqadmin_json("consumerProgress", "-g", group)["queues"] == []


def test_the_brokers_figures(mqadmin: Run, mqadmin_json: RunJson, names: Names) -> None:
    mqadmin("sendMessage", "-t", names[0], "-p", "x")
    figures = mqadmin_json("brokerStatus", "-c", "DefaultCluster")
    assert figures["commitLogMaxOffset"] > figures["commitLogMinOffset"] == 0
    assert figures["msgPutTotalTodayNow"] > 0
    lines = mqadmin("brokerStatus").splitlines()
    found = [line.split(":")[0].strip() for line in lines]
    assert found == sorted(figures)
