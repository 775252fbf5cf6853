"""Fetch: stored records as they are stored, as fast as the client grants credit for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar, final

import trio
from isal.isal_zlib import crc32

from commitbus.broker.bulk.context import BulkContext
from commitbus.broker.common.errors import BadRequestError
from commitbus.broker.common.worker_lines import run_in_worker
from commitbus.broker.consuming.store_reads import read_or_wait
from commitbus.broker.core.filtering import parse_tag_filter, prepare_filter
from commitbus.broker.core.validation import client_topic
from commitbus.broker.rpc.access import Resource, ResourceType, topics
from commitbus.broker.rpc.call import Call, Pieces, RpcError, Send, StatusCode
from commitbus.broker.rpc.proto import bulk_v1_pb2 as pb
from commitbus.broker.store.message_store import MessageStore
from commitbus.broker.store.slices import UNITS_MAX, LogSlices, Slice, WantedTags
from commitbus.broker.wire.large_field import before_field
from commitbus.commitlog.errors import CorruptRecordError, OffsetOutOfRangeError, ReadFailedError
from commitbus.commitlog.types import PhysicalOffset, QueueOffset

SLICE_BYTES: Final = 1 << 20
SLICE_BYTES_MAX: Final = 4 << 20
"""Of one response. A slice is read, copied and written as a whole."""
DISPATCH_WAIT_S: Final = 10.0
"""A millisecond is the rule; a disk without room for the queues may take for ever."""
LOG_POLL_S: Final = 1.0
"""Records that no queue will hold, such as half messages, arrive without a sign."""

_Share = Callable[[int], AbstractAsyncContextManager[None]]
"""Waits until so many bytes may be sent, and counts them as long as its block runs."""


async def fetch(
    context: BulkContext, requests: AsyncIterator[pb.FetchRequest], call: Call, send: Send
) -> None:
    """Serve one Fetch call.

    Raises:
        RpcError: the first request asks for nothing.
        RequestError: what is asked for cannot be had.
        StoreError: or not any more.
    """
    request = await anext(requests, None)
    what = request.WhichOneof("what") if request is not None else None
    if request is None or what is None:
        raise RpcError(StatusCode.INVALID_ARGUMENT, "the first request must say what to fetch")
    credit = _Credit()
    share = partial(context.slices.hold, call.peer)
    async with trio.open_nursery() as nursery:
        credit.grant(request.credit_bytes)
        nursery.start_soon(_take_credit, requests, credit)
        await _until_shown(context)
        if what == "topic":
            await _fetch_topic(context, request.topic, credit, share, send)
        else:
            await _fetch_log(context, request.log, credit, share, send)
        nursery.cancel_scope.cancel()


def fetched_from(request: pb.FetchRequest) -> list[Resource]:
    """Return what the first request of a stream names; the others only grant credit."""
    if request.HasField("log"):
        return [Resource(ResourceType.CLUSTER, "")]
    return topics([request.topic.topic]) if request.HasField("topic") else []


async def _until_shown(context: BulkContext) -> None:
    """Wait for what was acknowledged before: whoever has an acknowledgement finds the message."""
    with trio.move_on_after(DISPATCH_WAIT_S):
        await context.shown.wait(context.store.confirm_offset)


@final
class _Credit:
    """What may still be sent."""

    def __init__(self) -> None:
        self._left = 0
        self._more = trio.Event()
        self._is_last = False

    def grant(self, size_bytes: int) -> None:
        if size_bytes < 0:
            raise BadRequestError(f"a credit of {size_bytes} bytes is negative")
        self._left += size_bytes
        self._more.set()
        self._more = trio.Event()

    def end(self) -> None:
        """Note that no more is granted."""
        self._is_last = True
        self._more.set()

    async def wait(self) -> bool:
        """Return when there is some; False when there never will be."""
        while self._left <= 0:
            if self._is_last:
                return False
            await self._more.wait()
        return True

    def use(self, size_bytes: int) -> None:
        self._left -= size_bytes


async def _take_credit(requests: AsyncIterator[pb.FetchRequest], credit: _Credit) -> None:
    async for request in requests:
        if request.WhichOneof("what") is not None:
            raise BadRequestError("only the first request says what to fetch")
        credit.grant(request.credit_bytes)
    credit.end()


def _slice_bytes(wanted: int) -> int:
    if not 0 <= wanted <= SLICE_BYTES_MAX:
        raise BadRequestError(f"slices of {wanted} bytes, at most {SLICE_BYTES_MAX} are allowed")
    return wanted or SLICE_BYTES


def _response(part: Slice, end_offset: int, queue_id: int, *, checksums: bool) -> Pieces:
    head = pb.FetchResponse(
        queue_id=queue_id,
        first_offset=part.first_offset,
        record_count=part.record_count,
        next_offset=part.next_offset,
        end_offset=end_offset,
        sizes=part.sizes,
        checksum=crc32(part.records) if checksums else None,
    ).SerializeToString()
    records = part.records
    before = before_field(head, pb.FetchResponse.RECORDS_FIELD_NUMBER, len(records))
    return before, records


# A topic


@final
@dataclass(slots=True)
class _Cursor:
    """How far a queue is read."""

    queue_id: int
    next_offset: QueueOffset


@final
class _TopicReader:
    """Where each queue of a topic is read."""

    def __init__(self, context: BulkContext, name: str, what: pb.FetchTopic) -> None:
        self._context, self._store, self._what = context, context.store, what
        self.topic = name
        self.slice_bytes = _slice_bytes(what.slice_bytes_max)
        self._wanted = _wanted(what.tags)
        self._has_others = what.other_queues or not what.queues
        self._queue_count = 0
        self.cursors: list[_Cursor] = []

    async def begin(self) -> list[Pieces]:
        """Find where to begin; return the slices that say where."""
        count = self._context.broker.readable_topic(self.topic).read_queue_nums
        for queue in self._what.queues:
            if not 0 <= queue.queue_id < count:
                raise BadRequestError(
                    f"topic {self.topic} has {count} readable queues, not one {queue.queue_id}"
                )
        queues = {queue.queue_id: queue.position for queue in self._what.queues}
        if self._has_others:
            queues |= {
                queue_id: self._what.begin for queue_id in range(count) if queue_id not in queues
            }
        self._queue_count = count
        return [await self._begin(queue_id, position) for queue_id, position in queues.items()]

    async def begin_new_queues(self) -> list[Pieces]:
        """Take in the queues that the topic got since, if they are wanted.

        Raises:
            RequestError: It may not be read any more.
        """
        count = self._context.broker.readable_topic(self.topic).read_queue_nums
        new = range(self._queue_count, count) if self._has_others else range(0)
        self._queue_count = max(self._queue_count, count)
        return [await self._begin(queue_id, pb.Position()) for queue_id in new]

    async def _begin(self, queue_id: int, position: pb.Position) -> Pieces:
        """Return the empty slice that says where a queue begins."""
        offset = await run_in_worker(_begin, self._store, self.topic, queue_id, position)
        cursor = _Cursor(queue_id, offset)
        self.cursors.append(cursor)
        return self.response(cursor, Slice(offset, 0, offset, b"", b""))

    def has_more(self, cursor: _Cursor) -> bool:
        """Return whether something of a queue was not read yet."""
        return cursor.next_offset < self._store.max_offset(self.topic, cursor.queue_id)

    async def read(self, cursor: _Cursor) -> Slice | None:
        """Return the next slice of a queue, None at its end."""
        part = await read_or_wait(self._read, cursor)
        if part.next_offset == cursor.next_offset:
            return None
        cursor.next_offset = QueueOffset(part.next_offset)
        return part

    def _read(self, cursor: _Cursor, *, only_cached: bool) -> Slice | None:
        def read(max_bytes: int, max_units: int) -> Slice | None:
            return self._store.queue_slice(
                self.topic, cursor.queue_id, cursor.next_offset, max_bytes, self._wanted,
                max_units=max_units, only_cached=only_cached,
            )  # fmt: skip

        return _up_to_unreadable(read, self.slice_bytes)

    def response(self, cursor: _Cursor, part: Slice) -> Pieces:
        """Return what the client gets for a slice."""
        end_offset = self._store.max_offset(self.topic, cursor.queue_id)
        return _response(part, end_offset, cursor.queue_id, checksums=self._what.checksums)


async def _fetch_topic(
    context: BulkContext, what: pb.FetchTopic, credit: _Credit, share: _Share, send: Send
) -> None:
    name = client_topic(what.topic)
    prepared = await prepare_filter(what.tags, is_sql=False)
    reader = _TopicReader(context, name, what)
    del prepared
    await send(*await reader.begin())
    while True:
        arrival = context.arrivals.next(name) if what.follow else None
        if new := await reader.begin_new_queues():
            await send(*new)
        if not await _send_round(reader, credit, share, send):
            return
        if any(map(reader.has_more, reader.cursors)):
            continue
        if arrival is None:
            return
        await arrival.wait()


async def _send_round(reader: _TopicReader, credit: _Credit, share: _Share, send: Send) -> bool:
    """Send a slice of each queue that has one; False when the client grants no more."""
    for cursor in reader.cursors:
        if not reader.has_more(cursor):
            continue
        if not await credit.wait():
            return False
        async with share(reader.slice_bytes):
            part = await reader.read(cursor)
            if part is not None:
                credit.use(len(part.records))
                await send(reader.response(cursor, part))
    return True


_Slice = TypeVar("_Slice", Slice, Slice | None)


def _up_to_unreadable(read: Callable[[int, int], _Slice], max_bytes: int) -> _Slice:
    """Return what `read` returns for `max_bytes` and `UNITS_MAX`, or for less.

    So a client gets all that lies before a block which the disk does not give back.

    Raises:
        ReadFailedError: the very next record is there.
    """
    max_units = UNITS_MAX
    while True:
        try:
            return read(max_bytes, max_units)
        except ReadFailedError:
            if max_units == 1:
                raise
            max_bytes, max_units = max(max_bytes // 8, 1), max_units // 8 or 1


def _wanted(tags: str) -> WantedTags | None:
    tag_filter = parse_tag_filter(tags)
    if tag_filter.tags is None or tag_filter.tags_codes is None:
        return None
    return WantedTags(tag_filter.tags_codes, tag_filter.tags)


def _begin(store: MessageStore, topic: str, queue_id: int, position: pb.Position) -> QueueOffset:
    """Return where to begin in a queue. May wait for a disk.

    Raises:
        OffsetOutOfRangeError: behind the queue's end, or negative.
    """
    first, end = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
    match position.WhichOneof("at"):
        case "queue_offset":
            if not 0 <= position.queue_offset <= end:
                raise OffsetOutOfRangeError(
                    f"queue offset of {topic}/{queue_id}", position.queue_offset, first, end
                )
            return QueueOffset(max(first, position.queue_offset))
        case "store_ms":
            return store.offset_by_timestamp(topic, queue_id, position.store_ms)
        case "latest":
            return end
        case _:
            return first


# The whole log


async def _fetch_log(
    context: BulkContext, what: pb.FetchLog, credit: _Credit, share: _Share, send: Send
) -> None:
    store, slice_bytes = context.store, _slice_bytes(what.slice_bytes_max)
    slices = store.log_slices()
    first, end = store.min_physical_offset, store.confirm_offset
    start = PhysicalOffset(what.physical_offset if what.HasField("physical_offset") else first)
    if not first <= start <= end:
        raise OffsetOutOfRangeError("physical offset", start, first, end)
    await send(_response(Slice(start, 0, start, b"", b""), end, 0, checksums=what.checksums))
    while True:
        arrival = context.arrivals.next() if what.follow else None
        while start < (end := store.confirm_offset):
            if not await credit.wait():
                return
            async with share(slice_bytes):
                part = await run_in_worker(_read_log, slices, start, end, slice_bytes)
                start = PhysicalOffset(part.next_offset)
                if part.record_count:
                    credit.use(len(part.records))
                    await send(_response(part, end, 0, checksums=what.checksums))
        if arrival is None:
            return
        with trio.move_on_after(LOG_POLL_S):
            await arrival.wait()


def _read_log(
    slices: LogSlices, start: PhysicalOffset, end: PhysicalOffset, max_bytes: int
) -> Slice:
    try:
        return _up_to_unreadable(lambda max_bytes, _: slices.read(start, end, max_bytes), max_bytes)
    except CorruptRecordError as error:
        # Nothing below what may be shown is torn: it is the client's offset that is none.
        raise BadRequestError(str(error)) from None
