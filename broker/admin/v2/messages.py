"""Messages: found by id, by key or by time, and sent."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, final

from commitbus.broker.admin.context import AdminContext
from commitbus.broker.admin.messages import page_by_key
from commitbus.broker.admin.v2.names import known_topic
from commitbus.broker.common.errors import (
    BadRequestError,
    MessageNotFoundError,
    NotFoundError,
    UnsupportedFeatureError,
)
from commitbus.broker.common.shown import shown
from commitbus.broker.common.worker_lines import run_in_worker
from commitbus.broker.core.sending import new_message_id, send
from commitbus.broker.filters.tag_filter import EVERYTHING
from commitbus.broker.messaging.delivered import response_encoder
from commitbus.broker.messaging.message_codec import timestamp_ms
from commitbus.broker.messaging.status import ok
from commitbus.broker.messaging.validate import new_message
from commitbus.broker.metadata.names import group_of_topic
from commitbus.broker.receiving.encoder import encode_message
from commitbus.broker.rpc.call import Call
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from commitbus.broker.store.message_store import MessageStore
from commitbus.broker.store.store_reader import END_OF_TIME_MS
from commitbus.commitlog.errors import CorruptRecordError, OffsetOutOfRangeError
from commitbus.commitlog.types import PhysicalOffset, QueueOffset
from commitbus.indexfile.index_format import KeyKind

PAGE_MAX: Final = 64
PAGE_DEFAULT: Final = 32
PAGES_MAX: Final = 100
"""Of a search. To find a page by its number, all before it are read."""
PAGE_BYTES_MAX: Final = 8 * 1024 * 1024
"""A page ends before it gets larger; one message it always has."""
_PLACE = re.compile(r"([0-9]{1,10}):([0-9]{1,19})")
_OFFSET = re.compile(r"[0-9]{1,19}")


async def query_message(
    context: AdminContext, request: pb.ListMessageRequest, _call: Call
) -> pb.ListMessageResponse:
    """Return messages of a topic: one by its id, by a key newest first, or queue by queue.

    Pages have `page_size` messages (`max_message_nums` if it is not given). The next one is asked
    for by `scroll_id`, which is empty at the end, or by `page_num`, counted from 1. The scroll id
    of a search by time is `<queue id>:<queue offset>`.

    Raises:
        RequestError: there is no such topic or message, or the search makes no sense.
    """
    if _is_not_used_yet(context, request.topic.name):
        return pb.ListMessageResponse(status=ok())
    topic = known_topic(context, request.topic)
    search = _search(context, request, topic.name, topic.read_queue_nums)
    return await run_in_worker(_find, context.store, request, search)


def _is_not_used_yet(context: AdminContext, topic: str) -> bool:
    """Return whether this is the retry or dead letter topic of a group that has not needed it."""
    owner = group_of_topic(topic)
    is_group = owner is not None and context.metadata.group(owner) is not None
    return is_group and context.metadata.topic(topic) is None


@final
@dataclass(frozen=True, slots=True)
class _Search:
    """A request that makes sense."""

    topic: str
    queue_ids: range
    begin_ms: int
    end_ms: int
    limit: int
    skip: int
    """How many messages the pages before have."""


def _search(
    context: AdminContext, request: pb.ListMessageRequest, topic: str, queues: int
) -> _Search:
    if request.broker_name not in ("", context.config.broker_name):
        raise NotFoundError(f"the broker is {context.config.broker_name}")
    queue_ids = range(queues)
    if request.HasField("queue_id"):
        if request.queue_id not in queue_ids:
            raise BadRequestError(f"topic {topic} has the queues 0 to {queues - 1}")
        queue_ids = range(request.queue_id, request.queue_id + 1)
    begin_ms = timestamp_ms(request.begin_timestamp) if request.HasField("begin_timestamp") else 0
    end_ms = END_OF_TIME_MS
    if request.HasField("end_timestamp"):
        end_ms = timestamp_ms(request.end_timestamp)
    if begin_ms > end_ms:
        raise BadRequestError("the search begins after its end")
    limit, number = request.max_message_nums or PAGE_DEFAULT, 1
    if request.HasField("page_size"):
        limit = request.page_size
    if request.HasField("page_num") and not request.scroll_id:
        number = request.page_num
    if limit < 1 or number < 1:
        raise BadRequestError("a page has 1 message or more, and pages are counted from 1")
    limit = min(limit, PAGE_MAX)
    if number > PAGES_MAX:
        raise BadRequestError(
            f"page {number}, at most {PAGES_MAX} have numbers: go on by the scroll id"
        )
    return _Search(topic, queue_ids, begin_ms, end_ms, limit, (number - 1) * limit)


def _find(
    store: MessageStore, request: pb.ListMessageRequest, search: _Search
) -> pb.ListMessageResponse:
    """Answer a search. Runs on a thread of its own."""
    response = pb.ListMessageResponse(status=ok())
    match request.WhichOneof("search_key"):
        case "message_id":
            response.messages.append(message_by_id(store, search.topic, request.message_id))
        case "message_key":
            response.scroll_id = _by_key(store, request, search, response)
        case None:
            response.scroll_id = _by_time(store, request.scroll_id, search, response)
        case other:
            raise UnsupportedFeatureError(f"messages cannot be searched by {other}")
    return response


def message_by_id(store: MessageStore, topic: str, message_id: str) -> pb.Message:
    """Return a message by the id that its producer gave, or else by its place in the log.

    Raises:
        MessageNotFoundError: the topic has no such message.
    """
    records = store.query_by_unique_key(topic, message_id, 1)
    try:
        record = records[0] if records else store.read_by_offset_id(message_id)
    except (ValueError, OffsetOutOfRangeError, CorruptRecordError):
        record = None
    if record is None or record.topic != topic:
        raise MessageNotFoundError(f"topic {topic} has no message {shown(message_id)}")
    return _message(store, record.queue_id, record.physical_offset, record.size_bytes)


def _by_key(
    store: MessageStore,
    request: pb.ListMessageRequest,
    search: _Search,
    response: pb.ListMessageResponse,
) -> str:
    """Add the messages that have a key, newest first; return the scroll id."""
    if request.scroll_id and not _OFFSET.fullmatch(request.scroll_id):
        raise BadRequestError(f"{shown(request.scroll_id)} is no scroll id of a search by key")
    records = page_by_key(
        store,
        search.topic,
        request.message_key,
        KeyKind.KEY,
        times_ms=(search.begin_ms, search.end_ms),
        count=search.skip + search.limit,
        before=int(request.scroll_id) if request.scroll_id else None,
    )
    size, last = 0, ""
    for record in records[search.skip :]:
        size += record.size_bytes
        if response.messages and size > PAGE_BYTES_MAX:
            break
        response.messages.append(
            _message(store, record.queue_id, record.physical_offset, record.size_bytes)
        )
        last = str(record.physical_offset)
    is_last = len(records) < search.skip + search.limit
    passed = search.skip + len(response.messages)
    return "" if is_last and passed >= len(records) else last


def _by_time(
    store: MessageStore, scroll_id: str, search: _Search, response: pb.ListMessageResponse
) -> str:
    """Add the messages that were stored in a time, queue by queue; return the scroll id."""
    size, skip = 0, search.skip
    for queue_id, first, end in _ranges(store, scroll_id, search):
        offset = min(first + skip, end)
        skip -= offset - first
        while offset < end:
            missing = search.limit - len(response.messages)
            found = store.fetch(search.topic, queue_id, QueueOffset(offset), max(missing, 1))
            if not found.units:
                break
            for unit in found.units:
                if unit.queue_offset >= end:
                    break
                size += unit.size_bytes
                if len(response.messages) == search.limit or (
                    response.messages and size > PAGE_BYTES_MAX
                ):
                    return f"{queue_id}:{unit.queue_offset}"
                response.messages.append(
                    _message(store, queue_id, unit.physical_offset, unit.size_bytes)
                )
            offset = found.next_offset
    return ""


def _ranges(store: MessageStore, scroll_id: str, search: _Search) -> Iterator[tuple[int, int, int]]:
    """Yield queue id, first offset and end for each queue, from the scroll id on."""
    from_queue, from_offset = -1, 0
    if scroll_id:
        place = _PLACE.fullmatch(scroll_id)
        if place is None:
            raise BadRequestError(f"{shown(scroll_id)} is no scroll id of a search by time")
        from_queue, from_offset = int(place[1]), int(place[2])
    for queue_id in search.queue_ids:
        if queue_id < from_queue:
            continue
        first: int = store.offset_by_timestamp(search.topic, queue_id, search.begin_ms)
        if queue_id == from_queue:
            first = max(first, from_offset)
        end: int = store.max_offset(search.topic, queue_id)
        if search.end_ms < END_OF_TIME_MS:
            end = store.offset_by_timestamp(search.topic, queue_id, search.end_ms + 1)
        if first < end:
            yield queue_id, first, end


def _message(
    store: MessageStore, queue_id: int, physical_offset: PhysicalOffset, size_bytes: int
) -> pb.Message:
    """Return a stored message as a consumer would get it, but for the receipt handle."""
    record = memoryview(store.read_bytes(physical_offset, size_bytes))
    encode = response_encoder(queue_id, None)
    encoded = encode_message(encode, record, physical_offset, "", EVERYTHING)
    assert encoded is not None, "everything is wanted"
    return pb.ReceiveMessageResponse.FromString(encoded[0]).message


async def admin_send_message(
    context: AdminContext, request: pb.AdminSendMessageRequest, call: Call
) -> pb.AdminSendMessageResponse:
    """Send a message as a producer would, and answer when it is durable.

    Raises:
        RequestError: the topic does not exist, or does not take such a message.
        StoreError: it could not be stored.
    """
    topic = known_topic(context, request.topic)
    message = pb.Message(topic=request.topic, body=request.body)
    message.user_properties.update(request.user_properties)
    system = message.system_properties
    system.CopyFrom(request.system_properties)
    if request.tag:
        system.tag = request.tag
    if request.key:
        system.keys.append(request.key)
    if not system.message_id:
        system.message_id = new_message_id()
    await send(context.broker, topic, new_message(message), peer=call.peer)
    return pb.AdminSendMessageResponse(status=ok(), message_id=system.message_id)
