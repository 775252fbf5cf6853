"""ReceiveMessage: the request as a demand, and the batch as responses."""

from __future__ import annotations

from collections.abc import Awaitable
from functools import lru_cache
from typing import Final

import trio

from commitbus.broker.consuming.deadlines import shared_deadline_s
from commitbus.broker.messaging.clients import Client
from commitbus.broker.messaging.context import MessagingContext
from commitbus.broker.messaging.delivered import response_encoder
from commitbus.broker.messaging.filters import is_prepared, parse_filter, prepare_filter
from commitbus.broker.messaging.handover import hand_over
from commitbus.broker.messaging.message_codec import set_timestamp
from commitbus.broker.messaging.polled_call import Answers, PolledCall
from commitbus.broker.messaging.polling_time import polling_ms
from commitbus.broker.messaging.status import ok, status_of
from commitbus.broker.messaging.validate import (
    attempt_id,
    group_name,
    invisible_ms,
    topic_name,
)
from commitbus.broker.receiving.allowance import BATCH_MAX
from commitbus.broker.receiving.batch import Batch
from commitbus.broker.receiving.demand import Demand
from commitbus.broker.receiving.poll import Receiving
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

    Raises:
        RequestError: the request is refused, or topic or group are gone.
        StoreError: topic or group could not be created, or the store failed.
    """
    if not is_prepared(request.filter_expression):
        return _receive_prepared(context, request, call, send)
    return _receive(context, request, call, send)


def _receive(
    context: MessagingContext, request: pb.ReceiveMessageRequest, call: Call, send: Send
) -> Parked | Awaitable[Parked | None]:
    client = context.clients.of(call)
    until_s = shared_deadline_s(trio.current_time() + polling_ms(request, call) / 1000)
    demand = _demand(context, request, client, call)
    if context.metadata.topic(demand.topic) is None or not context.metadata.group(demand.group):
        return _receive_anew(context, request, call, send)
    context.readable_topic(demand.topic)
    context.consuming_group(demand.group)
    if demand.batch_size == 0:
        return _answer_nothing(context, client, until_s, send)
    poll = Receiving(context.consuming, demand, response_encoder, until_s)
    polled = PolledCall(context, client, poll, _ANSWERS, call=call, send=send)
    return polled.resume() if poll.may_find() else polled


async def _receive_prepared(
    context: MessagingContext, request: pb.ReceiveMessageRequest, call: Call, send: Send
) -> Parked | None:
    prepared = await prepare_filter(request.filter_expression)
    # Not `receive_message`: an expression that is refused is prepared as little as before.
    answer = _receive(context, request, call, send)
    del prepared
    return answer if isinstance(answer, Parked) else await answer


async def _receive_anew(
    context: MessagingContext, request: pb.ReceiveMessageRequest, call: Call, send: Send
) -> Parked | None:
    """Receive from a topic or for a group that does not exist yet, if it may be created."""
    await context.topic(request.message_queue.topic.name)
    context.readable_topic(request.message_queue.topic.name)
    await context.group(request.group.name)
    answer = receive_message(context, request, call, send)
    return answer if isinstance(answer, Parked) else await answer


async def _answer_nothing(
    context: MessagingContext, client: Client, until_s: float, send: Send
) -> None:
    """Answer whoever takes no message at all, as late as anybody else."""
    with context.clients.streaming(client):
        await trio.sleep_until(until_s)
    await _finish(context, send, _NOTHING_NEW)


@lru_cache(maxsize=1024)
def _shared(duration_ms: int) -> int:
    """Return the same object for equal values: consumers of a group ask for the same duration."""
    return duration_ms


async def _answer(answered: PolledCall, batch: Batch[bytes]) -> None:
    """Send a batch.

    Raises:
        RpcError: the client reads it too slowly.
    """
    context, send = answered.context, answered.send
    if not batch.messages:
        await _finish(context, send, _nothing_new(batch.limit_met()))
        return
    await hand_over(send, _OK, batch.messages, _delivery_timestamp(context))
    # What was sent may still wait for the client to read it.
    answered.call.when_unfinished = batch.when_unfinished()


_ANSWERS: Final = Answers(_answer)


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
    is_fifo = group is not None and group.consume_message_orderly
    # Of values that are kept while the call is parked, those that are there anyway.
    return Demand(
        group=group.name if group else group_text,
        topic=topic.name if topic else topic_text,
        wanted=parse_filter(request.filter_expression),
        batch_size=min(max(request.batch_size, 0), BATCH_MAX),
        invisible_ms=_shared(invisible),
        client_id=client.client_id,
        auto_renew=request.auto_renew,
        connection=call.peer,
        attempt_id=attempt_id(request.attempt_id) if is_fifo else "",
        one_of_unit=call.metadata.get(LANGUAGE_HEADER) in GO_ON_AFTER_FAILURE,
    )


def refusal(
    context: MessagingContext, error: Exception
) -> tuple[pb.ReceiveMessageResponse, pb.ReceiveMessageResponse]:
    """Return the responses that tell a client why it receives nothing."""
    return pb.ReceiveMessageResponse(status=status_of(error)), _delivery_timestamp(context)


async def _finish(context: MessagingContext, send: Send, status: pb.ReceiveMessageResponse) -> None:
    await send(status, _delivery_timestamp(context))


def _delivery_timestamp(context: MessagingContext) -> pb.ReceiveMessageResponse:
    response = pb.ReceiveMessageResponse()
    set_timestamp(response.delivery_timestamp, context.clock.now_ms())
    return response
