"""PullMessage: messages of one queue from an offset that the consumer keeps itself.

RocketMQ 5.4.0 answers UNIMPLEMENTED. What it means here is what the protocol says: nothing is put
in flight and the group's progress stays as it is, so any number of consumers may pull the same
messages. That is what broadcasting is made of.
"""

from __future__ import annotations

from typing import Final

import trio

from commitbus.broker.common.errors import BadRequestError
from commitbus.broker.consuming.deadlines import shared_deadline_s
from commitbus.broker.consuming.delivering import Recipient
from commitbus.broker.messaging.clients import Client
from commitbus.broker.messaging.context import MessagingContext
from commitbus.broker.messaging.delivered import response_encoder
from commitbus.broker.messaging.filters import parse_filter, prepare_filter
from commitbus.broker.messaging.handover import hand_over
from commitbus.broker.messaging.offsets import readable_queue
from commitbus.broker.messaging.polled_call import Answers, PolledCall
from commitbus.broker.messaging.polling_time import polling_ms
from commitbus.broker.messaging.status import ok, status_of
from commitbus.broker.messaging.validate import group_name
from commitbus.broker.receiving.allowance import BATCH_MAX
from commitbus.broker.receiving.pulling import PullBatch, PullDemand, Pulling
from commitbus.broker.rpc.call import Call, Send
from commitbus.broker.rpc.method import Parked
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from commitbus.commitlog.types import QueueOffset

_OK: Final = pb.PullMessageResponse(status=ok())
_NOTHING_NEW: Final = pb.PullMessageResponse(
    status=pb.Status(code=pb.MESSAGE_NOT_FOUND, message="no new message")
)
"""Sent as they are, never changed."""


async def pull_message(
    context: MessagingContext, request: pb.PullMessageRequest, call: Call, send: Send
) -> Parked | None:
    """Send one status, then messages, then the offset to go on at; park while there are none.

    A refusal after the first look is sent here, because it says the offset, too.

    Raises:
        RequestError: the request is refused before a look.
        StateWriteError: the group could not be created.
    """
    client = context.clients.of(call)
    until_s = shared_deadline_s(trio.current_time() + polling_ms(request, call) / 1000)
    prepared = await prepare_filter(request.filter_expression)
    demand = _demand(context, request, client, call, until_s)
    del prepared
    await context.group(demand.to.group)
    poll = Pulling(context.consuming, demand, response_encoder, QueueOffset(request.offset))
    return await PolledCall(context, client, poll, _ANSWERS, call=call, send=send).resume()


def _demand(
    context: MessagingContext,
    request: pb.PullMessageRequest,
    client: Client,
    call: Call,
    until_s: float,
) -> PullDemand:
    """Return what a request asks for.

    Raises:
        RequestError: the first thing that is wrong with it.
    """
    to = Recipient(group_name(request.group), client.client_id, call.peer)
    topic, queue_id = readable_queue(context, request.message_queue)
    wanted = parse_filter(request.filter_expression)
    if request.batch_size < 1:
        raise BadRequestError(f"a batch of {request.batch_size} messages is none")
    return PullDemand(topic, queue_id, wanted, min(request.batch_size, BATCH_MAX), to, until_s)


async def _answer(answered: PolledCall, batch: PullBatch[bytes]) -> None:
    """Send a batch.

    Raises:
        RpcError: the client reads it too slowly.
    """
    last = _next_offset(answered)
    if batch.messages:
        await hand_over(answered.send, _OK, batch.messages, last)
    else:
        await answered.send(_NOTHING_NEW, last)


async def _refuse(answered: PolledCall, error: Exception) -> None:
    status = pb.PullMessageResponse(status=status_of(error))
    await answered.send(status, _next_offset(answered))


def _next_offset(answered: PolledCall) -> pb.PullMessageResponse:
    assert isinstance(answered.poll, Pulling)
    return pb.PullMessageResponse(next_offset=answered.poll.offset)


_ANSWERS: Final = Answers(_answer, _refuse)
