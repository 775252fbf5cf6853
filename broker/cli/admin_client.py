"""The operator's side of the two admin services: one method for each of the calls it makes."""

from __future__ import annotations

from types import TracebackType
from typing import Final, TypeVar, final

from google.protobuf.message import Message

from commitbus.broker.cli.common_options import CONNECT_TIMEOUT_S
from commitbus.broker.cli.output import CommandError
from commitbus.broker.cli.tls import PLAINTEXT, Tls, explained
from commitbus.broker.client.errors import BrokerUnavailableError, ClientClosedError, Trouble
from commitbus.broker.client.link import Link
from commitbus.broker.client.loop import ClientLoop
from commitbus.broker.rpc.call import RpcError, StatusCode
from commitbus.broker.rpc.proto import admin_v1_pb2 as pb
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as v2

SERVICE: Final = "/commitbus.admin.v1.Admin"
PROTOCOL_SERVICE: Final = "/apache.rocketmq.v2.Admin"
TIMEOUT_S: Final = 10.0
SEAL_TIMEOUT_S: Final = 120.0
CLIENT_TIMEOUT_S: Final = 35.0
"""For what the broker asks a client, which has 30 s to answer."""

_Response = TypeVar("_Response", bound=Message)


@final
class AdminClient:
    """A connection to one broker, for the time of a `with` block. Used by one thread.

    Everything raises `CommandError` when the broker does not answer, or refuses.
    """

    def __init__(self, endpoint: str, tls: Tls = PLAINTEXT) -> None:
        """Name the broker as `host:port` or `unix:PATH`.

        Raises:
            ValueError: `endpoint` is no such thing.
        """
        self._endpoint = endpoint
        self._session = _Session(Link(endpoint, tls.context, tls.server_name))
        self._loop: ClientLoop | None = None

    def __enter__(self) -> AdminClient:
        """Connect."""
        try:
            self._loop = ClientLoop(self._session)
            # Whether this is a broker of ours, before a command asks for more.
            self._call("GetBroker", pb.GetBrokerRequest(), pb.Broker, timeout_s=CONNECT_TIMEOUT_S)
        except BrokerUnavailableError as error:
            if error.trouble is not Trouble.OTHER:
                raise explained(error) from None
            text = f"no broker answers at {self._endpoint} within {CONNECT_TIMEOUT_S:g} s"
            raise CommandError(f"{text}: {error.reason}") from None
        except CommandError:
            self._close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the connection."""
        self._close()

    def _close(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.stop(discard=True)

    def put_topic(self, request: pb.PutTopicRequest) -> pb.Topic:
        """Create a topic or change one."""
        return self._call("PutTopic", request, pb.Topic)

    def delete_topic(self, name: str) -> None:
        """Delete a topic."""
        self._call("DeleteTopic", pb.DeleteTopicRequest(name=name), pb.DeleteTopicResponse)

    def topics(self) -> list[pb.Topic]:
        """Return all topics, sorted by name."""
        response = self._call("ListTopics", pb.ListTopicsRequest(), pb.ListTopicsResponse)
        return list(response.topics)

    def topic_status(self, topic: str) -> pb.TopicStatus:
        """Return the offsets of a topic's queues."""
        request = pb.GetTopicStatusRequest(topic=topic)
        return self._call("GetTopicStatus", request, pb.TopicStatus)

    def put_group(self, request: pb.PutGroupRequest) -> pb.Group:
        """Create a group or change one."""
        return self._call("PutGroup", request, pb.Group)

    def delete_group(self, name: str) -> None:
        """Delete a group."""
        self._call("DeleteGroup", pb.DeleteGroupRequest(name=name), pb.DeleteGroupResponse)

    def groups(self) -> list[pb.ListGroupsResponse.Summary]:
        """Return all groups, sorted by name."""
        response = self._call("ListGroups", pb.ListGroupsRequest(), pb.ListGroupsResponse)
        return list(response.summaries)

    def consumer_progress(self, group: str, topic: str) -> pb.ConsumerProgress:
        """Return how far a group is; on all topics when `topic` is empty."""
        request = pb.GetConsumerProgressRequest(group=group, topic=topic)
        return self._call("GetConsumerProgress", request, pb.ConsumerProgress)

    def broker(self) -> pb.Broker:
        """Return the broker's name, rates and state."""
        return self._call("GetBroker", pb.GetBrokerRequest(), pb.Broker)

    def seal_segment(self) -> pb.SealSegmentResponse:
        """End the log file that is written."""
        # A gigabyte may have to be synced and read first.
        return self._call(
            "SealSegment",
            pb.SealSegmentRequest(),
            pb.SealSegmentResponse,
            timeout_s=SEAL_TIMEOUT_S,
        )

    def query_messages(self, request: pb.QueryMessagesRequest) -> list[pb.Message]:
        """Return messages by key or tag, without bodies, newest first."""
        return list(self._call("QueryMessages", request, pb.QueryMessagesResponse).messages)

    def message(self, request: pb.GetMessageRequest) -> pb.GetMessageResponse:
        """Return one message, and what became of it in each group."""
        return self._call("GetMessage", request, pb.GetMessageResponse)

    def send(self, request: pb.SendMessageRequest) -> pb.SendMessageResponse:
        """Send one message."""
        return self._call("SendMessage", request, pb.SendMessageResponse)

    def reset_offsets(self, request: pb.ResetOffsetsRequest) -> list[pb.ResetOffsetsResponse.Queue]:
        """Have a group go on elsewhere; return where in each queue."""
        return list(self._call("ResetOffsets", request, pb.ResetOffsetsResponse).queues)

    def producers(self, topic: str) -> list[pb.ListProducersResponse.Producer]:
        """Return the producers of a topic that are connected."""
        request = pb.ListProducersRequest(topic=topic)
        return list(self._call("ListProducers", request, pb.ListProducersResponse).producers)

    def send_back(self, request: pb.SendBackDeadLettersRequest) -> pb.SendBackDeadLettersResponse:
        """Send some dead letters back."""
        return self._call("SendBackDeadLetters", request, pb.SendBackDeadLettersResponse)

    def consumers(self, group: str) -> list[v2.ClientInfo]:
        """Return the clients of a group."""
        request = v2.ListConsumerConnectionRequest()
        request.group.name = group
        response_type = v2.ListConsumerConnectionResponse
        response = self._ask("ListConsumerConnection", request, response_type)
        return list(response.client_info)

    def subscriptions(self, group: str) -> list[v2.SubscriptionInfo]:
        """Return what a group consumes."""
        request = v2.ListSubscriptionRequest()
        request.group.name = group
        response = self._ask("ListSubscription", request, v2.ListSubscriptionResponse)
        return list(response.subscription_info)

    def topic_route(self, topic: str) -> str:
        """Return where a topic lies, as JSON."""
        request = v2.GetTopicRouteRequest()
        request.topic.name = topic
        return self._ask("GetTopicRoute", request, v2.GetTopicRouteResponse).topic_route_data

    def find_messages(self, request: v2.ListMessageRequest) -> v2.ListMessageResponse:
        """Return a page of messages, with bodies."""
        return self._ask("QueryMessage", request, v2.ListMessageResponse)

    def running_info(self, group: str, client_id: str) -> v2.ConsumerRunningInfo:
        """Return what the broker knows of a consumer."""
        request = v2.GetConsumerRunningInfoRequest(client_id=client_id)
        request.group.name = group
        response_type = v2.GetConsumerRunningInfoResponse
        return self._ask("GetConsumerRunningInfo", request, response_type).consumer_running_info

    def stack_trace(self, group: str, client_id: str) -> str:
        """Return what a consumer's threads are doing, as it says."""
        request = v2.PrintThreadStackTraceRequest(client_id=client_id)
        request.group.name = group
        response_type = v2.PrintThreadStackTraceResponse
        response = self._ask(
            "PrintThreadStackTrace", request, response_type, timeout_s=CLIENT_TIMEOUT_S
        )
        return response.thread_stack_trace

    def verify_message(self, request: v2.VerifyMessageRequest) -> v2.Status:
        """Have one consumer consume a message; return what it says."""
        return self._call(
            "VerifyMessage",
            request,
            v2.VerifyMessageResponse,
            service=PROTOCOL_SERVICE,
            timeout_s=CLIENT_TIMEOUT_S,
        ).status

    def _ask(
        self,
        name: str,
        request: Message,
        response_type: type[_Response],
        *,
        timeout_s: float = TIMEOUT_S,
    ) -> _Response:
        """Call the protocol's own admin service, whose refusals are statuses in its responses."""
        response = self._call(
            name, request, response_type, service=PROTOCOL_SERVICE, timeout_s=timeout_s
        )
        # Each of its responses has one, which no base class says.
        status: v2.Status = getattr(response, "status")  # noqa: B009 - mypy knows no such field
        if status.code != v2.OK:
            raise CommandError(status.message or v2.Code.Name(status.code))
        return response

    def _call(
        self,
        name: str,
        request: Message,
        response_type: type[_Response],
        *,
        service: str = SERVICE,
        timeout_s: float = TIMEOUT_S,
    ) -> _Response:
        loop, path, data = self._loop, f"{service}/{name}", request.SerializeToString()
        if loop is None:
            raise CommandError("the connection to the broker is closed")
        try:
            response = loop.call(lambda: self._session.call(path, data, timeout_s))
        except RpcError as error:
            raise CommandError(self._explanation(error, timeout_s)) from None
        except ClientClosedError:
            raise CommandError("the connection to the broker is closed") from None
        return response_type.FromString(response)

    def _explanation(self, error: RpcError, timeout_s: float) -> str:
        details = error.message or error.code.name
        match error.code:
            case StatusCode.UNAVAILABLE:
                return f"the broker at {self._endpoint} is not available: {details}"
            case StatusCode.DEADLINE_EXCEEDED:
                return f"no broker answers at {self._endpoint} within {timeout_s:g} s"
            case StatusCode.UNIMPLEMENTED:
                return f"the server at {self._endpoint} is no commitbus broker: {details}"
            case StatusCode.UNKNOWN | StatusCode.INTERNAL:
                return f"the broker at {self._endpoint} failed: {details}"
            case _:
                return details


@final
class _Session:
    """The connection, in the loop's thread."""

    def __init__(self, connection: Link) -> None:
        self._link = connection

    async def __aenter__(self) -> None:
        """Connect.

        Raises:
            BrokerUnavailableError: there is no connection in time.
        """
        await self._link.open(CONNECT_TIMEOUT_S)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Disconnect."""
        await self._link.close()

    async def call(self, path: str, request: bytes, timeout_s: float) -> bytes:
        """Make one call; a connection that was lost since the last one is made again first.

        Raises:
            RpcError: the broker refuses, or does not answer in time.
        """
        try:
            connection = await self._link.connection_within(min(timeout_s, CONNECT_TIMEOUT_S))
        except BrokerUnavailableError as error:
            raise RpcError(StatusCode.UNAVAILABLE, error.reason) from None
        return await connection.unary(path, request, timeout_s=timeout_s)
