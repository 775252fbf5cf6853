"""The protocol's own service for operators. It refuses by statuses in its responses."""

from __future__ import annotations

import logging
from typing import Any

from google.protobuf.message import Message

from commitbus.broker.admin.v2.messages import PAGES_MAX
from commitbus.broker.metadata.topics import MESSAGE_TYPE_ATTRIBUTE
from commitbus.broker.rpc.call import StatusCode
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from commitbus.commitlog.errors import QueryTooWideError
from tests.broker.matrix.receives import QUICKLY
from tests.broker.matrix.registry import ADMIN_V2, cell, cells, good_request
from tests.broker.matrix.stage import NOT_SAVED, UNREADABLE, Stage
from tests.broker.messaging.bus import EPOCH_MS, make_message

LOG_LEVEL, STATS = ADMIN_V2 + "ChangeLogLevel", ADMIN_V2 + "GetProxyRuntimeStats"
TOPIC_STATUS, ROUTE = ADMIN_V2 + "DescribeTopicStatus", ADMIN_V2 + "GetTopicRoute"
SUBSCRIPTIONS = ADMIN_V2 + "ListSubscription"
SUBSCRIPTIONS_OF_CLIENTS = ADMIN_V2 + "DescribeSubscription"
UNSUBSCRIBE, CONNECTIONS = ADMIN_V2 + "DeleteSubscription", ADMIN_V2 + "ListConsumerConnection"
ACCUMULATION, SPAN = ADMIN_V2 + "DescribeGroupAccumulation", ADMIN_V2 + "QueryTimeSpan"
RESET, QUERY = ADMIN_V2 + "ResetGroupOffset", ADMIN_V2 + "QueryMessage"
SEND, STACKS = ADMIN_V2 + "AdminSendMessage", ADMIN_V2 + "PrintThreadStackTrace"
VERIFY, RUNNING = ADMIN_V2 + "VerifyMessage", ADMIN_V2 + "GetConsumerRunningInfo"

T, G = pb.Resource(name="T"), pb.Resource(name="G")
MESSAGE_ID = "message-1"
GOOD: dict[str, Message] = {
    STATS: pb.GetProxyRuntimeStatsRequest(),
    TOPIC_STATUS: pb.DescribeTopicStatusRequest(topic=T),
    ROUTE: pb.GetTopicRouteRequest(topic=T),
    SUBSCRIPTIONS: pb.ListSubscriptionRequest(topic=T, group=G),
    SUBSCRIPTIONS_OF_CLIENTS: pb.DescribeSubscriptionRequest(topic=T, group=G),
    UNSUBSCRIBE: pb.DeleteSubscriptionRequest(topic=T, group=G),
    CONNECTIONS: pb.ListConsumerConnectionRequest(topic=T, group=G),
    ACCUMULATION: pb.DescribeGroupAccumulationRequest(topics=[T], group=G),
    SPAN: pb.QueryTimeSpanRequest(topics=[T], group=G),
    RESET: pb.ResetGroupOffsetRequest(topic=T, group=G),
    QUERY: pb.ListMessageRequest(topic=T, message_id=MESSAGE_ID),
    SEND: pb.AdminSendMessageRequest(topic=T, body=b"a"),
    STACKS: pb.PrintThreadStackTraceRequest(group=G, client_id="consumer"),
    VERIFY: pb.VerifyMessageRequest(topic=T, group=G, client_id="consumer", message_id=MESSAGE_ID),
    RUNNING: pb.GetConsumerRunningInfoRequest(group=G, client_id="consumer"),
}
CHANGES = {UNSUBSCRIBE: ("progress",), RESET: ("progress",), SEND: ("log",)}
ASK_CLIENT = (STACKS, VERIFY)
NAME_TOPIC = tuple(path for path in GOOD if path not in (STATS, STACKS, RUNNING))
NAME_GROUP = tuple(path for path in GOOD if path not in (STATS, TOPIC_STATUS, ROUTE, QUERY, SEND))


async def connect(stage: Stage, code: pb.Code | None) -> None:
    """Connect a client that answers whatever it is asked with a code, or does not."""
    request = pb.HeartbeatRequest(group=G, client_type=pb.PUSH_CONSUMER)
    await stage.bus.unary("Heartbeat", request, stage.bus.call("consumer"))
    client: Any = stage.context.clients.get("consumer")

    async def send(command: Any) -> None:
        kind = command.WhichOneof("command")
        stage.told.add(kind)
        nonce = getattr(command, kind).nonce
        answer = pb.TelemetryCommand(status=pb.Status(code=code))
        answer.thread_stack_trace.thread_stack_trace = "main: asleep"
        if code is not None:
            stage.context.questions.answered(client, nonce, answer)

    client.send = send


