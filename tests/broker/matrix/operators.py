"""The operator's service, which `mqadmin` speaks. It refuses by gRPC statuses."""

from __future__ import annotations

from typing import Any

from commitbus.broker.admin import groups
from commitbus.broker.metadata.topics import MESSAGE_TYPE_ATTRIBUTE
from commitbus.broker.rpc.call import StatusCode
from commitbus.broker.rpc.proto import admin_v1_pb2 as pb
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as v2
from commitbus.broker.store.store_reader import END_OF_TIME_MS
from commitbus.commitlog.errors import QueryTooWideError, StoreReadOnlyError
from tests.broker.matrix.handles import forwarded
from tests.broker.matrix.receives import QUICKLY
from tests.broker.matrix.registry import ADMIN, cell, cells, good_request
from tests.broker.matrix.stage import NOT_SAVED, UNREADABLE, Stage
from tests.broker.messaging.bus import make_message

PUT_TOPIC, DELETE_TOPIC = ADMIN + "PutTopic", ADMIN + "DeleteTopic"
LIST_TOPICS, TOPIC_STATUS = ADMIN + "ListTopics", ADMIN + "GetTopicStatus"
PUT_GROUP, DELETE_GROUP = ADMIN + "PutGroup", ADMIN + "DeleteGroup"
LIST_GROUPS, PROGRESS = ADMIN + "ListGroups", ADMIN + "GetConsumerProgress"
RESET, PRODUCERS = ADMIN + "ResetOffsets", ADMIN + "ListProducers"
BROKER, SEAL = ADMIN + "GetBroker", ADMIN + "SealSegment"
QUERY, GET, SEND = ADMIN + "QueryMessages", ADMIN + "GetMessage", ADMIN + "SendMessage"
SEND_BACK = ADMIN + "SendBackDeadLetters"

GOOD = {
    PUT_TOPIC: pb.PutTopicRequest(name="T", perm=4),
    DELETE_TOPIC: pb.DeleteTopicRequest(name="T"),
    LIST_TOPICS: pb.ListTopicsRequest(),
    TOPIC_STATUS: pb.GetTopicStatusRequest(topic="T"),
    PUT_GROUP: pb.PutGroupRequest(name="G", retry_max_times=3),
    DELETE_GROUP: pb.DeleteGroupRequest(name="G"),
    LIST_GROUPS: pb.ListGroupsRequest(),
    PROGRESS: pb.GetConsumerProgressRequest(group="G", topic="T"),
    RESET: pb.ResetOffsetsRequest(group="G", topic="T", offset=0),
    PRODUCERS: pb.ListProducersRequest(topic="T"),
    BROKER: pb.GetBrokerRequest(),
    SEAL: pb.SealSegmentRequest(),
    QUERY: pb.QueryMessagesRequest(topic="T", key="k", max_count=1, end_ms=END_OF_TIME_MS),
    GET: pb.GetMessageRequest(place=pb.GetMessageRequest.QueuePlace(topic="T")),
    SEND: pb.SendMessageRequest(topic="T", body=b"a"),
    SEND_BACK: pb.SendBackDeadLettersRequest(group="G", from_offset=0),
}
CHANGES = {
    PUT_TOPIC: ("topics",),
    DELETE_TOPIC: ("topics", "progress"),
    PUT_GROUP: ("groups",),
    DELETE_GROUP: ("groups", "progress"),
    RESET: ("progress",),
    SEAL: ("log",),
    SEND: ("log",),
    SEND_BACK: ("log",),
}
CHANGED = {
    PUT_TOPIC: "put_topic",
    DELETE_TOPIC: "topic_deleted",
    PUT_GROUP: "put_group",
    DELETE_GROUP: "delete_groups",
}
"""Which method of the metadata each of these calls."""


