"""PullMessage: messages of one queue from an offset that the consumer keeps itself.

RocketMQ 5.4.0 answers UNIMPLEMENTED. What it means here is what the protocol says: nothing is put
in flight and the group's progress stays as it is, so any number of consumers may pull the same
messages. That is what broadcasting is made of.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, final

import trio

from commitbus.broker.filters.message_filter import MessageFilter
from commitbus.broker.messaging.clients import DISCONNECT_GRACE_S, IDLE_S, Client
from commitbus.broker.messaging.context import MessagingContext
from commitbus.broker.messaging.deadlines import shared_deadline_s
from commitbus.broker.messaging.delivered import Delivered, encode_delivered, encode_run
from commitbus.broker.messaging.delivering import Recipient
from commitbus.broker.messaging.errors import (
    BadRequestError,
    IllegalOffsetError,
    TooManyRequestsError,
)
from commitbus.broker.messaging.filters import parse_filter, prepare_filter
from commitbus.broker.messaging.handover import hand_over
from commitbus.broker.messaging.offsets import check_readable, readable_queue
from commitbus.broker.messaging.polling_time import polling_ms
from commitbus.broker.messaging.pop import BATCH_BYTES_MAX, BATCH_MAX, TOO_SLOW
from commitbus.broker.messaging.scan import Scan
from commitbus.broker.messaging.status import REFUSALS, ok, status_of
from commitbus.broker.messaging.store_reads import Place, read_or_wait, read_records, takes_long
from commitbus.broker.messaging.validate import group_name
from commitbus.broker.rpc.call import Call, Send
from commitbus.broker.rpc.method import Parked
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from commitbus.commitlog.errors import CorruptRecordError, OffsetOutOfRangeError, ReadFailedError
from commitbus.commitlog.types import QueueOffset

_OK: Final = pb.PullMessageResponse(status=ok())
_NOTHING_NEW: Final = pb.PullMessageResponse(
    status=pb.Status(code=pb.MESSAGE_NOT_FOUND, message="no new message")
)
"""Sent as they are, never changed."""

_log: Final = logging.getLogger(__name__)


async def pull_message(
    context: MessagingContext, request: pb.PullMessageRequest, call: Call, send: Send
) -> Parked | None:
    """Send one status, then messages, then the offset to go on at; park while there are none.

    Without the offset is only the answer to what could not be looked for at all.
    """
    try:
        client = context.clients.seen(call)
        until_s = shared_deadline_s(trio.current_time() + polling_ms(request, call) / 1000)
        prepared = await prepare_filter(request.filter_expression)
        to = Recipient(group_name(request.group), client.client_id, call.peer)
        want = _want(context, request, client, to, until_s)
        del prepared
        await context.group(to.group)
    except REFUSALS as error:
        await send(pb.PullMessageResponse(status=status_of(error)))
        return None
    return await Pulling(context, want, QueueOffset(request.offset), send).resume()


@final
@dataclass(frozen=True, slots=True)
class _Want:
    """The parameters of a pull except its offset."""

    topic: str
    queue_id: int
    wanted: MessageFilter
    batch_size: int
    client: Client
    to: Recipient
    until_s: float


@final
class _Read(NamedTuple):
    """Messages read, up to the first that the disk does not give back."""

    messages: list[Delivered]
    unreadable: tuple[Place, ReadFailedError] | None = None


def _want(
    context: MessagingContext,
    request: pb.PullMessageRequest,
    client: Client,
    to: Recipient,
    until_s: float,
) -> _Want:
    """Return what a request asks for.

    Raises:
        RequestError: the first thing that is wrong with it.
    """
    topic, queue_id = readable_queue(context, request.message_queue)
    wanted = parse_filter(request.filter_expression)
    if request.batch_size < 1:
        raise BadRequestError(f"a batch of {request.batch_size} messages is none")
    batch_size = min(request.batch_size, BATCH_MAX)
    return _Want(topic, queue_id, wanted, batch_size, client, to, until_s)


@final
class Pulling(Parked):
    """A pull call: it looks for messages, or is parked until there may be some."""

    __slots__ = ("_context", "_go_on", "_held_bytes", "_offset", "_send", "_want")

    def __init__(
        self, context: MessagingContext, want: _Want, offset: QueueOffset, send: Send
    ) -> None:
        self._context, self._want, self._offset, self._send = context, want, offset, send
        self._go_on: Callable[[], None] | None = None
        self._held_bytes = 0
        context.clients.stream_began(want.client)

    @property
    def group(self) -> str:
        """The group that it pulls for."""
        return self._want.to.group

    # While it is parked

    def when_woken(self, go_on: Callable[[], None]) -> None:
        """Wait for the queue's next message."""
        topic, queue_id = self._want.topic, self._want.queue_id
        self._go_on = go_on
        self._context.polls.deadlines.add(self._want.until_s, self)
        self._context.watch.add(topic, queue_id, self)
        if self._context.store.max_offset(topic, queue_id) > self._offset:
            self.wake()

    def wake(self) -> None:
        """Look again."""
        go_on = self._go_on
        self._leave()
        if go_on is not None:
            go_on()

    time_over = wake

    def _leave(self) -> None:
        self._go_on = None
        self._context.polls.deadlines.discard(self._want.until_s, self)
        self._context.watch.discard(self._want.topic, self._want.queue_id, self)

    def abandon(self) -> None:
        """Wait no more."""
        self._leave()
        self._context.clients.stream_ended(self._want.client, DISCONNECT_GRACE_S)

    # While it is not

    def _give_back(self) -> None:
        if self._held_bytes:
            self._context.delivering.give_back(self._want.to, self._held_bytes)
            self._held_bytes = 0

    async def resume(self) -> Parked | None:
        """Look for messages, and answer with what there is unless it is worth waiting."""
        parks, idle_after_s = False, IDLE_S
        try:
            # Whoever gave the call up before its turn came gets nothing read.
            await trio.lowlevel.checkpoint_if_cancelled()
            messages = await self._look()
            parks = not messages and trio.current_time() < self._want.until_s
            if not parks:
                await self._answer(messages)
        except REFUSALS as error:
            await self._send(pb.PullMessageResponse(status=status_of(error)), self._place())
        except trio.Cancelled:
            idle_after_s = DISCONNECT_GRACE_S
            raise
        finally:
            self._give_back()
            if not parks:
                self._context.clients.stream_ended(self._want.client, idle_after_s)
        return self if parks else None

    async def _look(self) -> list[bytes]:
        """Return a batch of messages, and go on behind them; none at the end of queue or time.

        Raises:
            RequestError: topic, group or queue are gone, or not to be pulled from or for; or the
                offset is none of the queue: then it becomes the nearest that is.
            ReadFailedError: the disk does not give the next message back: the offset becomes that
                of the one behind it. To try again, the client asks for the same one again.
        """
        want = self._want
        scan = Scan(self._context, want.topic, want.queue_id, want.wanted)
        while self._check() > self._offset:
            found = await scan.step(self._offset, want.batch_size)
            places = self._fitting(found.places)
            is_cut = len(places) < len(found.places)
            messages, unreadable = await self._read(places) if places else ([], None)
            self._offset = found.places[len(places)].queue_offset if is_cut else found.next_offset
            if unreadable is not None:
                place, error = unreadable
                if not messages:
                    _log.error("message unreadable", extra={"reason": str(error)})
                    self._offset = QueueOffset(place.queue_offset + 1)
                    raise error
                self._offset = place.queue_offset
            if not messages:
                self._give_back()
            if messages or trio.current_time() >= self._want.until_s:
                return messages
            # A filter may step over millions: others get a turn between two steps.
            await trio.lowlevel.checkpoint()
        waits = trio.current_time() < want.until_s
        if waits and self._context.watch.is_full(want.topic, want.queue_id):
            raise TooManyRequestsError(f"too many wait for queue {want.queue_id} of {want.topic}")
        return []

    def _check(self) -> QueueOffset:
        """Look up anew what an operator or retention may have changed; return the queue's end."""
        context, want = self._context, self._want
        check_readable(context, want.topic, want.queue_id)
        context.consuming_group(want.to.group)
        first = context.store.min_offset(want.topic, want.queue_id)
        end = context.store.max_offset(want.topic, want.queue_id)
        if not first <= self._offset <= end:
            asked, self._offset = self._offset, min(max(self._offset, first), end)
            raise IllegalOffsetError(f"offset {asked} is not in [{first}, {end}]")
        return end

    def _fitting(self, places: Sequence[Place]) -> Sequence[Place]:
        """Return as many of the first ones as an answer may hold.

        Raises:
            TooManyRequestsError: too many bytes are on their way to the client already.
        """
        delivering, to, size_bytes = self._context.delivering, self._want.to, 0
        share = delivering.free_bytes(to)
        limit = min(BATCH_BYTES_MAX, share)
        for count, place in enumerate(places):
            size_bytes += place.size_bytes
            if size_bytes > limit:
                if count:
                    return places[:count]
                if size_bytes <= share or delivering.may_take_one(to):
                    return places[:1]
                raise TooManyRequestsError(TOO_SLOW)
        return places

    async def _read(
        self, places: Sequence[Place]
    ) -> tuple[list[bytes], tuple[Place, ReadFailedError] | None]:
        """Return the responses that carry messages, without those that are gone or not wanted.

        And the first message that the disk does not give back, behind which nothing is returned.
        """
        context = self._context
        size_bytes = sum(place.size_bytes for place in places)
        self._held_bytes += size_bytes
        context.delivering.take(self._want.to, size_bytes)
        found, unreadable = await read_or_wait(self._encode, places)
        body_bytes = sum(count for _, count in found)
        context.counters.count_received(
            self._want.to.group, self._want.topic, len(found), body_bytes
        )
        return [response for response, _ in found], unreadable

    def _encode(self, places: Sequence[Place], *, only_cached: bool) -> _Read | None:
        if only_cached and takes_long(places):
            return None
        common, found = encode_run(self._want.queue_id, None), list[Delivered]()
        records = read_records(self._context.store, places, only_cached=only_cached)
        for place, record in zip(places, records, strict=False):
            if record is None:
                return None
            if isinstance(record, ReadFailedError):
                return _Read(found, (place, record))
            if isinstance(record, OffsetOutOfRangeError):
                continue  # Retention has deleted it just now.
            try:
                message = encode_delivered(
                    record, place.physical_offset, common, "", self._want.wanted
                )
            except CorruptRecordError as error:
                # Passed over: at the same place again the consumer would get no further.
                _log.error("message unreadable", extra={"reason": str(error)})
                continue
            if message is not None:
                found.append(message)
        return _Read(found)

    async def _answer(self, messages: Sequence[bytes]) -> None:
        """Send a batch.

        Raises:
            RpcError: the client reads it too slowly.
        """
        if messages:
            await hand_over(self._send, _OK, messages, self._place())
        else:
            await self._send(_NOTHING_NEW, self._place())

    def _place(self) -> pb.PullMessageResponse:
        return pb.PullMessageResponse(next_offset=self._offset)
