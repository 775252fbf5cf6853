"""What a topic is, and where it lies."""

from __future__ import annotations

import json

from commitbus.broker.admin.context import AdminContext
from commitbus.broker.admin.v2.names import known_topic
from commitbus.broker.messaging.message_types import TYPES
from commitbus.broker.messaging.route import MASTER_ID
from commitbus.broker.messaging.status import ok
from commitbus.broker.metadata.topics import TopicConfig
from commitbus.broker.rpc.call import Call
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb


def describe_topic_status(
    context: AdminContext, request: pb.DescribeTopicStatusRequest, _call: Call
) -> pb.DescribeTopicStatusResponse:
    """Return a topic's type and attributes.

    Raises:
        RequestError: there is no such topic.
    """
    topic = known_topic(context, request.topic)
    # There is no word for MIXED and UNSPECIFIED; the attribute is among the tags.
    return pb.DescribeTopicStatusResponse(
        status=ok(),
        topic_message_type=TYPES.get(topic.message_type, pb.MESSAGE_TYPE_UNSPECIFIED),
        tags=topic.attributes,
    )


def get_topic_route(
    context: AdminContext, request: pb.GetTopicRouteRequest, _call: Call
) -> pb.GetTopicRouteResponse:
    """Return where a topic lies, in RocketMQ's JSON.

    Raises:
        RequestError: there is no such topic.
    """
    topic = known_topic(context, request.topic)
    return pb.GetTopicRouteResponse(
        status=ok(), topic_route_data=json.dumps(_route(context, topic))
    )


def _route(context: AdminContext, topic: TopicConfig) -> dict[str, object]:
    """Return the fields of RocketMQ's TopicRouteData."""
    name = context.config.broker_name
    return {
        "brokerDatas": [
            {
                "brokerAddrs": {str(MASTER_ID): context.address},
                "brokerName": name,
                "cluster": context.config.cluster_name,
                "enableActingMaster": False,
            }
        ],
        "filterServerTable": {},
        "queueDatas": [
            {
                "brokerName": name,
                "perm": topic.perm,
                "readQueueNums": topic.read_queue_nums,
                "topicSysFlag": topic.topic_sys_flag,
                "writeQueueNums": topic.write_queue_nums,
            }
        ],
    }
