"""The operator's service as a list of methods for a transport."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

from google.protobuf.message import Message

from commitbus.broker.admin import cluster, dead_letters, groups, messages
from commitbus.broker.admin import topics as topic_handlers
from commitbus.broker.admin.context import AdminContext
from commitbus.broker.admin.status import refusal
from commitbus.broker.common.worker_lines import as_operator
from commitbus.broker.messaging.validate import send_request_bytes_max
from commitbus.broker.rpc.access import (
    Access,
    Action,
    Resource,
    ResourceType,
    topics,
    touching,
    touching_all,
)
from commitbus.broker.rpc.call import Call
from commitbus.broker.rpc.defaults import SMALL_REQUEST_BYTES_MAX
from commitbus.broker.rpc.method import Method, unary_methods
from commitbus.broker.rpc.proto import admin_v1_pb2 as pb

Handler = Callable[[AdminContext, Any], Awaitable[Message]]


def _topic_of_message(request: pb.GetMessageRequest) -> list[Resource]:
    # An offset id does not say of which topic its message is.
    return topics([request.unique_key.topic or request.place.topic])


_HANDLERS: Final[Mapping[str, tuple[Handler, Access]]] = {
    "PutTopic": (topic_handlers.put_topic, touching(Action.CREATE, topic="name")),
    "DeleteTopic": (topic_handlers.delete_topic, touching(Action.DELETE, topic="name")),
    "ListTopics": (topic_handlers.list_topics, touching_all(Action.LIST, ResourceType.TOPIC)),
    "GetTopicStatus": (topic_handlers.get_topic_status, touching(Action.GET, topic="topic")),
    "PutGroup": (groups.put_group, touching(Action.CREATE, group="name")),
    "DeleteGroup": (groups.delete_group, touching(Action.DELETE, group="name")),
    "ListGroups": (groups.list_groups, touching_all(Action.LIST, ResourceType.GROUP)),
    "GetConsumerProgress": (groups.get_consumer_progress, touching(Action.GET, group="group")),
    "ResetOffsets": (
        groups.reset_group_offsets,
        touching(Action.UPDATE, topic="topic", group="group"),
    ),
    "ListProducers": (groups.list_producers, touching(Action.GET, topic="topic")),
    "GetBroker": (cluster.get_broker, touching_all(Action.GET, ResourceType.CLUSTER)),
    "SealSegment": (cluster.seal_segment, touching_all(Action.UPDATE, ResourceType.CLUSTER)),
    "QueryMessages": (messages.query_messages, touching(Action.GET, topic="topic")),
    "GetMessage": (messages.get_message, Access(Action.GET, _topic_of_message)),
    "SendMessage": (messages.send_message, touching(Action.PUB, topic="topic")),
    "SendBackDeadLetters": (
        dead_letters.send_back_dead_letters,
        touching(Action.UPDATE, group="group"),
    ),
}


def admin_methods(context: AdminContext) -> list[Method]:
    """Return the methods of the admin service."""
    return unary_methods(
        pb.DESCRIPTOR.services_by_name["Admin"],
        {
            name: (partial(_answer, handler, context), access)
            for name, (handler, access) in _HANDLERS.items()
        },
        lambda _: refusal,
        request_bytes_max=SMALL_REQUEST_BYTES_MAX,
        larger_requests={"SendMessage": send_request_bytes_max(context.config.max_body_bytes)},
        is_for_operators=True,
    )


async def _answer(
    handler: Handler, context: AdminContext, request: Message, _call: Call
) -> Message:
    return await as_operator(handler(context, request))
