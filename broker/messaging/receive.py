"""ReceiveMessage: what a consumer asks for, waiting until there is some, and handing it over."""

from __future__ import annotations

from typing import Final

import trio

from commitbus.broker.messaging.context import MessagingContext
from commitbus.broker.messaging.errors import BadRequestError, IllegalPollingTimeError
from commitbus.broker.messaging.filters import parse_filter
from commitbus.broker.messaging.message_codec import set_timestamp
from commitbus.broker.messaging.pop import Batch, Demand
from commitbus.broker.messaging.status import REFUSALS, ok, status_of
from commitbus.broker.messaging.validate import duration_ms, group_name, invisible_ms, topic_name
from commitbus.broker.rpc.call import Call, RpcError, Send, StatusCode
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb

BATCH_MAX: Final = 32
POLLING_MS_MIN: Final = 5_000
POLLING_MS_MAX: Final = 20_000
AUTO_RENEW_INVISIBLE_MS: Final = 60_000

HANDOVER_S_MAX: Final = 60.0
"""For one answer: 32 MiB in it are 4.5 Mbit/s. A client that reads more slowly holds memory that
others need, and it need not have set a deadline."""

_REQUEST_TIMEOUT_MS: Final = 3_000
"""What the official clients add to a long poll for their deadline."""
_ANSWER_MARGIN_MS: Final = 200
"""An empty answer leaves this long before the deadline, or the client sees a timeout instead."""
_ILLEGAL_POLLING_TIME_SINCE: Final = "5.0.3"
"""Older clients do not know the code. Versions are compared as texts, as RocketMQ does."""

_OK: Final = pb.ReceiveMessageResponse(status=ok())
_NOTHING_NEW: Final = pb.ReceiveMessageResponse(
    status=pb.Status(code=pb.MESSAGE_NOT_FOUND, message="no new message")
)
"""Sent as they are, never changed."""


async def receive_message(
    context: MessagingContext, request: pb.ReceiveMessageRequest, call: Call, send: Send
) -> None:
    """Send one status, then messages, then the time of delivery.

    Messages that the client did not get to the last one become visible again after a second.
    """
    try:
        with context.clients.streaming(context.clients.seen(call)):
            polling_ms = _polling_ms(request, call)
            batch = Batch(context, await _demand(context, request, call))
            # It would be kept as long as the call waits, and ten thousand may wait.
            del request
            try:
                await _fill(context, batch, trio.current_time() + polling_ms / 1000)
                if batch.messages:
                    await _hand_over(context, batch, send)
                else:
                    await _finish(context, send, _NOTHING_NEW)
            except BaseException:
                batch.release()
                raise
            finally:
                batch.finish()
    except REFUSALS as error:
        await _finish(context, send, pb.ReceiveMessageResponse(status=status_of(error)))


async def _hand_over(context: MessagingContext, batch: Batch, send: Send) -> None:
    """Send a batch.

    Raises:
        RpcError: the client reads it too slowly.
    """
    with trio.move_on_after(HANDOVER_S_MAX) as scope:
        await send(_OK)
        for message in batch.messages:
            await send(message)
        await _send_delivery_timestamp(context, send)
    if scope.cancelled_caught:
        raise RpcError(StatusCode.DEADLINE_EXCEEDED, "the messages are read too slowly")


async def _fill(context: MessagingContext, batch: Batch, until: float) -> None:
    """Return once the batch has messages, or at `until` with an empty one."""
    demand = batch.demand
    if demand.batch_size == 0:
        await trio.sleep_until(until)
        return
    with context.polls.join(demand.group, demand.topic, demand.batch_size) as receiver:
        await batch.fill()
        while not batch.messages:
            batch.note_next_expiry()
            # The time limits the wait only: what was taken is never left half handled.
            with trio.move_on_at(until) as scope:
                if batch.has_more:
                    # All that was taken had to be dropped, and nobody else is told of the rest.
                    receiver.wake()
                await receiver.wait()
            if scope.cancelled_caught:
                break
            await batch.fill()
        if not receiver.is_alone:
            batch.note_next_expiry()
    if batch.has_more:
        context.polls.wake(demand.group, demand.topic)


async def _demand(
    context: MessagingContext, request: pb.ReceiveMessageRequest, call: Call
) -> Demand:
    """Return what a request asks for, checked.

    Raises:
        RequestError: the first thing that is wrong with it.
    """
    topic_text = topic_name(request.message_queue.topic)
    group_text = group_name(request.group)
    invisible = (
        AUTO_RENEW_INVISIBLE_MS if request.auto_renew else invisible_ms(request.invisible_duration)
    )
    tags = parse_filter(request.filter_expression)
    if context.metadata.topic(topic_text) is None:
        await context.topic(topic_text)
    context.readable_topic(topic_text)
    if context.metadata.group(group_text) is None:
        await context.group(group_text)
    context.consuming_group(group_text)
    return Demand(
        group=group_text,
        topic=topic_text,
        tags=tags,
        batch_size=min(max(request.batch_size, 0), BATCH_MAX),
        invisible_ms=invisible,
        client_id=call.client_id,
        auto_renew=request.auto_renew,
    )


def _polling_ms(request: pb.ReceiveMessageRequest, call: Call) -> int:
    """Return how long to wait for messages.

    Raises:
        IllegalPollingTimeError: the deadline leaves less than the shortest wait.
        BadRequestError: the same, for a client that does not know that code.
    """
    remaining_ms: int | None = None
    wanted_ms = POLLING_MS_MAX
    if call.deadline_s is not None:
        remaining_ms = max(0, int((call.deadline_s - trio.current_time()) * 1000))
        wanted_ms = remaining_ms - _REQUEST_TIMEOUT_MS // 2
    if request.HasField("long_polling_timeout"):
        wanted_ms = duration_ms(request.long_polling_timeout)
    polling_ms = min(max(wanted_ms, POLLING_MS_MIN), POLLING_MS_MAX)
    if remaining_ms is None or polling_ms <= remaining_ms - _ANSWER_MARGIN_MS:
        return polling_ms
    if remaining_ms < POLLING_MS_MIN:
        text = f"the deadline leaves {remaining_ms} ms, polling needs at least {POLLING_MS_MIN} ms"
        if call.metadata.get("x-mq-client-version", "") < _ILLEGAL_POLLING_TIME_SINCE:
            raise BadRequestError(text)
        raise IllegalPollingTimeError(text)
    return remaining_ms - _ANSWER_MARGIN_MS


async def _finish(context: MessagingContext, send: Send, status: pb.ReceiveMessageResponse) -> None:
    await send(status)
    await _send_delivery_timestamp(context, send)


async def _send_delivery_timestamp(context: MessagingContext, send: Send) -> None:
    response = pb.ReceiveMessageResponse()
    set_timestamp(response.delivery_timestamp, context.clock.now_ms())
    await send(response)
