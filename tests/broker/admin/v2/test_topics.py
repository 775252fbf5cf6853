"""Topics and the process, over both transports."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb

Names = tuple[str, str]


def of_topic(served: Any, kind: Any, topic: str) -> Any:
    request = kind()
    request.topic.name = topic
    return served.admin(kind.__name__.removesuffix("Request"), request)


@pytest.mark.parametrize(
    ("attribute", "message_type"),
    [("NORMAL", pb.NORMAL), ("FIFO", pb.FIFO), ("MIXED", pb.MESSAGE_TYPE_UNSPECIFIED)],
)
def test_a_topic_says_its_type(served: Any, attribute: str, message_type: pb.MessageType) -> None:
    topic = served.topic("T-typed", **{"message.type": attribute})
    response = of_topic(served, pb.DescribeTopicStatusRequest, topic)
    assert (response.status.code, response.topic_message_type) == (pb.OK, message_type)
    assert dict(response.tags) == {"message.type": attribute}


def test_a_route_is_rocketmqs_json(served: Any) -> None:
    topic = served.topic("T-routed", queues=3)
    response = of_topic(served, pb.GetTopicRouteRequest, topic)
    assert response.status.code == pb.OK
    route = json.loads(response.topic_route_data)
    (broker,), (queue,) = route["brokerDatas"], route["queueDatas"]
    assert broker["brokerAddrs"] == {"0": served.running.endpoint}
    assert (broker["brokerName"], broker["cluster"]) == ("broker-a", "DefaultCluster")
    assert (queue["readQueueNums"], queue["writeQueueNums"], queue["perm"]) == (3, 3, 6)


@pytest.mark.parametrize("kind", [pb.DescribeTopicStatusRequest, pb.GetTopicRouteRequest])
def test_topics_that_are_not_there(served: Any, kind: Any) -> None:
    assert of_topic(served, kind, "Missing").status.code == pb.TOPIC_NOT_FOUND
    assert of_topic(served, kind, "a b").status.code == pb.ILLEGAL_TOPIC


def test_runtime_stats_count_clients(served: Any, names: Names, connect: Any) -> None:
    topic, group = names
    connect("c1", group, **{topic: "*"})
    served.messaging("Heartbeat", pb.HeartbeatRequest(client_type=pb.PRODUCER), "p1")
    served.send(topic, b"x")
    stats = served.admin("GetProxyRuntimeStats", pb.GetProxyRuntimeStatsRequest())
    assert (stats.status.code, stats.proxy_name) == (pb.OK, "broker-a")
    assert stats.version == served.running.context.version
    assert stats.in_tps > 0
    assert (stats.consumers, stats.producers) == (1, 1)
    assert stats.connections >= 2
    served.messaging("NotifyClientTermination", pb.NotifyClientTerminationRequest(), "p1")


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """The logger of the whole project, as it was afterwards."""
    logger = logging.getLogger("commitbus")
    level = logger.level
    yield logger
    logger.setLevel(level)


def test_the_log_level_is_changed_while_the_broker_runs(
    served: Any, logger: logging.Logger
) -> None:
    levels = pb.ChangeLogLevelRequest
    for level, wanted in (
        (levels.TRACE, logging.DEBUG),
        (levels.WARN, logging.WARNING),
        (levels.ERROR, logging.ERROR),
        (levels.INFO, logging.INFO),
    ):
        remark = served.admin("ChangeLogLevel", levels(level=level)).remark
        assert logger.level == wanted
        assert logging.getLevelName(wanted) in remark
    unknown = pb.ChangeLogLevelRequest.FromString(b"\x08\x63")
    assert "no level 99" in served.admin("ChangeLogLevel", unknown).remark
    assert logger.level == logging.INFO
