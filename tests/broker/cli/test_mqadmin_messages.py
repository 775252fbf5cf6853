"""mqadmin's commands about messages, groups and the cluster, against a running broker."""

from __future__ import annotations

import re
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from commitbus.broker.cli import admin_client, mqadmin_cluster
from commitbus.broker.cli.mqadmin import main
from tests.broker.cli.conftest import eventually

Run = Callable[..., str]
RunJson = Callable[..., Any]


def words(line: str) -> str:
    """A line of a table with single spaces."""
    return " ".join(line.split())


@pytest.fixture
def topic(mqadmin: Run, request: pytest.FixtureRequest) -> str:
    """A topic named after the test."""
    name = re.sub(r"[^a-z_]", "_", str(request.node.name))
    mqadmin("updateTopic", "-t", name, "-r", "2", "-w", "2")
    return name


def test_a_message_is_found_by_its_key(mqadmin_json: RunJson, mqadmin: Run, topic: str) -> None:
    """Newest first, in RocketMQ's columns."""
    sent = [
        mqadmin_json("sendMessage", "-t", topic, "-p", str(n), "-k", "order-1 other", "-i", "1")
        for n in range(3)
    ]
    query = ("queryMsgByKey", "-t", topic, "-k", "order-1")
    eventually(lambda: len(mqadmin_json(*query)) == 3)
    found = mqadmin_json(*query)
    assert [row["message_id"] for row in found] == [s["message_id"] for s in reversed(sent)]
    lines = mqadmin(*query).splitlines()
    assert lines[0].split() == ["#Message", "ID", "#QID", "#Offset", "#IndexKey"]
    assert lines[1].split()[:3] == [sent[2]["message_id"], "1", "2"]
    assert re.fullmatch(
        rf"\d+@{re.escape(topic)}@K@order-1@{sent[2]['message_id']}@\d+", found[0]["index_key"]
    )
    page = mqadmin_json(*query, "-m", "2")
    assert page == found[:2]
    assert mqadmin_json(*query, "-m", "2", "-l", page[-1]["index_key"]) == found[2:]
    assert mqadmin_json(*query, "-e", "1") == []


def test_a_message_is_found_by_its_tag(mqadmin_json: RunJson, topic: str) -> None:
    """With -p T, the key is the tag."""
    sent = mqadmin_json("sendMessage", "-t", topic, "-p", "x", "-c", "paid")
    mqadmin_json("sendMessage", "-t", topic, "-p", "x", "-c", "open")
    found = eventually(lambda: mqadmin_json("queryMsgByKey", "-t", topic, "-k", "paid", "-p", "T"))
    assert [row["message_id"] for row in found] == [sent["message_id"]]


def test_a_message_is_shown_by_each_of_its_names(
    mqadmin_json: RunJson, mqadmin: Run, topic: str
) -> None:
    """Offset id, the producer's id, and queue offset lead to the same message."""
    sent = mqadmin_json(
        "sendMessage", "-t", topic, "-p", "-body", "-k", "k", "-c", "t", "-i", "0"
    )  # fmt: skip
    by_id = eventually(lambda: mqadmin_json("queryMsgById", "-i", sent["offset_id"]))
    assert by_id["topic"] == topic
    assert by_id["queue_id"] == by_id["queue_offset"] == 0
    assert by_id["properties"]["KEYS"] == "k"
    assert by_id["properties"]["TAGS"] == "t"
    assert Path(by_id["body_path"]).read_bytes() == b"-body"
    unique = sent["message_id"]
    eventually(lambda: mqadmin_json("queryMsgByKey", "-t", topic, "-k", unique))
    assert mqadmin_json("queryMsgById", "-t", topic, "-i", unique) == by_id
    assert mqadmin_json("queryMsgByUniqueKey", "-t", topic, "-i", unique) == by_id
    assert mqadmin_json("queryMsgByOffset", "-t", topic, "-i", "0", "-o", "0") == by_id
    lines = mqadmin("queryMsgById", "-i", sent["offset_id"]).splitlines()
    names = [line.partition(":")[0] for line in lines if line]
    assert names == [
        *("OffsetID", "Topic", "Tags", "Keys", "Queue ID", "Queue Offset", "CommitLog Offset"),
        *("Reconsume Times", "Born Timestamp", "Store Timestamp", "Born Host", "Store Host"),
        *("System Flag", "Properties", "Message Body Path"),
    ]


