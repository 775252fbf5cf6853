"""ReceiveMessage: what a consumer asks for, waiting until there is some, and handing it over."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, final

import trio

from commitbus.broker.messaging.clients import DISCONNECT_GRACE_S, IDLE_S, Client
from commitbus.broker.messaging.context import MessagingContext
from commitbus.broker.messaging.deadlines import shared_deadline_s
from commitbus.broker.messaging.errors import TooManyRequestsError
from commitbus.broker.messaging.fifo import make_batch
from commitbus.broker.messaging.filters import is_prepared, parse_filter, prepare_filter
from commitbus.broker.messaging.handover import hand_over
from commitbus.broker.messaging.message_codec import set_timestamp
from commitbus.broker.messaging.polling_time import polling_ms
from commitbus.broker.messaging.pop import BATCH_MAX, Batch
from commitbus.broker.messaging.status import REFUSALS, ok, status_of
from commitbus.broker.messaging.undelivered import Demand
from commitbus.broker.messaging.validate import (
    attempt_id,
    group_name,
    invisible_ms,
    topic_name,
)
from commitbus.broker.metadata.fifo_lock import names_attempt, receiver_id
from commitbus.broker.metadata.topics import TopicConfig
from commitbus.broker.rpc.call import LANGUAGE_HEADER, Call, Send
from commitbus.broker.rpc.method import Parked
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb

AUTO_RENEW_INVISIBLE_MS: Final = 60_000

GO_ON_AFTER_FAILURE: Final = frozenset({"GO"})
"""Languages whose push consumer goes on with the rest of a batch before it tries a failed message
again. In a FIFO group that breaks the order, unless a batch has one message of a lock unit only."""

_OK: Final = pb.ReceiveMessageResponse(status=ok())
_NOTHING_NEW: Final = pb.ReceiveMessageResponse(
    status=pb.Status(code=pb.MESSAGE_NOT_FOUND, message="no new message")
)
"""Sent as they are, never changed."""


def receive_message(
    context: MessagingContext, request: pb.ReceiveMessageRequest, call: Call, send: Send
) -> Parked | Awaitable[Parked | None]:
    """Send one status, then messages, then the time of delivery; park while there are none.

    Messages that the client did not get to the last one become visible again after a second.
    """
    if not is_prepared(request.filter_expression):
        return _receive_prepared(context, request, call, send)
    return _receive(context, request, call, send)


def _receive(
    context: MessagingContext, request: pb.ReceiveMessageRequest, call: Call, send: Send
) -> Parked | Awaitable[Parked | None]:
    try:
        client = context.clients.seen(call)
        until_s = shared_deadline_s(trio.current_time() + polling_ms(request, call) / 1000)
        demand = _demand(context, request, client, call)
        if context.metadata.topic(demand.topic) is None or not context.metadata.group(demand.group):
            return _receive_anew(context, request, call, send)
        topic = context.readable_topic(demand.topic)
        context.consuming_group(demand.group)
        if demand.batch_size == 0:
            return _answer_nothing(context, client, until_s, send)
        polling = Polling(context, demand, client, until_s, call=call, send=send)
    except REFUSALS as error:
        return _refuse(context, send, error)
    if _may_find(context, demand, topic) or names_attempt(demand.client_id):
        return polling.resume()
    make_batch(context, demand).note_next_expiry()
    return polling


async def _receive_prepared(
    context: MessagingContext, request: pb.ReceiveMessageRequest, call: Call, send: Send
) -> Parked | None:
    try:
        prepared = await prepare_filter(request.filter_expression)
    except TooManyRequestsError as error:
        await _refuse(context, send, error)
        return None
    # Not `receive_message`: an expression that is refused is prepared as little as before.
    answer = _receive(context, request, call, send)
    del prepared
    return answer if isinstance(answer, Parked) else await answer


async def _receive_anew(
    context: MessagingContext, request: pb.ReceiveMessageRequest, call: Call, send: Send
) -> Parked | None:
    """Receive from a topic or for a group that does not exist yet, if it may be created."""
    try:
        await context.topic(request.message_queue.topic.name)
        context.readable_topic(request.message_queue.topic.name)
        await context.group(request.group.name)
    except REFUSALS as error:
        await _refuse(context, send, error)
        return None
    return await _receive_now(context, request, call, send)


async def _receive_now(
    context: MessagingContext, request: pb.ReceiveMessageRequest, call: Call, send: Send
) -> Parked | None:
    answer = receive_message(context, request, call, send)
    return answer if isinstance(answer, Parked) else await answer


async def _answer_nothing(
    context: MessagingContext, client: Client, until_s: float, send: Send
) -> None:
    """Answer whoever takes no message at all, as late as anybody else."""
    with context.clients.streaming(client):
        await trio.sleep_until(until_s)
    await _finish(context, send, _NOTHING_NEW)


def _may_find(context: MessagingContext, demand: Demand, topic: TopicConfig) -> bool:
    """Return whether a look may find something; for a call that would only park it spares a task.

    A group that has not received from the topic yet begins to do so with a look.
    """
    now_ms = context.clock.now_ms()
    for queue_id in range(topic.read_queue_nums):
        progress = context.progress.get(demand.group, demand.topic, queue_id)
        if progress is None or progress.may_have_expired(now_ms):
            return True
        if progress.next_offset < context.store.max_offset(demand.topic, queue_id):
            return True
    return False


@final
class Polling(Parked):
    """A receive call in line: it looks for messages, or is parked until there may be some.

    Ten thousand may be parked. So what a look needs, and no other, is made anew for each.
    """

    __slots__ = ("_call", "_client", "_context", "_demand", "_receiver", "_send", "_until_s")

    def __init__(
        self,
        context: MessagingContext,
        demand: Demand,
        client: Client,
        until_s: float,
        *,
        call: Call,
        send: Send,
    ) -> None:
        """Join the line.

        Raises:
            TooManyRequestsError: it is full.
        """
        self._context, self._demand, self._client = context, demand, client
        self._until_s, self._call, self._send = until_s, call, send
        self._receiver = context.polls.join(demand.group, demand.topic, demand.batch_size)
        context.clients.stream_began(client)

    def when_woken(self, go_on: Callable[[], None]) -> None:
        """Wait in line."""
        self._receiver.park(self._until_s, go_on)

    def abandon(self) -> None:
        """Leave the line."""
        self._receiver.leave()
        self._context.clients.stream_ended(self._client, DISCONNECT_GRACE_S)

    async def resume(self) -> Parked | None:
        """Look for messages, and answer with what there is unless it is worth waiting."""
        batch, parks, idle_after_s = make_batch(self._context, self._demand), False, IDLE_S
        try:
            try:
                parks = await self._shall_wait(batch)
                if not parks:
                    await self._answer(batch)
            except BaseException:
                batch.release()
                raise
            finally:
                batch.finish()
        except REFUSALS as error:
            await _refuse(self._context, self._send, error)
        except trio.Cancelled:
            idle_after_s = DISCONNECT_GRACE_S
            raise
        finally:
            if not parks:
                self._context.clients.stream_ended(self._client, idle_after_s)
        return self if parks else None

    async def _shall_wait(self, batch: Batch) -> bool:
        """Fill a batch; leave the line unless it stays empty and there is time left."""
        receiver, waits = self._receiver, False
        try:
            # Whoever gave the call up before its turn came gets nothing taken, read and given back.
            await trio.lowlevel.checkpoint_if_cancelled()
            is_in_time = trio.current_time() < self._until_s
            if is_in_time or receiver.woken:
                receiver.begin_look()
                await batch.fill(self._until_s)
            waits = is_in_time and not batch.messages
            if waits or not receiver.is_alone:
                batch.note_next_expiry()
            if waits and batch.has_more:
                # All that was taken had to be dropped, and nobody else is told of the rest.
                receiver.wake()
        finally:
            if not waits:
                receiver.leave()
                if batch.has_more:
                    self._context.polls.wake(self._demand.group, self._demand.topic)
        return waits

    async def _answer(self, batch: Batch) -> None:
        """Send a batch.

        Raises:
            RpcError: the client reads it too slowly.
        """
        if not batch.messages:
            await _finish(self._context, self._send, _nothing_new(batch.limit_met()))
            return
        last = _delivery_timestamp(self._context)
        await hand_over(self._send, _OK, batch.messages, last)
        # What was sent may still wait for the client to read it.
        self._call.when_unfinished = batch.when_unfinished()


def _nothing_new(limit_met: str) -> pb.ReceiveMessageResponse:
    """Return the answer without a message; it says which limit was met, if any."""
    if not limit_met:
        return _NOTHING_NEW
    text = f"no new message: {limit_met}"
    return pb.ReceiveMessageResponse(status=pb.Status(code=pb.MESSAGE_NOT_FOUND, message=text))


def _demand(
    context: MessagingContext, request: pb.ReceiveMessageRequest, client: Client, call: Call
) -> Demand:
    """Return what a request asks for, checked by itself.

    Raises:
        RequestError: the first thing that is wrong with it.
    """
    topic_text = topic_name(request.message_queue.topic)
    group_text = group_name(request.group)
    invisible = (
        AUTO_RENEW_INVISIBLE_MS if request.auto_renew else invisible_ms(request.invisible_duration)
    )
    topic, group = context.metadata.topic(topic_text), context.metadata.group(group_text)
    client_id = client.client_id
    if group is not None and group.consume_message_orderly:
        client_id = receiver_id(client_id, attempt_id(request.attempt_id))
    # Of texts that are kept while the call is parked, those that are there anyway.
    return Demand(
        group=group.name if group else group_text,
        topic=topic.name if topic else topic_text,
        wanted=parse_filter(request.filter_expression),
        batch_size=min(max(request.batch_size, 0), BATCH_MAX),
        invisible_ms=invisible,
        client_id=client_id,
        auto_renew=request.auto_renew,
        connection=call.peer,
        one_of_unit=call.metadata.get(LANGUAGE_HEADER) in GO_ON_AFTER_FAILURE,
    )


async def _refuse(context: MessagingContext, send: Send, error: Exception) -> None:
    await _finish(context, send, pb.ReceiveMessageResponse(status=status_of(error)))


async def _finish(context: MessagingContext, send: Send, status: pb.ReceiveMessageResponse) -> None:
    await send(status, _delivery_timestamp(context))


def _delivery_timestamp(context: MessagingContext) -> pb.ReceiveMessageResponse:
    response = pb.ReceiveMessageResponse()
    set_timestamp(response.delivery_timestamp, context.clock.now_ms())
    return response
