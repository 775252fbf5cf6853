"""The protocol's operators' service as a list of methods for a transport."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

from google.protobuf.message import Message

from commitbus.broker.admin.context import AdminContext
from commitbus.broker.admin.v2 import (
    client_calls,
    groups,
    messages,
    process,
    subscriptions,
    topics,
)
from commitbus.broker.common.worker_lines import as_operator
from commitbus.broker.messaging.methods import refusal_in
from commitbus.broker.messaging.validate import send_request_bytes_max
from commitbus.broker.rpc.access import Access, Action, ResourceType, touching, touching_all
from commitbus.broker.rpc.call import Call
from commitbus.broker.rpc.defaults import SMALL_REQUEST_BYTES_MAX
from commitbus.broker.rpc.method import Method, unary_methods
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb

Handler = Callable[[AdminContext, Any, Call], Message | Awaitable[Message]]

_GET_TOPIC: Final = touching(Action.GET, topic="topic.name")
_GET_GROUP: Final = touching(Action.GET, group="group.name")

_HANDLERS: Final[Mapping[str, tuple[Handler, Access]]] = {
    "ChangeLogLevel": (process.change_log_level, touching_all(Action.UPDATE, ResourceType.CLUSTER)),
    "DescribeTopicStatus": (topics.describe_topic_status, _GET_TOPIC),
    "ListSubscription": (
        subscriptions.list_subscription,
        touching(Action.LIST, topic="topic.name", group="group.name"),
    ),
    "DescribeSubscription": (
        subscriptions.describe_subscription,
        touching(Action.GET, topic="topic.name", group="group.name"),
    ),
    "DeleteSubscription": (
        subscriptions.delete_subscription,
        touching(Action.DELETE, topic="topic.name", group="group.name"),
    ),
    "DescribeGroupAccumulation": (groups.describe_group_accumulation, _GET_GROUP),
    "ListConsumerConnection": (subscriptions.list_consumer_connection, _GET_GROUP),
    "ResetGroupOffset": (
        groups.reset_group_offset,
        touching(Action.UPDATE, topic="topic.name", group="group.name"),
    ),
    "QueryMessage": (messages.query_message, _GET_TOPIC),
    "PrintThreadStackTrace": (client_calls.print_thread_stack_trace, _GET_GROUP),
    "VerifyMessage": (
        client_calls.verify_message,
        touching(Action.SUB, topic="topic.name", group="group.name"),
    ),
    "AdminSendMessage": (messages.admin_send_message, touching(Action.PUB, topic="topic.name")),
    "GetConsumerRunningInfo": (client_calls.get_consumer_running_info, _GET_GROUP),
    "GetTopicRoute": (topics.get_topic_route, _GET_TOPIC),
    "QueryTimeSpan": (groups.query_time_span, _GET_GROUP),
    "GetProxyRuntimeStats": (
        process.get_proxy_runtime_stats,
        touching_all(Action.GET, ResourceType.CLUSTER),
    ),
}


def admin_v2_methods(context: AdminContext) -> list[Method]:
    """Return the methods of the service. Refusals are statuses, as producers and consumers get."""
    return unary_methods(
        pb.DESCRIPTOR.services_by_name["Admin"],
        {
            name: (partial(_answer, handler, context), access)
            for name, (handler, access) in _HANDLERS.items()
        },
        refusal_in,
        request_bytes_max=SMALL_REQUEST_BYTES_MAX,
        larger_requests={"AdminSendMessage": send_request_bytes_max(context.config.max_body_bytes)},
        is_for_operators=True,
    )


def _answer(
    handler: Handler, context: AdminContext, request: Message, call: Call
) -> Message | Awaitable[Message]:
    answer = handler(context, request, call)
    return answer if isinstance(answer, Message) else as_operator(answer)