def test_a_body_file_is_not_written_into_somebody_s_link(
    mqadmin_json: RunJson, refused: Run, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory has a name that anybody can guess."""
    sent = mqadmin_json("sendMessage", "-t", topic, "-p", "x")
    eventually(lambda: mqadmin_json("queryMsgById", "-i", sent["offset_id"]))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    trap = tmp_path / "trap"
    trap.mkdir()
    (own,) = tmp_path.glob("commitbus-*")
    (trap / own.name).symlink_to(elsewhere)
    monkeypatch.setattr(tempfile, "tempdir", str(trap))
    assert "belongs to somebody else" in refused("queryMsgById", "-i", sent["offset_id"])
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("queryMsgById", "-i", "0" * 31 + "1"), "no such message"),
        (("queryMsgById", "-i", "7F000001" + "0" * 8 + "7" + "0" * 15), "no such message"),
        (("queryMsgById", "-i", "not-an-offset-id"), "name the topic with -t"),
        (("queryMsgByUniqueKey", "-t", "x", "-i", "0123"), "no such message"),
        (("queryMsgByOffset", "-t", "x", "-i", "0", "-o", "5"), "no such message"),
        (("queryMsgByOffset", "-t", "x", "-i", "0", "-o", "-5"), "no such message"),
        (("queryMsgByOffset", "-t", "x", "-i", "0", "-o", "0", "-b", "other"), "'broker-a'"),
        (("queryMsgByKey", "-t", "Nowhere", "-k", "x"), "there is no topic 'Nowhere'"),
        (("sendMessage", "-t", "Nowhere", "-p", "x"), "there is no topic 'Nowhere'"),
        (("topicStatus", "-t", "Nowhere"), "there is no topic 'Nowhere'"),
        (("consumerProgress", "-g", "nobody"), "there is no consumer group 'nobody'"),
        (("deleteSubGroup", "-g", "nobody"), "there is no consumer group 'nobody'"),
        (("updateSubGroup", "-g", "CID_RMQ_SYS_x"), "are the broker's"),
        (("updateSubGroup", "-g", "g", "-p", "{"), "is not JSON"),
        (("updateSubGroup", "-g", "g", "-p", "{}"), 'needs a "type"'),
        (("updateSubGroup", "-g", "g", "-r", "-7"), "retryMaxTimes"),
        (("updateSubGroup", "-g", "g", "--attributes", "-x"), "cannot be deleted"),
    ],
)
def test_what_does_not_exist_is_said(refused: Run, arguments: tuple[str, ...], reason: str) -> None:
    """A sentence and a status, never a traceback."""
    assert reason in refused(*arguments)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("-p", ""), "body"),
        (("-p", "x", "-c", "a|b"), "tag"),
        (("-p", "x", "-i", "2"), "has the queues 0 to 1, not 2"),
        (("-p", "x", "-b", "other"), "is 'broker-a', not 'other'"),
    ],
)
def test_a_message_under_the_limits_of_producers(
    refused: Run, topic: str, options: tuple[str, ...], reason: str
) -> None:
    """An operator's message is no exception."""
    assert reason in refused("sendMessage", "-t", topic, *options)


def test_only_topics_for_normal_messages_are_sent_to(
    mqadmin: Run, refused: Run, topic: str
) -> None:
    """A message without a group would have no order in a FIFO topic."""
    mqadmin("updateTopic", "-t", topic, "-a", "+message.type=FIFO")
    assert "takes FIFO messages" in refused("sendMessage", "-t", topic, "-p", "x")
    mqadmin("updateTopic", "-t", topic, "-a", "+message.type=NORMAL", "-p", "4")
    assert "has no writable queue" in refused("sendMessage", "-t", topic, "-p", "x")


def test_a_group_is_created_changed_and_deleted(mqadmin: Run, mqadmin_json: RunJson) -> None:
    """RocketMQ's words, and what is not given stays."""
    shown = mqadmin("updateSubGroup", "-g", "changed", "-r", "3")
    assert "SubscriptionGroupConfig{groupName=changed, consumeEnable=true" in shown
    assert "retryMaxTimes=3" in shown
    policy = '{"type":"EXPONENTIAL","exponentialRetryPolicy":{"initial":1000,"multiplier":3}}'
    group = mqadmin_json(
        *("updateSubGroup", "-g", "changed", "-o", "true", "-q", "2", "-s", "false", "-p", policy),
        *("--attributes", "+priority.factor=50"),
    )
    assert group["retry_max_times"] == 3
    assert group["retry_queue_nums"] == 2
    assert group["consume_message_orderly"] is True
    assert group["consume_enable"] is False
    assert group["attributes"] == {"priority.factor": "50"}
    assert '"initial":1000' in group["group_retry_policy"]
    rows = {row["group"]: row for row in mqadmin_json("consumerProgress")}
    assert rows["changed"]["version"] == "OFFLINE"
    assert rows["changed"]["diff_total"] == 0
    mqadmin("deleteSubGroup", "-g", "changed", "-r", "true")
    assert "changed" not in {row["group"] for row in mqadmin_json("consumerProgress")}


def test_the_cluster_is_one_broker(mqadmin: Run, mqadmin_json: RunJson, topic: str) -> None:
    """Rates by default, totals with -m."""
    mqadmin("sendMessage", "-t", topic, "-p", "x")
    header, row = mqadmin("clusterList").splitlines()
    assert words(header) == (
        "#Cluster Name #Broker Name #BID #Addr #Version #InTPS(LOAD) #OutTPS(LOAD) "
        "#Timer(Progress) #PCWait(ms) #Hour #SPACE #ACTIVATED"
    )
    assert row.split()[:3] == ["DefaultCluster", "broker-a", "0"]
    assert row.split()[-1] == "true"
    totals = mqadmin("clusterList", "-m").splitlines()
    assert words(totals[0]) == (
        "#Cluster Name #Broker Name #InTotalYest #OutTotalYest #InTotalToday #OutTotalToday"
    )
    assert mqadmin_json("clusterList")[0]["in_total_today"] >= 1


def test_the_cluster_is_shown_again_and_again(
    broker: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With -i, until Ctrl-C."""
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            raise KeyboardInterrupt

    # The broker's own threads go on sleeping as they do.
    patched = SimpleNamespace(sleep=sleep, time_ns=time.time_ns)
    monkeypatch.setattr(mqadmin_cluster, "time", patched)
    assert main(["clusterList", "-n", broker.endpoint, "-i", "0.5"]) == 1
    assert waits == [0.5] * 3
    assert capsys.readouterr().out.count("#Cluster Name") == 3


def test_an_endpoint_without_a_broker_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a traceback, and not forever."""
    monkeypatch.setattr(admin_client, "CONNECT_TIMEOUT_S", 0.25)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{taken.getsockname()[1]}"
        assert main(["topicList", "-n", endpoint]) == 1
    assert capsys.readouterr().err == (
        f"mqadmin topicList: no broker answers at {endpoint} within 0.25 s: Connection refused\n"
    )


def test_the_endpoint_may_come_from_rocketmq_s_variable(
    mqadmin: Run, monkeypatch: pytest.MonkeyPatch, broker: Any
) -> None:
    """NAMESRV_ADDR, several separated by semicolons; ours comes first."""
    monkeypatch.delenv("COMMITBUS_ENDPOINT")
    monkeypatch.setenv("NAMESRV_ADDR", f"{broker.endpoint};127.0.0.1:9")
    assert "broker-a" in mqadmin("clusterList")