async def subscribe(stage: Stage) -> None:
    """Have a client of the group say that it consumes the topic."""
    command = pb.TelemetryCommand(settings=pb.Settings(client_type=pb.PUSH_CONSUMER))
    command.settings.subscription.group.name = "G"
    command.settings.subscription.subscriptions.add(topic=T)
    await stage.bus.telemetry(command)


@cells(GOOD, pb.OK, CHANGES)
async def granted(stage: Stage, path: str) -> Any:
    """The request is granted."""
    await connect(stage, pb.OK)
    message = make_message(message_id=MESSAGE_ID)
    await stage.bus.unary("SendMessage", pb.SendMessageRequest(messages=[message]))
    stage.bus.settle()
    await stage.bus.receive()
    if path == SUBSCRIPTIONS_OF_CLIENTS:
        await subscribe(stage)
    request: Any = type(GOOD[path])()
    request.CopyFrom(GOOD[path])
    if path == RESET:
        request.reset_timestamp.seconds = EPOCH_MS // 1000
    return request


@cell(LOG_LEVEL, StatusCode.OK)
async def level_changed(stage: Stage) -> pb.ChangeLogLevelRequest:
    """The request is granted; its response has no status."""
    stage.patch.setattr(logging.getLogger("commitbus"), "level", logging.INFO)
    return pb.ChangeLogLevelRequest(level=pb.ChangeLogLevelRequest.INFO)


async def renamed(stage: Stage, path: str, field: str, name: str) -> Any:
    """Return a request that names another topic or group."""
    request = await good_request(stage, path)
    several = request.topics if field == "topic" and hasattr(request, "topics") else []
    for resource in several or [getattr(request, field)]:
        resource.name = name
    return request


@cells(NAME_TOPIC, pb.ILLEGAL_TOPIC)
async def illegal_topic(stage: Stage, path: str) -> Any:
    """The topic's name is illegal, or one of the system's own."""
    return await renamed(stage, path, "topic", "no/topic")


@cells(NAME_TOPIC, pb.TOPIC_NOT_FOUND)
async def unknown_topic(stage: Stage, path: str) -> Any:
    """There is no such topic."""
    return await renamed(stage, path, "topic", "Nowhere")


@cells(NAME_GROUP, pb.ILLEGAL_CONSUMER_GROUP)
async def illegal_group(stage: Stage, path: str) -> Any:
    """The group's name is illegal."""
    return await renamed(stage, path, "group", "no/group")


@cells(NAME_GROUP, pb.CONSUMER_GROUP_NOT_FOUND)
async def unknown_group(stage: Stage, path: str) -> Any:
    """There is no such group."""
    return await renamed(stage, path, "group", "Nobody")


@cells((SUBSCRIPTIONS, SUBSCRIPTIONS_OF_CLIENTS), pb.BAD_REQUEST)
async def nothing_named(_stage: Stage, path: str) -> Any:
    """Neither a group nor a topic is named."""
    return type(GOOD[path])()


@cell(UNSUBSCRIBE, pb.PRECONDITION_FAILED)
async def still_consuming(stage: Stage) -> Any:
    """A client of the group says that it consumes the topic."""
    await subscribe(stage)
    return await good_request(stage, UNSUBSCRIBE)


@cell(UNSUBSCRIBE, pb.NOT_FOUND)
async def never_consumed(stage: Stage) -> Any:
    """The group has not consumed the topic."""
    await stage.bus.topic("Other")
    request = await good_request(stage, UNSUBSCRIBE)
    request.topic.name = "Other"
    return request


@cells((ACCUMULATION, CONNECTIONS), pb.NOT_IMPLEMENTED)
async def lite_topic(stage: Stage, path: str) -> Any:
    """Lite topics are not supported yet."""
    request = await good_request(stage, path)
    setattr(request, "lite_topic" if path == ACCUMULATION else "liteTopic", "lite")
    return request


@cell(RESET, pb.BAD_REQUEST)
async def no_time(stage: Stage) -> Any:
    """The request has no time."""
    request = await good_request(stage, RESET)
    request.ClearField("reset_timestamp")
    return request


@cell(RESET, pb.INTERNAL_SERVER_ERROR)
async def reset_not_saved(stage: Stage) -> Any:
    """The group's progress could not be saved."""
    request = await good_request(stage, RESET)
    stage.fails(stage.context.progress, "reset", NOT_SAVED)
    return request


@cell(UNSUBSCRIBE, pb.INTERNAL_SERVER_ERROR)
async def deletion_not_saved(stage: Stage) -> Any:
    """The group's progress could not be saved."""
    request = await good_request(stage, UNSUBSCRIBE)
    stage.fails(stage.context.progress, "delete_topic", NOT_SAVED)
    return request


