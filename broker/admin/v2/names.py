"""What a request names, looked up."""

from __future__ import annotations

import trio

from commitbus.broker.admin.context import AdminContext
from commitbus.broker.messaging.questions import ANSWER_S_MAX
from commitbus.broker.messaging.validate import group_name, topic_name
from commitbus.broker.metadata.groups import GroupConfig
from commitbus.broker.metadata.topics import TopicConfig
from commitbus.broker.rpc.call import Call
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb

_ANSWER_MARGIN_S = 0.2


def known_topic(context: AdminContext, resource: pb.Resource) -> TopicConfig:
    """Return the settings of a topic.

    Raises:
        IllegalTopicError: its name breaks the rules, or is the system's.
        TopicNotFoundError: there is none.
    """
    return context.broker.existing_topic(topic_name(resource))


def known_group(context: AdminContext, resource: pb.Resource) -> GroupConfig:
    """Return the settings of a consumer group.

    Raises:
        IllegalGroupError: its name breaks the rules.
        GroupNotFoundError: there is none.
    """
    return context.broker.existing_group(group_name(resource))


def time_for_answer_s(call: Call) -> float:
    """Return how long a client may take, so that its silence is told before the deadline."""
    if call.deadline_s is None:
        return ANSWER_S_MAX
    left_s = call.deadline_s - trio.current_time() - _ANSWER_MARGIN_S
    return min(max(left_s, 0.0), ANSWER_S_MAX)
