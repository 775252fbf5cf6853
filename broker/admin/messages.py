"""Single messages: find, show, send."""

from __future__ import annotations

from typing import Final

from commitbus.broker.admin.context import AdminContext, refuse
from commitbus.broker.common.worker_lines import run_in_worker
from commitbus.broker.core.sending import new_message_id, send
from commitbus.broker.core.validation import NewMessage
from commitbus.broker.rpc.call import RpcError, StatusCode
from commitbus.broker.rpc.proto import admin_v1_pb2 as pb
from commitbus.broker.store.message_store import MessageStore
from commitbus.broker.store.store_reader import END_OF_LOG
from commitbus.commitlog.errors import CorruptRecordError, OffsetOutOfRangeError
from commitbus.commitlog.record_format import offset_message_id
from commitbus.commitlog.types import QueueOffset, Record
from commitbus.indexfile.index_format import KeyKind

QUERY_MAX: Final = 64
"""RocketMQ's `defaultQueryMaxNum`, more are never returned at once."""


async def query_messages(
    context: AdminContext, request: pb.QueryMessagesRequest
) -> pb.QueryMessagesResponse:
    """Return messages of a topic by key or tag, newest first."""
    context.existing_topic(request.topic)
    if not request.key:
        refuse("the key is empty")
    if request.max_count < 1:
        refuse(f"{request.max_count} messages at most: at least 1 is needed")
    before = request.before_physical_offset if request.HasField("before_physical_offset") else None

    def find() -> list[Record]:
        return page_by_key(
            context.store,
            request.topic,
            request.key,
            KeyKind.TAG if request.kind == pb.TAG else KeyKind.KEY,
            times_ms=(request.begin_ms, request.end_ms),
            count=min(request.max_count, QUERY_MAX),
            before=before,
        )

    records = await run_in_worker(find)
    return pb.QueryMessagesResponse(messages=[_message(record, b"") for record in records])


def page_by_key(
    store: MessageStore,
    topic: str,
    key: str,
    kind: KeyKind,
    *,
    times_ms: tuple[int, int],
    count: int,
    before: int | None,
) -> list[Record]:
    """Return the newest messages with a key, of those before a physical offset if one is given.

    Their bodies are left out: a page may have 64 messages of the largest size.
    May wait for a disk. Raises as `query_by_key`.
    """
    end = END_OF_LOG if before is None else before
    return store.query_by_key(
        topic, key, *times_ms, count, kind=kind, before=end, with_bodies=False
    )


async def get_message(
    context: AdminContext, request: pb.GetMessageRequest
) -> pb.GetMessageResponse:
    """Return one message, and what became of it in each group."""
    try:
        record = await run_in_worker(_record, context, request)
    except (OffsetOutOfRangeError, CorruptRecordError) as error:
        raise RpcError(StatusCode.NOT_FOUND, f"there is no such message: {error}") from None
    except ValueError as error:
        refuse(error)
    if record is None:
        raise RpcError(StatusCode.NOT_FOUND, "there is no such message")
    return pb.GetMessageResponse(
        message=_message(record, record.body), tracks=_tracks(context, record)
    )


def _record(context: AdminContext, request: pb.GetMessageRequest) -> Record | None:
    store = context.store
    if request.HasField("offset_id"):
        return store.read_by_offset_id(request.offset_id)
    if request.HasField("unique_key"):
        name = request.unique_key
        found = store.query_by_unique_key(name.topic, name.unique_key, 1)
        return found[0] if found else None
    if not request.HasField("place"):
        raise ValueError("the message is not named")
    place = request.place
    units = store.fetch(place.topic, place.queue_id, QueueOffset(place.queue_offset), 1).units
    if not units or units[0].queue_offset != place.queue_offset:
        return None
    return store.read(units[0].physical_offset)


def _tracks(context: AdminContext, record: Record) -> list[pb.Track]:
    return [
        pb.Track(group=group, track_type=_track_type(context, group, record))
        for group in sorted(context.progress.groups_of(record.topic))
    ]


def _track_type(context: AdminContext, group: str, record: Record) -> str:
    """Return RocketMQ's word for what became of a message in a group."""
    progress = context.progress.get(group, record.topic, record.queue_id)
    offset = record.queue_offset
    if progress and offset < progress.next_offset and offset not in progress.in_flight:
        return "CONSUMED"
    return "NOT_CONSUME_YET" if context.messaging.clients.consumers(group) else "NOT_ONLINE"


async def send_message(
    context: AdminContext, request: pb.SendMessageRequest
) -> pb.SendMessageResponse:
    """Append a message, under the limits that hold for producers."""
    topic = context.existing_topic(request.topic)
    if request.HasField("queue_id") and not 0 <= request.queue_id < topic.write_queue_nums:
        refuse(
            f"topic {topic.name!r} has the queues 0 to {topic.write_queue_nums - 1}, "
            f"not {request.queue_id}"
        )
    message = NewMessage(
        request.body, new_message_id(), tag=request.tags, keys=request.keys.split()
    )
    queue_id = request.queue_id if request.HasField("queue_id") else None
    queue_id, result = await send(context.broker, topic, message, queue_id=queue_id)
    return pb.SendMessageResponse(
        broker_name=context.config.broker_name,
        queue_id=queue_id,
        queue_offset=result.queue_offset,
        message_id=message.message_id,
        offset_id=offset_message_id(context.config.store_host, result.physical_offset),
    )


def _message(record: Record, body: bytes) -> pb.Message:
    return pb.Message(
        offset_id=offset_message_id(record.store_host, record.physical_offset),
        topic=record.topic,
        queue_id=record.queue_id,
        queue_offset=record.queue_offset,
        physical_offset=record.physical_offset,
        reconsume_times=record.reconsume_times,
        born_ms=record.born_timestamp,
        store_ms=record.store_timestamp,
        born_host=str(record.born_host),
        store_host=str(record.store_host),
        sys_flag=record.sys_flag,
        properties=record.properties,
        body=body,
    )