@cells((QUERY, VERIFY), pb.MESSAGE_NOT_FOUND)
async def unknown_message(stage: Stage, path: str) -> Any:
    """The topic has no such message."""
    request = await good_request(stage, path)
    request.message_id = "none"
    return request


@cell(QUERY, pb.BAD_REQUEST)
async def odd_page(stage: Stage) -> Any:
    """The page has less than one message, or is counted from less than 1."""
    request = await good_request(stage, QUERY)
    request.page_size = -1
    return request


@cell(QUERY, pb.BAD_REQUEST)
async def far_page(stage: Stage) -> Any:
    """The page's number is above 100: all pages before it would be read."""
    request = await good_request(stage, QUERY)
    request.page_num = PAGES_MAX + 1
    return request


@cell(QUERY, pb.BAD_REQUEST)
async def unknown_queue(stage: Stage) -> Any:
    """The topic has no such queue."""
    request = await good_request(stage, QUERY)
    request.queue_id = 1
    return request


@cell(QUERY, pb.BAD_REQUEST)
async def times_the_wrong_way_round(stage: Stage) -> Any:
    """The search begins after its end."""
    request = await good_request(stage, QUERY)
    request.begin_timestamp.seconds, request.end_timestamp.seconds = 2, 1
    return request


@cell(QUERY, pb.BAD_REQUEST)
async def odd_scroll_id(stage: Stage) -> Any:
    """The scroll id is not that of such a search."""
    request = await good_request(stage, QUERY)
    request.message_key, request.scroll_id = "k", "none"
    return request


@cell(QUERY, pb.BAD_REQUEST)
async def wide_search(stage: Stage) -> Any:
    """The search passes over too many entries of the index: narrow its times."""
    request = await good_request(stage, QUERY)
    request.message_id, request.message_key = "", "k"
    stage.fails(stage.context.store, "query_by_key", QueryTooWideError())
    return request


@cell(QUERY, pb.INTERNAL_SERVER_ERROR)
async def unreadable_index(stage: Stage) -> Any:
    """The disk does not give the index or a message back."""
    request = await good_request(stage, QUERY)
    request.message_id, request.message_key = "", "k"
    stage.fails(stage.context.store, "query_by_key", UNREADABLE)
    return request


@cell(QUERY, pb.NOT_FOUND)
async def other_broker(stage: Stage) -> Any:
    """The broker has another name."""
    request = await good_request(stage, QUERY)
    request.broker_name = "other"
    return request


@cell(QUERY, pb.NOT_IMPLEMENTED)
async def search_by_subscription(stage: Stage) -> Any:
    """Messages cannot be searched by subscription or lite topic."""
    request = await good_request(stage, QUERY)
    request.subscription = "*"
    return request


@cells((*ASK_CLIENT, RUNNING), pb.NOT_FOUND)
async def unknown_client(stage: Stage, path: str) -> Any:
    """The group has no such client."""
    request = await good_request(stage, path)
    request.client_id = "nobody"
    return request


@cells(ASK_CLIENT, pb.NOT_FOUND)
async def client_hung_up(stage: Stage, path: str) -> Any:
    """The client has no telemetry stream."""
    request = await good_request(stage, path)
    client = stage.context.clients.get("consumer")
    assert client is not None
    client.send = None
    return request


@cells(ASK_CLIENT, pb.PROXY_TIMEOUT)
async def silent_client(stage: Stage, path: str) -> Any:
    """The client does not answer within 30 s, or before the call's deadline."""
    request = await good_request(stage, path)
    await connect(stage, None)
    stage.bus.clock.rate = QUICKLY
    return request


@cell(VERIFY, pb.FAILED_TO_CONSUME_MESSAGE)
async def consumed_in_vain(stage: Stage) -> Any:
    """The client says so: its status is the answer, whatever it is."""
    request = await good_request(stage, VERIFY)
    await connect(stage, pb.FAILED_TO_CONSUME_MESSAGE)
    return request


@cell(STACKS, pb.NOT_IMPLEMENTED)
async def no_stacks(stage: Stage) -> Any:
    """The client says so: its status is the answer, whatever it is."""
    request = await good_request(stage, STACKS)
    await connect(stage, pb.NOT_IMPLEMENTED)
    return request


@cell(SEND, pb.MESSAGE_BODY_EMPTY)
async def empty_body(stage: Stage) -> Any:
    """The message has no body. Whatever else SendMessage refuses a message for is refused alike."""
    request = await good_request(stage, SEND)
    request.body = b""
    return request


@cell(SEND, pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE)
async def other_type(stage: Stage) -> Any:
    """The message is of another type than its topic takes."""
    await stage.bus.topic("Fifo", attributes={MESSAGE_TYPE_ATTRIBUTE: "FIFO"})
    request = await good_request(stage, SEND)
    request.topic.name = "Fifo"
    return request
