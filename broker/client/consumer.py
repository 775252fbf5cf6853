"""Reading a topic from a trio program, without a group: whoever reads keeps the offsets."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from math import inf
from types import TracebackType
from typing import Final, Literal, Self, TypeAlias, final

import trio

from commitbus.broker.client.arguments import OFFSET_MAX, check_queue_id, check_text
from commitbus.broker.client.batch import Message, MessageBatch
from commitbus.broker.client.errors import (
    BrokerUnavailableError,
    ClientClosedError,
    ClientError,
    RefusedError,
)
from commitbus.broker.client.link import Link, call_now
from commitbus.broker.client.options import ConsumerOptions
from commitbus.broker.rpc.call import RpcError, StatusCode
from commitbus.broker.rpc.http2.client_call import ClientCall
from commitbus.broker.rpc.proto import bulk_v1_pb2 as pb
from commitbus.broker.wire.bulk_paths import FETCH
from commitbus.broker.wire.large_field import take_out

Begin: TypeAlias = 'Literal["earliest", "latest"] | datetime | Mapping[int, int]'
"""Where to begin: at the first message that is stored, behind the last, at the first stored at a
time or later, or at an offset of each queue that is named (and then of no other queue)."""

_DEFAULTS: Final = ConsumerOptions()
_RETRY_S: Final = 0.1
_RETRY_MAX_S: Final = 1.0
"""Before a call that failed is made again: twice as long each time, until something is received."""
_GRANTS: Final = 4
"""Into how many parts the read-ahead is divided: fewer mean fewer requests, and longer waits."""
_TRY_AGAIN: Final = {
    StatusCode.UNAVAILABLE,
    StatusCode.CANCELLED,
    StatusCode.INTERNAL,
    StatusCode.UNKNOWN,
    StatusCode.RESOURCE_EXHAUSTED,
}


@final
class Consumer:
    """Reads a topic: all of its messages, whatever any group has acknowledged.

        async with Consumer("127.0.0.1:8081", "greetings") as consumer:
            async for message in consumer:
                print(message.body)

    Messages of a queue come in its order, those of different queues in turns of batches. A lost
    connection is made again, and reading goes on behind the last batch. Belongs to one task.
    """

    def __init__(
        self,
        endpoint: str,
        topic: str,
        *,
        begin: Begin = "earliest",
        tags: str = "*",
        follow: bool = True,
        options: ConsumerOptions = _DEFAULTS,
    ) -> None:
        """Say what to read; nothing is connected yet.

        Args:
            endpoint: The broker as `host:port` or `unix:PATH`.
            topic: What to read.
            begin: From where on.
            tags: `a || b` reads only messages with one of these tags.
            follow: Wait for new messages at the end; else the iteration ends there.
            options: How far it reads ahead.

        Raises:
            ValueError: `endpoint` or `begin` is no such thing, or a text cannot be encoded.
            TypeError: An argument has a wrong type.
        """
        check_text("topic", topic)
        check_text("tags", tags)
        self._options = options
        self._link = Link(endpoint, options.tls, options.server_name)
        self._what = pb.FetchTopic(
            topic=topic,
            queues=_queues(begin),
            begin=_position(begin),
            tags=tags,
            follow=follow,
            slice_bytes_max=options.slice_bytes,
        )
        self.positions: dict[int, int] = {}
        """By queue id the offset behind the last message that was handed out."""
        self.ends: dict[int, int] = {}
        """By queue id where the queue ended when its last batch was read."""
        self._messages: Iterator[Message] = iter(())
        self._nursery: trio.Nursery | None = None
        self._call: ClientCall | None = None
        self._received: deque[MessageBatch] = deque()
        self._received_to: dict[int, int] = {}
        self._arrived = trio.Event()
        self._has_ended = False
        self._retry_s = _RETRY_S
        self._give_up_s = inf
        """When consuming fails, unless something is received before; known from a failure on."""
        self._failure: ClientError | None = None
        self._taken_bytes = 0
        """Of batches. Changed by whoever takes them, in any thread."""
        self._granted_bytes = 0
        """Of them those whose room the broker knows of. Changed on the trio thread."""

    async def __aenter__(self) -> Self:
        """Connect.

        Raises:
            BrokerUnavailableError: The broker cannot be reached in time.
        """
        self._nursery = await self._link.open(self._options.connect_timeout_s)
        self._nursery.start_soon(self._run)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Disconnect."""
        self._nursery = None
        await self._link.close()
        self._received.clear()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        """Return the next message. Raises as `next_batch`."""
        while True:
            for message in self._messages:
                return message
            batch = await self.next_batch()
            if batch is None:
                raise StopAsyncIteration
            self._messages = iter(batch)

    async def next_batch(self) -> MessageBatch | None:
        """Return the next messages of one queue, None at the end.

        Raises:
            RefusedError: The topic cannot be read, or not from there.
            BrokerUnavailableError: The broker did not come back in time.
            ClientClosedError: The consumer is closed.
        """
        if self._nursery is None:
            raise ClientClosedError
        await trio.lowlevel.checkpoint_if_cancelled()
        while not self._received:
            if self._failure is not None:
                raise self._failure
            if self._has_ended:
                return None
            self._arrived = trio.Event()
            await self._arrived.wait()
        # Nothing is awaited from here on: a batch that was taken must not be lost.
        return self.take_received(call_now)

    def take_received(self, call: Callable[[Callable[[], object]], object]) -> MessageBatch | None:
        """Return the next batch if it is here. Not for users; safe on one thread at a time.

        `call` has the trio thread call a function, now or soon.
        """
        if not self._received:
            return None
        batch = self._received.popleft()
        self.positions[batch.queue_id] = batch.next_offset
        self._taken_bytes += len(batch.records)
        if self._taken_bytes - self._granted_bytes >= self._options.read_ahead_bytes // _GRANTS:
            call(self._grant)
        return batch

    def _grant(self) -> None:
        """Let the broker send as much again as was taken; a new stream begins with all of it."""
        taken_bytes = self._taken_bytes
        size, self._granted_bytes = taken_bytes - self._granted_bytes, taken_bytes
        if self._call is not None and size:
            with suppress(RpcError):
                self._call.send_now(pb.FetchRequest(credit_bytes=size).SerializeToString())

    async def _run(self) -> None:
        """Receive until the end, or until it is in vain."""
        while not self._has_ended and self._failure is None:
            try:
                left_s = max(0.0, self._give_up_s - trio.current_time())
                connection = await self._link.connection_within(
                    min(left_s, self._options.reconnect_timeout_s)
                )
                async with connection.call(FETCH) as self._call:
                    await self._receive(self._call)
            except RpcError as error:
                await self._retry_or_fail(error)
            except BrokerUnavailableError as error:
                self._failure = error
            self._call = None
        self._arrived.set()

    async def _retry_or_fail(self, error: RpcError) -> None:
        """Wait before the next attempt; note the failure where another one is in vain."""
        self._link.failure = error.message
        now_s = trio.current_time()
        self._give_up_s = min(self._give_up_s, now_s + self._options.reconnect_timeout_s)
        if error.code not in _TRY_AGAIN:
            self._failure = RefusedError.of(error)
        elif now_s >= self._give_up_s:
            self._failure = BrokerUnavailableError(self._link.endpoint, error.message)
        else:
            await trio.sleep(self._retry_s)
            self._retry_s = min(2 * self._retry_s, _RETRY_MAX_S)

    async def _receive(self, call: ClientCall) -> None:
        """Receive what one stream sends."""
        what = self._what
        if self._received_to:
            what = pb.FetchTopic()
            what.CopyFrom(self._what)
            del what.queues[:]
            what.queues.extend(_queues(self._received_to))
            # The connection may have been lost between the beginnings of two queues.
            what.queues.extend(q for q in self._what.queues if q.queue_id not in self._received_to)
            # A queue that the topic got since is new to its last record.
            what.other_queues = not self._what.queues
            if what.begin.latest:
                what.ClearField("begin")
        self._granted_bytes = self._taken_bytes
        held_bytes = sum(len(batch.records) for batch in tuple(self._received))
        credit = max(0, self._options.read_ahead_bytes - held_bytes)
        request = pb.FetchRequest(topic=what, credit_bytes=credit)
        await call.send(request.SerializeToString())
        while (data := await call.receive()) is not None:
            self._give_up_s, self._retry_s = inf, _RETRY_S
            head, place = take_out(memoryview(data), pb.FetchResponse.RECORDS_FIELD_NUMBER)
            response = pb.FetchResponse.FromString(head)
            self._received_to[response.queue_id] = response.next_offset
            self.positions.setdefault(response.queue_id, response.first_offset)
            self.ends[response.queue_id] = response.end_offset
            if response.record_count:
                batch = MessageBatch(
                    data,
                    place,
                    response.sizes,
                    queue_id=response.queue_id,
                    next_offset=response.next_offset,
                )
                self._received.append(batch)
                self._arrived.set()
        self._has_ended = True


def _queues(begin: Begin) -> list[pb.QueuePosition]:
    if not isinstance(begin, Mapping):
        return []
    for queue_id, offset in begin.items():
        check_queue_id(queue_id)
        if not isinstance(offset, int) or not 0 <= offset <= OFFSET_MAX:
            raise ValueError(f"begin has {offset!r} for queue {queue_id}, which is no queue offset")
    return [
        pb.QueuePosition(queue_id=queue_id, position=pb.Position(queue_offset=offset))
        for queue_id, offset in begin.items()
    ]


def _position(begin: Begin) -> pb.Position | None:
    if isinstance(begin, datetime):
        return pb.Position(store_ms=round(begin.timestamp() * 1000))
    if begin == "latest":
        return pb.Position(latest=True)
    if begin != "earliest" and not isinstance(begin, Mapping):
        raise ValueError(
            f"begin must be 'earliest', 'latest', a datetime or queue offsets, not {begin!r}"
        )
    return None
