"""Dead letters on their way back: copies in the topics they came from.

A copy carries the place of its dead letter in the log. So whether a letter was sent back is known
from the index, whoever asked for it and whatever was killed meanwhile: nothing is sent twice, and
no state of its own is kept.
"""

from __future__ import annotations

from typing import Final, NamedTuple, final

import trio

from commitbus.broker.admin.context import AdminContext
from commitbus.broker.common.errors import RequestError
from commitbus.broker.common.shown import shown
from commitbus.broker.common.worker_lines import run_in_worker
from commitbus.broker.consuming.store_reads import Place, read_places, read_record
from commitbus.broker.core import properties as names
from commitbus.broker.core.outgoing import message_id, stored_again
from commitbus.broker.core.queue_choice import queue_of_group
from commitbus.broker.metadata.names import dead_letter_topic
from commitbus.broker.metadata.topics import TopicConfig
from commitbus.broker.rpc.call import RpcError, StatusCode
from commitbus.broker.rpc.proto import admin_v1_pb2 as pb
from commitbus.broker.store.message_store import MessageStore
from commitbus.commitlog.errors import (
    CorruptRecordError,
    MessageRefusedError,
    OffsetOutOfRangeError,
    ReadFailedError,
)
from commitbus.commitlog.record_format import offset_message_id
from commitbus.commitlog.types import Record

BATCH_MAX: Final = 64
BATCH_BYTES_MAX: Final = 32 * 1024 * 1024
"""Of one call, a message more at most."""
_INDEX_WAIT_S: Final = 5.0
_INDEX_LOOK_S: Final = 0.005
_Response = pb.SendBackDeadLettersResponse


@final
class _Letter(NamedTuple):
    record: Record
    is_sent_back: bool

    @property
    def origin(self) -> str:
        """The topic that it came from; empty when it does not say."""
        return self.record.properties.get(names.DEAD_LETTER_ORIGIN_TOPIC, "")


async def send_back_dead_letters(
    context: AdminContext, request: pb.SendBackDeadLettersRequest
) -> pb.SendBackDeadLettersResponse:
    """Send some dead letters of a group back, and answer when the copies are durable."""
    context.existing_group(request.group)
    topic = dead_letter_topic(request.group)
    response = _Response(end_offset=context.store.max_offset(topic, 0))
    async with context.sending_back:
        await _wait_for_index(context)
        letters = await run_in_worker(_letters, context.store, topic, request)
        for letter in letters:
            result = _send_back(context, letter) if isinstance(letter, _Letter) else letter
            response.letters.append(result)
        await context.broker.durability.wait(context.store.end_offset)
    response.next_offset = response.end_offset
    if request.HasField("from_offset") and letters:
        response.next_offset = response.letters[-1].queue_offset + 1
    return response


async def _wait_for_index(context: AdminContext) -> None:
    """Wait until the copies that were made before can be found."""
    end = context.store.confirm_offset
    with trio.move_on_after(_INDEX_WAIT_S):
        while context.store.indexed_to < end:  # noqa: ASYNC110 - the index tells nobody
            await trio.sleep(_INDEX_LOOK_S)
        return
    raise RpcError(StatusCode.UNAVAILABLE, "the index is behind: what was sent back is not known")


def _letters(
    store: MessageStore, topic: str, request: pb.SendBackDeadLettersRequest
) -> list[_Letter | _Response.Letter]:
    """Return the letters that are asked for, or their refusals. May wait for a disk."""
    if request.HasField("message_id"):
        records = store.query_by_unique_key(topic, request.message_id, 1)
        if not records:
            raise RpcError(
                StatusCode.NOT_FOUND, f"no dead letter has the id {shown(request.message_id)}"
            )
        return [_Letter(record, _is_sent_back(store, record)) for record in records]
    count = min(request.max_count if request.max_count > 0 else BATCH_MAX, BATCH_MAX)
    start = max(request.from_offset, store.min_offset(topic, 0))
    offsets = range(start, min(start + count, store.max_offset(topic, 0)))
    places = read_places(store, topic, 0, offsets, only_cached=False)
    assert places is not None, "only what is not cached can be missing"
    letters, size = list[_Letter | _Response.Letter](), 0
    for offset in offsets:
        place = places[offset]
        if size > BATCH_BYTES_MAX:
            break
        if place is not None:
            letters.append(_letter(store, place))
            size += place.size_bytes
    return letters


def _letter(store: MessageStore, place: Place) -> _Letter | _Response.Letter:
    """Return a letter; of one that cannot be read, or not be told sent back before, why."""
    try:
        record = read_record(store, place, only_cached=False)
        assert record is not None, "only what is not cached can be missing"
        return _Letter(record, _is_sent_back(store, record))
    except (CorruptRecordError, OffsetOutOfRangeError, ReadFailedError) as error:
        return _Response.Letter(
            queue_offset=place.queue_offset, outcome=_Response.FAILED, reason=str(error)
        )


def _is_sent_back(store: MessageStore, record: Record) -> bool:
    origin = record.properties.get(names.DEAD_LETTER_ORIGIN_TOPIC, "")
    copies = store.query_by_unique_key(origin, message_id(record), with_bodies=False)
    place = _place(record)
    return any(copy.properties.get(names.ORIGIN_MESSAGE_ID) == place for copy in copies)


def _place(record: Record) -> str:
    return offset_message_id(record.store_host, record.physical_offset)


def _send_back(context: AdminContext, letter: _Letter) -> _Response.Letter:
    """Copy one letter, unless that was done before, and say what became of it."""
    result = _Response.Letter(
        queue_offset=letter.record.queue_offset,
        message_id=message_id(letter.record),
        topic=letter.origin,
        outcome=_Response.SENT_BACK_BEFORE,
    )
    if letter.is_sent_back:
        return result
    try:
        _store_copy(context, letter)
    except (RequestError, MessageRefusedError) as error:
        result.outcome, result.reason = _Response.FAILED, str(error)
    else:
        result.outcome = _Response.SENT_BACK
    return result


def _store_copy(context: AdminContext, letter: _Letter) -> None:
    broker, record = context.broker, letter.record
    topic = broker.existing_topic(letter.origin)
    broker.durability.check_room()
    # As it was before it died, but for the trace of that.
    properties = dict(record.properties)
    for name in (names.DEAD_LETTER_ORIGIN_TOPIC, names.DEAD_LETTER_ORIGIN_MESSAGE_ID):
        properties.pop(name, None)
    properties[names.UNIQUE_KEY] = message_id(record)
    properties[names.ORIGIN_MESSAGE_ID] = _place(record)
    queue_id = _queue(context, topic, properties.get(names.SHARDING_KEY, ""))
    context.store.put(stored_again(record, topic.name, queue_id, properties))
    broker.counters.count_sent(topic.name, 1, len(record.body))


def _queue(context: AdminContext, topic: TopicConfig, message_group: str) -> int:
    """Return the queue for a message, which must be its group's if it has one."""
    in_turn = context.broker.next_queue(topic)
    return queue_of_group(message_group, topic.write_queue_nums) if message_group else in_turn
