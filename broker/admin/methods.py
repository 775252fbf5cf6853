"""The operator's service as a list of methods for a transport."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from google.protobuf.message import Message

from commitbus.broker.admin import cluster, dead_letters, groups, messages, topics
from commitbus.broker.admin.context import AdminContext
from commitbus.broker.messaging.errors import RequestError
from commitbus.broker.messaging.status import status_of
from commitbus.broker.metadata.errors import StateWriteError
from commitbus.broker.rpc.call import Call, RpcError, StatusCode
from commitbus.broker.rpc.method import Method, MethodKind
from commitbus.broker.rpc.proto import admin_v1_pb2 as pb
from commitbus.commitlog.errors import StoreError

_SERVICE: Final = "/commitbus.admin.v1.Admin/"

_REFUSALS: Final = {
    403: StatusCode.FAILED_PRECONDITION,
    404: StatusCode.NOT_FOUND,
    428: StatusCode.FAILED_PRECONDITION,
    429: StatusCode.RESOURCE_EXHAUSTED,
}
"""By a hundredth of the protocol's code: this service refuses by gRPC's own ones."""

Handler = Callable[[AdminContext, Any], Awaitable[Message]]

_HANDLERS: Final[Sequence[tuple[str, type[Message], type[Message], Handler]]] = (
    ("PutTopic", pb.PutTopicRequest, pb.Topic, topics.put_topic),
    ("DeleteTopic", pb.DeleteTopicRequest, pb.DeleteTopicResponse, topics.delete_topic),
    ("ListTopics", pb.ListTopicsRequest, pb.ListTopicsResponse, topics.list_topics),
    ("GetTopicStatus", pb.GetTopicStatusRequest, pb.TopicStatus, topics.get_topic_status),
    ("PutGroup", pb.PutGroupRequest, pb.Group, groups.put_group),
    ("DeleteGroup", pb.DeleteGroupRequest, pb.DeleteGroupResponse, groups.delete_group),
    ("ListGroups", pb.ListGroupsRequest, pb.ListGroupsResponse, groups.list_groups),
    (
        "GetConsumerProgress",
        pb.GetConsumerProgressRequest,
        pb.ConsumerProgress,
        groups.get_consumer_progress,
    ),
    ("ResetOffsets", pb.ResetOffsetsRequest, pb.ResetOffsetsResponse, groups.reset_group_offsets),
    ("ListProducers", pb.ListProducersRequest, pb.ListProducersResponse, groups.list_producers),
    ("GetBroker", pb.GetBrokerRequest, pb.Broker, cluster.get_broker),
    ("SealSegment", pb.SealSegmentRequest, pb.SealSegmentResponse, cluster.seal_segment),
    ("QueryMessages", pb.QueryMessagesRequest, pb.QueryMessagesResponse, messages.query_messages),
    ("GetMessage", pb.GetMessageRequest, pb.GetMessageResponse, messages.get_message),
    ("SendMessage", pb.SendMessageRequest, pb.SendMessageResponse, messages.send_message),
    (
        "SendBackDeadLetters",
        pb.SendBackDeadLettersRequest,
        pb.SendBackDeadLettersResponse,
        dead_letters.send_back_dead_letters,
    ),
)


def admin_methods(context: AdminContext) -> list[Method]:
    """Return the methods of the admin service."""
    return [
        Method(
            path=_SERVICE + name,
            kind=MethodKind.UNARY,
            request_type=request_type,
            response_type=response_type,
            handler=_answering(context, handler),
        )
        for name, request_type, response_type, handler in _HANDLERS
    ]


def _answering(
    context: AdminContext, handler: Handler
) -> Callable[[Any, Call], Awaitable[Message]]:
    async def answer(request: Message, _call: Call) -> Message:
        try:
            return await handler(context, request)
        except RequestError as error:
            status = status_of(error)
            code = _REFUSALS.get(status.code // 100, StatusCode.INVALID_ARGUMENT)
            raise RpcError(code, status.message) from None
        except StateWriteError as error:
            raise RpcError(StatusCode.UNAVAILABLE, str(error)) from None
        except StoreError as error:
            raise RpcError(StatusCode.FAILED_PRECONDITION, str(error)) from None

    return answer