# GetBroker looks at the disk of the store that the configuration names.
@cells(GOOD, StatusCode.OK, CHANGES, settings={"store_directory": "."})
async def granted(stage: Stage, path: str) -> Any:
    """The request is granted."""
    await stage.bus.unary("ForwardMessageToDeadLetterQueue", await forwarded(stage))
    message = make_message()
    message.system_properties.keys.append("k")
    await stage.bus.unary("SendMessage", v2.SendMessageRequest(messages=[message]))
    settings = v2.Settings(publishing=v2.Publishing(topics=[v2.Resource(name="T")]))
    await stage.bus.telemetry(v2.TelemetryCommand(settings=settings))
    stage.bus.settle()
    request = type(GOOD[path])()
    request.CopyFrom(GOOD[path])
    return request


@cells((PUT_TOPIC, DELETE_TOPIC, PUT_GROUP, DELETE_GROUP), StatusCode.INVALID_ARGUMENT)
async def illegal_name(stage: Stage, path: str) -> Any:
    """The name is illegal."""
    request = await good_request(stage, path)
    request.name = "no/name"
    return request


@cells((PUT_TOPIC, DELETE_TOPIC), StatusCode.INVALID_ARGUMENT)
async def system_topic(stage: Stage, path: str) -> Any:
    """The topic is one of the system's own."""
    request = await good_request(stage, path)
    request.name = "TBW102"
    return request


@cells((PUT_TOPIC, PUT_GROUP), StatusCode.INVALID_ARGUMENT)
async def unknown_attribute(stage: Stage, path: str) -> Any:
    """There is no such attribute, or it cannot have this value, or it is not there to delete."""
    request = await good_request(stage, path)
    request.set_attributes["colour"] = "red"
    return request


@cell(PUT_TOPIC, StatusCode.INVALID_ARGUMENT)
async def too_many_queues(stage: Stage) -> Any:
    """The number of queues is out of range."""
    request = await good_request(stage, PUT_TOPIC)
    request.read_queue_nums = 1025
    return request


@cell(PUT_TOPIC, StatusCode.INVALID_ARGUMENT)
async def odd_permissions(stage: Stage) -> Any:
    """The permissions are out of range."""
    request = await good_request(stage, PUT_TOPIC)
    request.perm = 8
    return request


@cell(PUT_GROUP, StatusCode.INVALID_ARGUMENT)
async def bad_retry_policy(stage: Stage) -> Any:
    """The retry policy is none."""
    request = await good_request(stage, PUT_GROUP)
    request.group_retry_policy = "soon"
    return request


@cell(PUT_GROUP, StatusCode.INVALID_ARGUMENT)
async def long_retry_policy(stage: Stage) -> Any:
    """The retry policy has more delays than anybody needs."""
    stage.patch.setattr(groups, "DELAYS_MAX", 1)
    request = await good_request(stage, PUT_GROUP)
    request.group_retry_policy = '{"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1, 2]}}'
    return request


@cells((DELETE_TOPIC, TOPIC_STATUS, PROGRESS, RESET, PRODUCERS, QUERY, SEND), StatusCode.NOT_FOUND)
async def unknown_topic(stage: Stage, path: str) -> Any:
    """There is no such topic."""
    request = await good_request(stage, path)
    setattr(request, "name" if path == DELETE_TOPIC else "topic", "Nowhere")
    return request


@cells((DELETE_GROUP, PROGRESS, RESET, SEND_BACK), StatusCode.NOT_FOUND)
async def unknown_group(stage: Stage, path: str) -> Any:
    """There is no such group."""
    request = await good_request(stage, path)
    setattr(request, "name" if path == DELETE_GROUP else "group", "Nobody")
    return request


@cell(SEND_BACK, StatusCode.NOT_FOUND)
async def no_dead_letters(stage: Stage) -> Any:
    """No dead letter of the group has this id."""
    request = await good_request(stage, SEND_BACK)
    request.message_id = "none"
    return request


@cell(RESET, StatusCode.INVALID_ARGUMENT)
async def illegal_offset(stage: Stage) -> Any:
    """A queue has no such offset."""
    request = await good_request(stage, RESET)
    request.offset = 7
    return request


@cells((RESET, SEND), StatusCode.INVALID_ARGUMENT)
async def unknown_queue(stage: Stage, path: str) -> Any:
    """The topic has no such queue."""
    request = await good_request(stage, path)
    request.queue_id = 7
    return request


