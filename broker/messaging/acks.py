"""AckMessage, ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

import trio

from commitbus.broker.common.errors import BadRequestError
from commitbus.broker.consuming.state import ConsumingCore
from commitbus.broker.messaging.context import MessagingContext
from commitbus.broker.messaging.status import ok, overall, status_of
from commitbus.broker.messaging.validate import group_name, invisible_ms, topic_name
from commitbus.broker.rpc.call import Call, Response
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from commitbus.broker.rpc.proto.wire_format import delimited, key_of
from commitbus.broker.settling.dead_letters import forward
from commitbus.broker.settling.deliveries import Places, with_places
from commitbus.broker.settling.settle import acknowledge, change_invisible

ENTRIES_MAX: Final = 1024
"""Entries of one request; a receive hands out 32."""
_AT_ONCE: Final = 64
"""Entries settled between two looks at other tasks: a millisecond, or two if they are refused."""

_OK: Final = pb.AckMessageResponse(status=ok()).SerializeToString()
_ENTRY_OK: Final = pb.AckMessageResultEntry(status=ok()).SerializeToString()
_ENTRIES: Final = key_of(pb.AckMessageResponse, "entries")
_MESSAGE_ID: Final = key_of(pb.AckMessageResultEntry, "message_id")
_RECEIPT_HANDLE: Final = key_of(pb.AckMessageResultEntry, "receipt_handle")

_Entry = tuple[str, str]
"""The message id and the receipt handle of an entry, as they came."""


def ack_message(
    context: MessagingContext, request: pb.AckMessageRequest, call: Call
) -> Response | Awaitable[Response]:
    """Take messages out of flight for good; one that is already counts as taken.

    Raises:
        RequestError: a name is illegal, or there are no or too many entries. Entries fail one by
            one. A long request may fail when some of its entries are acknowledged already; to
            repeat it is harmless.
    """
    group, topic = group_name(request.group), topic_name(request.topic)
    if not request.entries:
        raise BadRequestError("no entry to acknowledge")
    if len(request.entries) > ENTRIES_MAX:
        raise BadRequestError(
            f"{len(request.entries)} entries to acknowledge, at most {ENTRIES_MAX} are allowed"
        )
    if len(request.entries) > _AT_ONCE:
        return _acknowledge_in_steps(context, request, group, topic)
    work = partial(_acknowledge, context.consuming, group, topic, request.entries[:])
    return with_places(context.consuming, topic, lambda places: _response([work(places)]))


async def _acknowledge_in_steps(
    context: MessagingContext, request: pb.AckMessageRequest, group: str, topic: str
) -> bytes:
    steps = []
    for start in range(0, len(request.entries), _AT_ONCE):
        entries = request.entries[start : start + _AT_ONCE]
        step = with_places(
            context.consuming,
            topic,
            partial(_acknowledge, context.consuming, group, topic, entries),
        )
        steps.append(step if isinstance(step, _Acknowledged) else await step)
        await trio.lowlevel.checkpoint()
    return _response(steps)


class _Acknowledged(NamedTuple):
    """Some of a request's entries."""

    entries: bytes
    """Their part of the response."""
    refusals: Sequence[pb.Status]
    has_successes: bool


def _acknowledge(
    core: ConsumingCore,
    group: str,
    topic: str,
    entries: Sequence[pb.AckMessageEntry],
    places: Places,
) -> _Acknowledged:
    sent = [(entry.message_id, entry.receipt_handle) for entry in entries]
    errors = acknowledge(core, group, topic, [text for _, text in sent], places)
    refusals = {index: status_of(error) for index, error in errors.items()}
    encoded = _encoded(sent, refusals)
    return _Acknowledged(encoded, list(refusals.values()), len(refusals) < len(sent))


def _encoded(sent: Sequence[_Entry], refusals: Mapping[int, pb.Status]) -> bytes:
    """Return entries; by hand, because to make their objects would take as long as the rest."""
    return b"".join(
        delimited(
            _ENTRIES,
            delimited(_MESSAGE_ID, message_id.encode())
            + delimited(_RECEIPT_HANDLE, text.encode())
            + (_entry_status(refusals[index]) if index in refusals else _ENTRY_OK),
        )
        for index, (message_id, text) in enumerate(sent)
    )


def _entry_status(status: pb.Status) -> bytes:
    return pb.AckMessageResultEntry(status=status).SerializeToString()


def _response(steps: Sequence[_Acknowledged]) -> bytes:
    head, refusals = _OK, [refusal for step in steps for refusal in step.refusals]
    if refusals:
        successes = [ok()] if any(step.has_successes for step in steps) else []
        status = overall([*refusals, *successes])
        head = pb.AckMessageResponse(status=status).SerializeToString()
    return b"".join((head, *(step.entries for step in steps)))


def change_invisible_duration(
    context: MessagingContext, request: pb.ChangeInvisibleDurationRequest, call: Call
) -> pb.ChangeInvisibleDurationResponse | Awaitable[pb.ChangeInvisibleDurationResponse]:
    """Set anew when a message becomes visible again, counted from now.

    Raises:
        RequestError: a name, the duration or the handle is refused.
        ReadFailedError: an older handle cannot be checked.
    """
    group, topic = group_name(request.group), topic_name(request.topic)
    # 0 is how a consumer gives a message back at once.
    duration_ms = invisible_ms(request.invisible_duration, minimum_ms=0)

    def change(places: Places) -> pb.ChangeInvisibleDurationResponse:
        text, suspend = request.receipt_handle, request.suspend
        changed = change_invisible(
            context.consuming, group, topic, text, places, duration_ms=duration_ms, suspend=suspend
        )
        return pb.ChangeInvisibleDurationResponse(status=ok(), receipt_handle=changed)

    return with_places(context.consuming, topic, change)


async def forward_message_to_dead_letter_queue(
    context: MessagingContext, request: pb.ForwardMessageToDeadLetterQueueRequest, call: Call
) -> pb.ForwardMessageToDeadLetterQueueResponse:
    """Move a message that its consumer gives up on to the group's dead letter queue.

    Raises:
        RequestError: a name or the handle is refused.
        StoreError: it could not be read, or the copy not be stored; it stays where it is.
    """
    group, topic = group_name(request.group), topic_name(request.topic)
    await forward(context.consuming, group, topic, request.receipt_handle)
    return pb.ForwardMessageToDeadLetterQueueResponse(status=ok())
