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
from commitbus.broker.messaging.methods import refusal_in
from commitbus.broker.messaging.validate import send_request_bytes_max
from commitbus.broker.rpc.call import Call
from commitbus.broker.rpc.defaults import SMALL_REQUEST_BYTES_MAX
from commitbus.broker.rpc.method import Method, unary_methods
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from commitbus.broker.worker_lines import as_operator

Handler = Callable[[AdminContext, Any, Call], Message | Awaitable[Message]]

_HANDLERS: Final[Mapping[str, Handler]] = {
    "ChangeLogLevel": process.change_log_level,
    "DescribeTopicStatus": topics.describe_topic_status,
    "ListSubscription": subscriptions.list_subscription,
    "DescribeSubscription": subscriptions.describe_subscription,
    "DeleteSubscription": subscriptions.delete_subscription,
    "DescribeGroupAccumulation": groups.describe_group_accumulation,
    "ListConsumerConnection": subscriptions.list_consumer_connection,
    "ResetGroupOffset": groups.reset_group_offset,
    "QueryMessage": messages.query_message,
    "PrintThreadStackTrace": client_calls.print_thread_stack_trace,
    "VerifyMessage": client_calls.verify_message,
    "AdminSendMessage": messages.admin_send_message,
    "GetConsumerRunningInfo": client_calls.get_consumer_running_info,
    "GetTopicRoute": topics.get_topic_route,
    "QueryTimeSpan": groups.query_time_span,
    "GetProxyRuntimeStats": process.get_proxy_runtime_stats,
}


def admin_v2_methods(context: AdminContext) -> list[Method]:
    """Return the methods of the service. Refusals are statuses, as producers and consumers get."""
    return unary_methods(
        pb.DESCRIPTOR.services_by_name["Admin"],
        {name: partial(_answer, handler, context) for name, handler in _HANDLERS.items()},
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
