"""The protocol's operators' service as a list of methods for a transport."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
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
from commitbus.broker.messaging.methods import answering
from commitbus.broker.rpc.call import Call
from commitbus.broker.rpc.defaults import MAX_MESSAGE_BYTES, REQUEST_BYTES_MAX
from commitbus.broker.rpc.method import Method, MethodKind
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb

_SERVICE: Final = "/apache.rocketmq.v2.Admin/"

Handler = Callable[[AdminContext, Any, Call], Message | Awaitable[Message]]

_HANDLERS: Final[Sequence[tuple[str, type[Message], type[Message], Handler]]] = (
    (
        "ChangeLogLevel",
        pb.ChangeLogLevelRequest,
        pb.ChangeLogLevelResponse,
        process.change_log_level,
    ),
    (
        "DescribeTopicStatus",
        pb.DescribeTopicStatusRequest,
        pb.DescribeTopicStatusResponse,
        topics.describe_topic_status,
    ),
    (
        "ListSubscription",
        pb.ListSubscriptionRequest,
        pb.ListSubscriptionResponse,
        subscriptions.list_subscription,
    ),
    (
        "DescribeSubscription",
        pb.DescribeSubscriptionRequest,
        pb.DescribeSubscriptionResponse,
        subscriptions.describe_subscription,
    ),
    (
        "DeleteSubscription",
        pb.DeleteSubscriptionRequest,
        pb.DeleteSubscriptionResponse,
        subscriptions.delete_subscription,
    ),
    (
        "DescribeGroupAccumulation",
        pb.DescribeGroupAccumulationRequest,
        pb.DescribeGroupAccumulationResponse,
        groups.describe_group_accumulation,
    ),
    (
        "ListConsumerConnection",
        pb.ListConsumerConnectionRequest,
        pb.ListConsumerConnectionResponse,
        subscriptions.list_consumer_connection,
    ),
    (
        "ResetGroupOffset",
        pb.ResetGroupOffsetRequest,
        pb.ResetGroupOffsetResponse,
        groups.reset_group_offset,
    ),
    ("QueryMessage", pb.ListMessageRequest, pb.ListMessageResponse, messages.query_message),
    (
        "PrintThreadStackTrace",
        pb.PrintThreadStackTraceRequest,
        pb.PrintThreadStackTraceResponse,
        client_calls.print_thread_stack_trace,
    ),
    (
        "VerifyMessage",
        pb.VerifyMessageRequest,
        pb.VerifyMessageResponse,
        client_calls.verify_message,
    ),
    (
        "AdminSendMessage",
        pb.AdminSendMessageRequest,
        pb.AdminSendMessageResponse,
        messages.admin_send_message,
    ),
    (
        "GetConsumerRunningInfo",
        pb.GetConsumerRunningInfoRequest,
        pb.GetConsumerRunningInfoResponse,
        client_calls.get_consumer_running_info,
    ),
    (
        "GetTopicRoute",
        pb.GetTopicRouteRequest,
        pb.GetTopicRouteResponse,
        topics.get_topic_route,
    ),
    (
        "QueryTimeSpan",
        pb.QueryTimeSpanRequest,
        pb.QueryTimeSpanResponse,
        groups.query_time_span,
    ),
    (
        "GetProxyRuntimeStats",
        pb.GetProxyRuntimeStatsRequest,
        pb.GetProxyRuntimeStatsResponse,
        process.get_proxy_runtime_stats,
    ),
)


def admin_v2_methods(context: AdminContext) -> list[Method]:
    """Return the methods of the service. Refusals are statuses, as producers and consumers get."""
    return [
        Method(
            path=_SERVICE + name,
            kind=MethodKind.UNARY,
            request_type=request_type,
            response_type=response_type,
            handler=answering(partial(handler, context), response_type),
            max_request_bytes=MAX_MESSAGE_BYTES
            if name == "AdminSendMessage"
            else REQUEST_BYTES_MAX,
        )
        for name, request_type, response_type, handler in _HANDLERS
    ]
