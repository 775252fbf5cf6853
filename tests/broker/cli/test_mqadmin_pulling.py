"""mqadmin beside consumers that keep their own offsets."""

from __future__ import annotations

import grpc

from commitbus.broker import Broker
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from tests.broker.cli.conftest import Mqadmin, MqadminJson, eventually

SERVICE = "/apache.rocketmq.v2.MessagingService/"
METADATA = (("x-mq-client-id", "puller"),)


def test_the_progress_of_a_group_that_pulls_is_shown(
    broker: Broker, mqadmin: Mqadmin, mqadmin_json: MqadminJson
) -> None:
    """As far as its consumers said it; pulling alone says nothing."""
    mqadmin("updateTopic", "-t", "pulled", "-r", "1", "-w", "1")
    mqadmin("updateSubGroup", "-g", "pullers")
    for body in ("a", "b", "c"):
        mqadmin("sendMessage", "-t", "pulled", "-p", body)
    assert mqadmin_json("consumerProgress", "-g", "pullers")["queues"] == []
    with grpc.insecure_channel(broker.endpoint) as channel:
        update = channel.unary_unary(
            SERVICE + "UpdateOffset",
            request_serializer=pb.UpdateOffsetRequest.SerializeToString,
            response_deserializer=pb.UpdateOffsetResponse.FromString,
        )
        request = pb.UpdateOffsetRequest(offset=1)
        request.group.name, request.message_queue.topic.name = "pullers", "pulled"
        assert update(request, metadata=METADATA, timeout=10).status.code == pb.OK
    eventually(lambda: mqadmin_json("topicStatus", "-t", "pulled")["queues"][0]["max_offset"] == 3)
    (row,) = mqadmin_json("consumerProgress", "-g", "pullers")["queues"]
    assert (row["consumer_offset"], row["broker_offset"], row["diff"]) == (1, 3, 2)
