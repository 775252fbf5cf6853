"""What many RPCs answer alike: to who does not say who it is, and to names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from tests.broker.matrix.clients import HEARTBEAT, TERMINATION
from tests.broker.matrix.handles import ACK, CHANGE, FORWARD
from tests.broker.matrix.offsets import GET, QUERY, UPDATE
from tests.broker.matrix.receives import PULL, RECEIVE
from tests.broker.matrix.registry import cells, good_request
from tests.broker.matrix.routes import ASSIGNMENT, ROUTE
from tests.broker.matrix.sends import SEND
from tests.broker.matrix.stage import NOT_SAVED, Stage

TOPIC_OF: Final[Mapping[str, Callable[[Any], pb.Resource]]] = {
    **dict.fromkeys((ROUTE, ASSIGNMENT, ACK, CHANGE, FORWARD), lambda request: request.topic),
    **dict.fromkeys((RECEIVE, PULL, UPDATE, GET, QUERY), lambda r: r.message_queue.topic),
    SEND: lambda request: request.messages[0].topic,
}
GROUP_OF: Final = (ASSIGNMENT, HEARTBEAT, RECEIVE, PULL, ACK, CHANGE, FORWARD, UPDATE, GET)
EVERYBODY: Final = dict.fromkeys((*TOPIC_OF, *GROUP_OF, TERMINATION))
READ_TOPIC: Final = (ASSIGNMENT, RECEIVE, PULL, UPDATE, GET, QUERY)
CREATE_TOPIC: Final = (ROUTE, ASSIGNMENT, SEND, RECEIVE)
CREATE_GROUP: Final = (HEARTBEAT, RECEIVE, PULL)
NAME_QUEUE: Final = (PULL, UPDATE, GET, QUERY)


async def with_topic(stage: Stage, path: str, name: str) -> Any:
    request = await good_request(stage, path)
    TOPIC_OF[path](request).name = name
    return request


@cells(EVERYBODY, pb.CLIENT_ID_REQUIRED, headers={"client_id": " "})
async def nameless(stage: Stage, path: str) -> Any:
    """The header `x-mq-client-id` is missing, blank or too long."""
    return await good_request(stage, path)


@cells(TOPIC_OF, pb.ILLEGAL_TOPIC)
async def illegal_topic(stage: Stage, path: str) -> Any:
    """The topic's name is empty, too long, or has characters that are not allowed."""
    return await with_topic(stage, path, "no/topic")


@cells(TOPIC_OF, pb.ILLEGAL_TOPIC)
async def system_topic(stage: Stage, path: str) -> Any:
    """The topic is one of the system's own."""
    return await with_topic(stage, path, "TBW102")


@cells(GROUP_OF, pb.ILLEGAL_CONSUMER_GROUP)
async def illegal_group(stage: Stage, path: str) -> Any:
    """The group's name is empty, too long, reserved, or has characters that are not allowed."""
    request = await good_request(stage, path)
    request.group.name = "no/group"
    return request


@cells((*CREATE_TOPIC, PULL, UPDATE, GET, QUERY), pb.TOPIC_NOT_FOUND)
async def unknown_topic(stage: Stage, path: str) -> Any:
    """There is no such topic."""
    return await with_topic(stage, path, "Nowhere")


@cells(CREATE_TOPIC, pb.TOO_MANY_REQUESTS, settings={"auto_create_topics": True})
async def one_topic_too_many(stage: Stage, path: str) -> Any:
    """A topic would have to be created, and clients have created too many."""
    request = await with_topic(stage, path, "New")
    stage.no_room()
    return request


@cells(CREATE_TOPIC, pb.INTERNAL_SERVER_ERROR, settings={"auto_create_topics": True})
async def topic_not_saved(stage: Stage, path: str) -> Any:
    """A topic would have to be created, and that could not be saved."""
    request = await with_topic(stage, path, "New")
    stage.fails(stage.context.metadata, "add_topic", NOT_SAVED)
    return request


@cells(CREATE_GROUP, pb.TOO_MANY_REQUESTS)
async def one_group_too_many(stage: Stage, path: str) -> Any:
    """A group would have to be created, and clients have created too many."""
    request = await good_request(stage, path)
    request.group.name = "New"
    stage.no_room()
    return request


@cells(CREATE_GROUP, pb.INTERNAL_SERVER_ERROR)
async def group_not_saved(stage: Stage, path: str) -> Any:
    """A group would have to be created, and that could not be saved."""
    request = await good_request(stage, path)
    request.group.name = "New"
    stage.fails(stage.context.metadata, "add_group", NOT_SAVED)
    return request


@cells(READ_TOPIC, pb.FORBIDDEN)
async def topic_is_write_only(stage: Stage, path: str) -> Any:
    """The topic has no queue that may be read."""
    request = await good_request(stage, path)
    await stage.bus.topic(perm=2)
    return request


@cells(NAME_QUEUE, pb.BAD_REQUEST)
async def unknown_queue(stage: Stage, path: str) -> Any:
    """The topic has no such queue, or it may not be read."""
    request = await good_request(stage, path)
    request.message_queue.id = 1
    return request