@cell(RESET, StatusCode.UNAVAILABLE)
async def progress_not_saved(stage: Stage) -> Any:
    """The group's progress could not be saved."""
    request = await good_request(stage, RESET)
    stage.fails(stage.context.progress, "reset", NOT_SAVED)
    return request


@cell(SEND_BACK, StatusCode.UNAVAILABLE)
async def index_is_behind(stage: Stage) -> Any:
    """The index does not know yet what was sent back before."""
    request = await good_request(stage, SEND_BACK)
    stage.patch.setattr(type(stage.context.store), "indexed_to", 0)
    stage.bus.clock.rate = QUICKLY
    return request


@cell(GET, StatusCode.NOT_FOUND)
async def unknown_message(stage: Stage) -> Any:
    """There is no such message."""
    request = await good_request(stage, GET)
    request.place.queue_offset = 7
    return request


@cell(GET, StatusCode.INVALID_ARGUMENT)
async def unnamed_message(_stage: Stage) -> Any:
    """The message is not named."""
    return pb.GetMessageRequest()


@cell(GET, StatusCode.INVALID_ARGUMENT)
async def misnamed_message(_stage: Stage) -> Any:
    """The message's offset id is none."""
    return pb.GetMessageRequest(offset_id="none")


@cell(QUERY, StatusCode.RESOURCE_EXHAUSTED)
async def too_much_work(stage: Stage) -> Any:
    """Too much work of the connection waits for a thread already."""
    request = await good_request(stage, QUERY)
    stage.no_workers()
    return request


@cell(QUERY, StatusCode.INVALID_ARGUMENT)
async def empty_key(stage: Stage) -> Any:
    """The key is empty."""
    request = await good_request(stage, QUERY)
    request.key = ""
    return request


@cell(QUERY, StatusCode.INVALID_ARGUMENT)
async def no_message_wanted(stage: Stage) -> Any:
    """No message is asked for."""
    request = await good_request(stage, QUERY)
    request.max_count = 0
    return request


@cell(QUERY, StatusCode.FAILED_PRECONDITION)
async def wide_search(stage: Stage) -> Any:
    """The search passes over too many entries of the index: narrow its times."""
    request = await good_request(stage, QUERY)
    stage.fails(stage.context.store, "query_by_key", QueryTooWideError())
    return request


@cell(QUERY, StatusCode.DATA_LOSS)
async def unreadable_index(stage: Stage) -> Any:
    """The disk does not give the index or a message back."""
    request = await good_request(stage, QUERY)
    stage.fails(stage.context.store, "query_by_key", UNREADABLE)
    return request


@cell(SEND, StatusCode.INVALID_ARGUMENT)
async def illegal_message(stage: Stage) -> Any:
    """The message breaks a limit that holds for producers."""
    request = await good_request(stage, SEND)
    request.body = b""
    return request


@cell(SEND, StatusCode.INVALID_ARGUMENT)
async def other_type(stage: Stage) -> Any:
    """The topic takes messages of another type than NORMAL."""
    request = await good_request(stage, SEND)
    await stage.bus.topic(attributes={MESSAGE_TYPE_ATTRIBUTE: "FIFO"})
    return request


@cells(CHANGED, StatusCode.UNAVAILABLE)
async def not_saved(stage: Stage, path: str) -> Any:
    """The change could not be saved."""
    request = await good_request(stage, path)
    stage.fails(stage.context.metadata, CHANGED[path], NOT_SAVED)
    return request


@cell(SEAL, StatusCode.UNAVAILABLE)
async def manifest_not_written(stage: Stage) -> Any:
    """The segment's manifest could not be written."""
    request = await good_request(stage, SEAL)
    stage.fails(stage.context.store, "seal_segment", OSError(28, "No space left on device"))
    return request


@cell(SEAL, StatusCode.FAILED_PRECONDITION)
async def store_takes_no_more(stage: Stage) -> Any:
    """The store is closed or read-only, because a flush failed before."""
    request = await good_request(stage, SEAL)
    stage.fails(stage.context.store, "seal_segment", StoreReadOnlyError("a flush failed"))
    return request
