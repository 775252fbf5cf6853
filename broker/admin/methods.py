"""The operator's service as a list of methods for a transport."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

from google.protobuf.message import Message

from commitbus.broker.admin import cluster, dead_letters, groups, messages, topics
from commitbus.broker.admin.context import AdminContext
from commitbus.broker.admin.status import refusal
from commitbus.broker.messaging.validate import send_request_bytes_max
from commitbus.broker.rpc.call import Call
from commitbus.broker.rpc.defaults import SMALL_REQUEST_BYTES_MAX
from commitbus.broker.rpc.method import Method, unary_methods
from commitbus.broker.rpc.proto import admin_v1_pb2 as pb
from commitbus.broker.worker_lines import as_operator

Handler = Callable[[AdminContext, Any], Awaitable[Message]]

_HANDLERS: Final[Mapping[str, Handler]] = {
    "PutTopic": topics.put_topic,
    "DeleteTopic": topics.delete_topic,
    "ListTopics": topics.list_topics,
    "GetTopicStatus": topics.get_topic_status,
    "PutGroup": groups.put_group,
    "DeleteGroup": groups.delete_group,
    "ListGroups": groups.list_groups,
    "GetConsumerProgress": groups.get_consumer_progress,
    "ResetOffsets": groups.reset_group_offsets,
    "ListProducers": groups.list_producers,
    "GetBroker": cluster.get_broker,
    "SealSegment": cluster.seal_segment,
    "QueryMessages": messages.query_messages,
    "GetMessage": messages.get_message,
    "SendMessage": messages.send_message,
    "SendBackDeadLetters": dead_letters.send_back_dead_letters,
}


def admin_methods(context: AdminContext) -> list[Method]:
    """Return the methods of the admin service."""
    return unary_methods(
        pb.DESCRIPTOR.services_by_name["Admin"],
        {name: partial(_answer, handler, context) for name, handler in _HANDLERS.items()},
        lambda _: refusal,
        request_bytes_max=SMALL_REQUEST_BYTES_MAX,
        larger_requests={"SendMessage": send_request_bytes_max(context.config.max_body_bytes)},
        is_for_operators=True,
    )


async def _answer(
    handler: Handler, context: AdminContext, request: Message, _call: Call
) -> Message:
    return await as_operator(handler(context, request))
