"""mqadmin's commands about topics, against a running broker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from commitbus.broker import Broker
from commitbus.broker.cli.mqadmin import COMMANDS, main
from tests.broker.cli.conftest import eventually

Run = Callable[..., str]
RunJson = Callable[..., Any]


def words(line: str) -> str:
    """A line of a table with single spaces."""
    return " ".join(line.split())


def test_a_topic_is_created_with_rocketmq_s_defaults(mqadmin: Run, broker: Broker) -> None:
    """Eight queues, read and write, and the words of RocketMQ's tool."""
    lines = mqadmin("updateTopic", "-c", "DefaultCluster", "-t", "Created").splitlines()
    assert lines == [
        f"create topic to {broker.endpoint} success.",
        "TopicConfig [topicName=Created, readQueueNums=8, writeQueueNums=8, perm=RW-, "
        "topicFilterType=SINGLE_TAG, topicSysFlag=0, order=false, attributes={}]",
    ]


def test_the_commands_of_the_interop_suites_work(mqadmin: Run, broker: Broker) -> None:
    """Attributes with a plus, and a dead letter topic with percent signs."""
    endpoint = ("-n", broker.endpoint)
    mqadmin(
        "updateTopic", *endpoint, "-t", "PyFifo", *("-r", "4", "-w", "4"), "-a",
        "+message.type=FIFO",
    )  # fmt: skip
    mqadmin("updateSubGroup", *endpoint, "-g", "PyGFifo", "-o", "true")
    mqadmin("updateSubGroup", *endpoint, "-g", "PyGDlq", "-r", "1")
    shown = mqadmin("updateTopic", *endpoint, "-t", "%DLQ%PyGDlq", "-r", "1", "-w", "1", "-p", "6")
    assert "topicName=%DLQ%PyGDlq, readQueueNums=1, writeQueueNums=1, perm=RW-" in shown
    assert {"PyFifo", "%DLQ%PyGDlq"} <= set(mqadmin("topicList").splitlines())


def test_what_is_not_given_stays(mqadmin: Run, mqadmin_json: RunJson) -> None:
    """Changing one setting does not reset the others."""
    mqadmin("updateTopic", "-t", "Kept", "-r", "3", "-w", "3", "-a", "+message.type=DELAY")
    changed = mqadmin_json("updateTopic", "-t", "Kept", "-w", "2", "-p", "4", "-o", "true")
    assert changed == {
        "topic": "Kept",
        "read_queue_nums": 3,
        "write_queue_nums": 2,
        "perm": 4,
        "order": True,
        "topic_sys_flag": 0,
        "attributes": {"message.type": "DELAY"},
        "groups": [],
    }


@pytest.mark.parametrize(
    ("arguments", "flag"),
    [(("-u", "true"), 1), (("-s", "true"), 2), (("-u", "true", "-s", "true"), 3)],
)
def test_the_flags_of_a_unit_are_kept(
    mqadmin_json: RunJson, arguments: tuple[str, ...], flag: int
) -> None:
    """As RocketMQ numbers them."""
    assert mqadmin_json("updateTopic", "-t", "Unit", *arguments)["topic_sys_flag"] == flag


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", [("clusterList",), ("help",)])
def test_a_reader_that_goes_away_is_no_error(
    broker: Broker, arguments: tuple[str, ...], unbuffered: str
) -> None:
    """As with `mqadmin topicList | head`."""
    reading, writing = os.pipe()
    os.close(reading)
    program = "import sys; from commitbus.broker.cli.mqadmin import main; sys.exit(main())"
    ours = {"COMMITBUS_ENDPOINT": broker.endpoint, "PYTHONUNBUFFERED": unbuffered}
    try:
        done = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            stdout=writing,
            stderr=subprocess.PIPE,
            env={**os.environ, **ours},
            check=False,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


def test_an_attribute_is_deleted_with_a_dash(mqadmin_json: RunJson) -> None:
    """The value of -a may look like an option."""
    mqadmin_json("updateTopic", "-t", "Plain", "-a", "+message.type=FIFO,+queue.type=SimpleCQ")
    for option in ("-a", "--attributes"):
        mqadmin_json("updateTopic", "-t", "Plain", "-a", "+message.type=FIFO")
        changed = mqadmin_json("updateTopic", "-t", "Plain", option, "-message.type")
        assert changed["attributes"] == {"queue.type": "SimpleCQ"}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("-t", "Bad", "-a", "+message.type=NOPE"), "attribute 'message.type': must be one of"),
        (("-t", "Bad", "-a", "+no.such=1"), "attribute 'no.such': unknown"),
        (("-t", "Bad", "-r", "0"), "0 read queues: a topic has 1 to 1024"),
        (("-t", "Bad", "-w", "5000"), "5000 write queues"),
        (("-t", "Bad", "-p", "9"), "perm 9"),
        (("-t", "Bad", "-r", "-1"), "readQueueNums"),
        (("-t", "no/slash"), "is no topic: only the characters"),
        (("-t", "rmq_sys_x"), "is a topic of the system"),
        (("-t", "Bad", "-c", "OtherCluster"), "belongs to cluster 'DefaultCluster'"),
    ],
)
def test_a_topic_that_cannot_be_is_refused(
    refused: Run, mqadmin: Run, arguments: tuple[str, ...], reason: str
) -> None:
    """The reason is said, and nothing is created."""
    assert reason in refused("updateTopic", *arguments)
    assert "Bad" not in mqadmin("topicList").splitlines()


