"""Append: batches from one producer into the log, acknowledged in their order."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from contextlib import ExitStack, suppress
from typing import Final, final

import trio
from google.protobuf.message import DecodeError

from commitbus.broker.bulk.context import BulkContext
from commitbus.broker.bulk.producers import PRODUCER_ID_BYTES, Producer, Stored
from commitbus.broker.bulk.status import refusal
from commitbus.broker.bulk.validate import (
    batch_bytes_max,
    check_records,
    check_size,
)
from commitbus.broker.common.errors import REFUSALS, BadRequestError, MessageCorruptedError
from commitbus.broker.core.kinds import NORMAL, check_kind
from commitbus.broker.core.outgoing import TIMESTAMP_MS_MAX, peer_host
from commitbus.broker.core.validation import client_topic
from commitbus.broker.metadata.topics import TopicConfig
from commitbus.broker.rpc.access import Resource, topics
from commitbus.broker.rpc.call import Call, RpcError, Send, StatusCode
from commitbus.broker.rpc.proto import bulk_v1_pb2 as pb
from commitbus.broker.wire.frames import RECORDS_MAX, Frames, FramesError, checksum, decode_frames
from commitbus.broker.wire.large_field import take_out
from commitbus.commitlog.framed import FramedBatch

WINDOW_BATCHES: Final = 64
"""Of one stream. With the batches that are read ahead this bounds what it takes of the memory:
what is stored is not held, only where it lies."""


async def append(
    context: BulkContext, requests: AsyncIterator[bytes], call: Call, send: Send
) -> None:
    """Serve one Append call.

    Raises:
        RpcError: a request is malformed, or a batch refused. What was stored before is acknowledged
            first.
        RequestError: the topic takes no such messages.
        StoreError: the topic could not be created, or the store failed: the outcome of what was not
            acknowledged is unknown.
    """
    start, _ = _parsed(await anext(requests, b""))
    if not isinstance(start, pb.AppendStart):
        raise RpcError(StatusCode.INVALID_ARGUMENT, "the first request must be a start")
    with ExitStack() as stack:
        topic = await _checked_topic(context, start.topic)
        producer = None
        if start.producer_id:
            if len(start.producer_id) != PRODUCER_ID_BYTES:
                raise RpcError(StatusCode.INVALID_ARGUMENT, "a producer id has 16 bytes")
            speaks = context.producers.speak(topic.name, start.producer_id, resumes=start.resumes)
            producer = stack.enter_context(speaks)
        await send(_limits(context))
        stream = _AppendStream(context, topic.name, call, producer, durable=start.durable)
        await stream.run(requests, send)


def _parsed(request: bytes) -> tuple[pb.AppendStart | pb.AppendBatch | None, memoryview]:
    """Return the content of a request, and the records of a batch, which are not in it.

    What is empty is a batch without records.

    Raises:
        RpcError: it is no request.
    """
    try:
        view = memoryview(request)
        others, place = take_out(view, pb.AppendRequest.BATCH_FIELD_NUMBER)
        if not others:
            batch = view[place]
            head, place = take_out(batch, pb.AppendBatch.RECORDS_FIELD_NUMBER)
            return pb.AppendBatch.FromString(head), batch[place]
        message = pb.AppendRequest.FromString(request)
    except DecodeError:
        raise RpcError(StatusCode.INTERNAL, "the request message cannot be parsed") from None
    match message.WhichOneof("content"):
        case "start":
            return message.start, memoryview(b"")
        case "batch":
            return message.batch, memoryview(message.batch.records)
        case _:
            return None, memoryview(b"")


def appended_to(request: bytes) -> list[Resource]:
    """Return the topic that the first request of a stream names; the others have none.

    Raises:
        RpcError: it is no request.
    """
    content, _ = _parsed(request)
    return topics([content.topic]) if isinstance(content, pb.AppendStart) else []


async def _checked_topic(context: BulkContext, name: str) -> TopicConfig:
    """Return a topic that takes NORMAL messages.

    Raises:
        RequestError: there is none of this name.
        StateWriteError: it could not be created.
    """
    topic = await context.broker.topic(client_topic(name))
    check_kind(topic, NORMAL)
    return topic


def _limits(context: BulkContext) -> pb.AppendResponse:
    max_body_bytes = context.broker.config.max_body_bytes
    return pb.AppendResponse(
        started=pb.AppendLimits(
            body_bytes_max=max_body_bytes,
            batch_bytes_max=batch_bytes_max(max_body_bytes),
            batch_records_max=RECORDS_MAX,
            window_batches=WINDOW_BATCHES,
        )
    )


@final
class _AppendStream:
    def __init__(
        self,
        context: BulkContext,
        topic: str,
        call: Call,
        producer: Producer | None,
        *,
        durable: bool,
    ) -> None:
        self._context, self._topic, self._producer = context, topic, producer
        self._born_host = peer_host(call.peer)
        self._durability = context.on_disk if durable else context.broker.durability
        self._max_body_bytes = context.broker.config.max_body_bytes

    async def run(self, requests: AsyncIterator[bytes], send: Send) -> None:
        """Store batches until the client sends no more, or one is refused."""
        refused: RpcError | None = None
        to_acknowledge, stored = trio.open_memory_channel[tuple[int, Stored]](WINDOW_BATCHES)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._acknowledge, stored, send)
            async with to_acknowledge:
                try:
                    async for request in requests:
                        await to_acknowledge.send(await self._take(request))
                except RpcError as error:
                    # Only once everything before it is acknowledged.
                    refused = error
        if refused is not None:
            raise refused

    async def _take(self, request: bytes) -> tuple[int, Stored]:
        """Store a batch, or find it stored."""
        batch, records = _parsed(request)
        if not isinstance(batch, pb.AppendBatch):
            raise RpcError(StatusCode.INVALID_ARGUMENT, "only the first request is a start")
        try:
            return batch.sequence, await self._store_once(batch, records)
        except REFUSALS as error:
            raise refusal(error, f"batch {batch.sequence}") from None

    async def _store_once(self, batch: pb.AppendBatch, records: memoryview) -> Stored:
        frames = self._checked(batch, records)
        if self._producer is not None:
            stored = await self._producer.stored_before(batch.sequence, frames)
            if stored is not None:
                return stored
        topic = self._context.broker.metadata.topic(self._topic)
        if topic is None:
            topic = await self._context.broker.topic(self._topic)
        return self._store(topic, batch, frames)

    def _checked(self, batch: pb.AppendBatch, records: memoryview) -> Frames:
        lengths = batch.lengths
        check_size(lengths, records, max_body_bytes=self._max_body_bytes)
        if batch.HasField("checksum") and batch.checksum != checksum(lengths, records):
            raise MessageCorruptedError("the batch does not match its checksum")
        try:
            frames = decode_frames(lengths, records)
        except FramesError as error:
            raise MessageCorruptedError(str(error)) from None
        check_records(
            frames, max_body_bytes=self._max_body_bytes, has_unique_keys=self._producer is None
        )
        return frames

    def _store(self, topic: TopicConfig, batch: pb.AppendBatch, frames: Frames) -> Stored:
        broker = self._context.broker
        check_kind(topic, NORMAL)
        self._durability.check_room()
        if batch.HasField("queue_id"):
            queue_id = _writable_queue(topic, batch.queue_id)
        else:
            queue_id = broker.next_queue(topic)
        key_property = b""
        if self._producer is not None:
            self._producer.begin()
            key_property = self._producer.key_property(batch.sequence)
        born_ms = batch.born_ms if 0 < batch.born_ms <= TIMESTAMP_MS_MAX else broker.clock.now_ms()
        first = broker.store.put_framed(
            FramedBatch(
                self._topic,
                queue_id,
                frames.records,
                frames.body_bytes,
                frames.properties_bytes,
                born_ms,
                self._born_host,
                key_property,
            )
        )
        broker.counters.count_sent(topic.name, len(frames), int(frames.body_bytes.sum()))
        return Stored(queue_id, len(frames), first, first.end_offset)

    async def _acknowledge(
        self, stored: trio.MemoryReceiveChannel[tuple[int, Stored]], send: Send
    ) -> None:
        waiting: deque[tuple[int, Stored]] = deque()
        async for first in stored:
            waiting.append(first)
            while waiting:
                await self._durability.wait(waiting[0][1].end_offset)
                with suppress(trio.WouldBlock, trio.EndOfChannel):
                    while len(waiting) < WINDOW_BATCHES:
                        waiting.append(stored.receive_nowait())
                response = pb.AppendResponse()
                # What has become durable together is acknowledged together.
                while waiting and self._durability.reached(waiting[0][1].end_offset):
                    response.acks.append(_ack(*waiting.popleft()))
                await send(response)


def _writable_queue(topic: TopicConfig, queue_id: int) -> int:
    count = topic.write_queue_nums if topic.writable else 0
    if not 0 <= queue_id < count:
        raise BadRequestError(f"topic {topic.name} has {count} writable queues, not one {queue_id}")
    return queue_id


def _ack(sequence: int, batch: Stored) -> pb.AppendAck:
    first = batch.first
    return pb.AppendAck(
        sequence=sequence,
        queue_id=batch.queue_id,
        first_queue_offset=first.queue_offset,
        first_physical_offset=first.physical_offset,
        record_count=batch.record_count,
        store_ms=first.store_timestamp,
    )