def test_a_deleted_topic_is_gone(mqadmin: Run, refused: Run) -> None:
    """So are its messages, for another topic of the name."""
    mqadmin("updateTopic", "-t", "Deleted")
    mqadmin("sendMessage", "-t", "Deleted", "-p", "x")
    eventually(lambda: mqadmin("printMsg", "-t", "Deleted"))
    assert mqadmin("deleteTopic", "-t", "Deleted", "-c", "DefaultCluster").splitlines() == [
        "delete topic [Deleted] from cluster [DefaultCluster] success.",
        "delete topic [Deleted] from NameServer success.",
    ]
    assert "Deleted" not in mqadmin("topicList").splitlines()
    assert "there is no topic 'Deleted'" in refused("deleteTopic", "-t", "Deleted")
    mqadmin("updateTopic", "-t", "Deleted")
    assert mqadmin("printMsg", "-t", "Deleted") == ""


def test_the_list_shows_cluster_and_groups(mqadmin: Run) -> None:
    """With -c, a row for each group that has progress, and one for a topic without."""
    mqadmin("updateTopic", "-t", "Listed")
    mqadmin("updateTopic", "-t", "Consumed")
    for group in ("g1", "g2"):
        mqadmin("updateSubGroup", "-g", group)
        mqadmin("skipAccumulatedMessage", "-g", group, "-t", "Consumed")
    rows = [line.split() for line in mqadmin("topicList", "-c").splitlines()]
    assert rows[0] == ["#Cluster", "Name", "#Topic", "#Consumer", "Group"]
    assert [row[1:] for row in rows if "Listed" in row] == [["Listed"]]
    assert [row[1:] for row in rows if "Consumed" in row] == [
        ["Consumed", "g1"],
        ["Consumed", "g2"],
    ]


def test_the_status_shows_every_queue(mqadmin: Run, mqadmin_json: RunJson) -> None:
    """Offsets of each queue, and the rate below."""
    mqadmin("updateTopic", "-t", "Status", "-r", "2", "-w", "2")
    mqadmin("sendMessage", "-t", "Status", "-p", "x", "-i", "1")
    eventually(lambda: mqadmin_json("topicStatus", "-t", "Status")["queues"][1]["max_offset"])
    status = mqadmin_json("topicStatus", "-t", "Status")
    rows = [(q["queue_id"], q["min_offset"], q["max_offset"]) for q in status["queues"]]
    assert rows == [(0, 0, 0), (1, 0, 1)]
    assert [q["last_updated_ms"] > 0 for q in status["queues"]] == [False, True]
    lines = mqadmin("topicStatus", "-t", "Status").splitlines()
    assert words(lines[0]) == "#Broker Name #QID #Min Offset #Max Offset #Last Updated"
    assert lines[1].split() == ["broker-a", "0", "0", "0"]
    assert lines[-1].startswith("Topic Put TPS: ")


def test_the_route_is_json_or_a_table(mqadmin: Run, refused: Run, broker: Broker) -> None:
    """Field names as RocketMQ's TopicRouteData has them."""
    mqadmin("updateTopic", "-t", "Routed", "-r", "4", "-w", "3")
    route = json.loads(mqadmin("topicRoute", "-t", "Routed"))
    assert route["brokerDatas"][0]["brokerAddrs"] == {"0": broker.endpoint}
    assert route["queueDatas"] == [
        {
            "brokerName": "broker-a",
            "perm": 6,
            "readQueueNums": 4,
            "topicSysFlag": 0,
            "writeQueueNums": 3,
        }
    ]
    lines = mqadmin("topicRoute", "-t", "Routed", "-l").splitlines()
    assert lines[0].split() == [
        *("#ClusterName", "#BrokerName", "#BrokerAddrs", "#ReadQueue", "#WriteQueue", "#Perm")
    ]
    assert lines[1].split() == [
        *("DefaultCluster", "broker-a", f"{{0={broker.endpoint}}}", "4", "3", "6")
    ]
    assert lines[2].split() == ["Total:", "1", "4", "3"]
    assert "no such topic: Nowhere" in refused("topicRoute", "-t", "Nowhere")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a broker."""
    with pytest.raises(SystemExit, match=r"^0$"):
        main([command, "-h"])
    assert capsys.readouterr().out.startswith(f"usage: mqadmin {command}")
    assert main(["help", command]) == 0
    assert capsys.readouterr().out.startswith(f"usage: mqadmin {command}")


@pytest.mark.parametrize("arguments", [("createTopic",), ("help", "createTopic")])
def test_an_unknown_command_is_refused(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """With a status of its own."""
    assert main(arguments) == 2
    assert "no such command: 'createTopic'" in capsys.readouterr().err


@pytest.mark.parametrize("endpoint", ["nowhere", "", "http://127.0.0.1:1", ";", "127.0.0.1:99999"])
def test_an_endpoint_that_is_none_is_refused_before_anything_is_tried(
    refused: Run, endpoint: str
) -> None:
    """Not after three seconds of waiting."""
    assert "the endpoint" in refused("clusterList", "-n", endpoint)


def test_an_argument_that_is_not_utf_8_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """No name, key or body can be made of it."""
    assert main(["updateTopic", "-t", "\udcff"]) == 2
    assert "is not UTF-8" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ("updateTopic", "-t", "T", "-r", "99999999999"),
        ("clusterList", "-i", "nan"),
        ("consumeMessage", "-t", "T", "-c", "-1"),
        ("queryMsgByKey", "-t", "T", "-k", "k", "-m", "0"),
        ("listDeadLetters", "-g", "G", "-m", "-1"),
        ("printMsg", "-t", "T", "-b", str(2**63 - 1)),
        ("printMsg", "-t", "T", "-c", "rot13"),
    ],
)
def test_a_value_that_makes_no_sense_is_a_mistake_of_usage(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Argparse names the option."""
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert f"argument {arguments[-2]}" in capsys.readouterr().err
