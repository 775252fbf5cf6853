"""AckMessage and ChangeInvisibleDuration: what becomes of a delivered message."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Final, NamedTuple

import trio

from commitbus.broker.core.errors import BadRequestError, InvalidReceiptHandleError
from commitbus.broker.messaging.context import MessagingContext
from commitbus.broker.messaging.deliveries import Places, find_delivery, with_places
from commitbus.broker.messaging.receipt_handle import ReceiptHandle
from commitbus.broker.messaging.status import ok, overall, status_of
from commitbus.broker.messaging.store_reads import ColdPlacesError
from commitbus.broker.messaging.validate import group_name, invisible_ms, topic_name
from commitbus.broker.metadata.fifo_lock import lock_units
from commitbus.broker.metadata.groups import LockUnit
from commitbus.broker.metadata.progress import QueueProgress
from commitbus.broker.rpc.call import Call, Response
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from commitbus.broker.rpc.proto.wire_format import delimited, key_of
from commitbus.commitlog.errors import ReadFailedError

ENTRIES_MAX: Final = 1024
"""Entries of one request; a receive hands out 32."""
_AT_ONCE: Final = 64
"""Entries settled between two looks at other tasks: a millisecond, or two if they are refused."""

_OK: Final = pb.AckMessageResponse(status=ok()).SerializeToString()
_ENTRY_OK: Final = pb.AckMessageResultEntry(status=ok()).SerializeToString()
_ENTRIES: Final = key_of(pb.AckMessageResponse, "entries")
_MESSAGE_ID: Final = key_of(pb.AckMessageResultEntry, "message_id")
_RECEIPT_HANDLE: Final = key_of(pb.AckMessageResultEntry, "receipt_handle")

_Result = tuple[str, str, pb.Status | None]
"""The message id and the receipt handle of an entry, as they came, and why it failed if it did."""


def ack_message(
    context: MessagingContext, request: pb.AckMessageRequest, call: Call
) -> Response | Awaitable[Response]:
    """Take messages out of flight for good; one that is already counts as taken.

    Raises:
        RequestError: a name is illegal, or there are no or too many entries. Entries fail one by
            one.
    """
    context.clients.seen(call)
    group, topic = group_name(request.group), topic_name(request.topic)
    if not request.entries:
        raise BadRequestError("no entry to acknowledge")
    if len(request.entries) > ENTRIES_MAX:
        raise BadRequestError(
            f"{len(request.entries)} entries to acknowledge, at most {ENTRIES_MAX} are allowed"
        )
    if len(request.entries) > _AT_ONCE:
        return _acknowledge_in_steps(context, request, group, topic)
    work = partial(_acknowledge, context, group, topic, request.entries[:])
    return with_places(context, topic, lambda places: _response([work(places)]))


async def _acknowledge_in_steps(
    context: MessagingContext, request: pb.AckMessageRequest, group: str, topic: str
) -> bytes:
    steps = []
    for start in range(0, len(request.entries), _AT_ONCE):
        entries = request.entries[start : start + _AT_ONCE]
        step = with_places(context, topic, partial(_acknowledge, context, group, topic, entries))
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
    context: MessagingContext,
    group: str,
    topic: str,
    entries: Sequence[pb.AckMessageEntry],
    places: Places,
) -> _Acknowledged:
    results: list[_Result] = []
    in_flight: dict[QueueProgress, list[int]] = {}
    cold: set[tuple[int, int]] = set()
    for entry in entries:
        text, refusal = entry.receipt_handle, None
        try:
            handle, progress, state = find_delivery(context, group, topic, text, places)
        except (InvalidReceiptHandleError, ReadFailedError) as error:
            refusal = status_of(error)
        except ColdPlacesError as error:
            cold.update(error.places)
        else:
            if state is not None:
                in_flight.setdefault(progress, []).append(handle.queue_offset)
        results.append((entry.message_id, text, refusal))
    if cold:
        raise ColdPlacesError(cold)
    for progress, offsets in in_flight.items():
        count = settle(context, group, topic, progress, offsets)
        context.counters.count_acknowledged(group, topic, count)
    refusals = [status for _, _, status in results if status is not None]
    return _Acknowledged(_encoded(results), refusals, len(refusals) < len(results))


def settle(
    context: MessagingContext,
    group: str,
    topic: str,
    progress: QueueProgress,
    offsets: Sequence[int],
) -> int:
    """Take messages out of flight for good; return how many were in flight.

    Wakes a receiver if it may have waited for that: no arrival may come to do so.
    """
    was_full = progress.in_flight_count >= context.progress.in_flight_max
    count = context.progress.acknowledge(progress, *offsets)
    config = context.metadata.group(group)
    if was_full:
        context.polls.wake(group, topic)
    elif config is not None and config.consume_message_orderly:
        # Where message groups are locked, the next of this one may be free whatever else is out.
        free_at_ms = (
            lock_units(progress, LockUnit.QUEUE).next_free_ms(context.clock.now_ms())
            if config.lock_unit is LockUnit.QUEUE
            else None
        )
        if free_at_ms is None:
            context.polls.wake(group, topic)
        else:
            # If the wall clock was set back, that may be before the time that those noted who wait.
            context.polls.note_expiry(group, topic, free_at_ms)
    return count


def _encoded(results: Sequence[_Result]) -> bytes:
    """Return entries; by hand, because to make their objects would take as long as the rest."""
    return b"".join(
        delimited(
            _ENTRIES,
            delimited(_MESSAGE_ID, message_id.encode())
            + delimited(_RECEIPT_HANDLE, text.encode())
            + (_ENTRY_OK if refusal is None else _entry_status(refusal)),
        )
        for message_id, text, refusal in results
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
    context.clients.seen(call)
    group, topic = group_name(request.group), topic_name(request.topic)
    # 0 is how a consumer gives a message back at once.
    duration_ms = invisible_ms(request.invisible_duration, minimum_ms=0)
    change = partial(_change_invisible_duration, context, request, group, topic)
    return with_places(context, topic, partial(change, duration_ms=duration_ms))


def _change_invisible_duration(
    context: MessagingContext,
    request: pb.ChangeInvisibleDurationRequest,
    group: str,
    topic: str,
    places: Places,
    *,
    duration_ms: int,
) -> pb.ChangeInvisibleDurationResponse:
    delivery = find_delivery(context, group, topic, request.receipt_handle, places)
    if delivery.entry is None:
        raise InvalidReceiptHandleError("the message is acknowledged")
    now_ms = context.clock.now_ms()
    handle = delivery.handle
    # Never the time that it had: the new handle must differ, and it ends the automatic renewal.
    pop_time_ms = max(now_ms, delivery.entry.pop_time_ms + 1)
    context.progress.change_invisible(
        delivery.progress,
        handle.queue_offset,
        pop_time_ms=pop_time_ms,
        invisible_until_ms=now_ms + duration_ms,
        suspend=request.suspend,
    )
    context.polls.note_expiry(group, topic, now_ms + duration_ms)
    changed = ReceiptHandle(
        pop_time_ms=pop_time_ms,
        invisible_ms=duration_ms,
        broker_name=handle.broker_name,
        queue_id=handle.queue_id,
        queue_offset=handle.queue_offset,
        physical_offset=handle.physical_offset,
    )
    config = context.metadata.group(group)
    text = changed.encode(fifo=config is not None and config.consume_message_orderly)
    return pb.ChangeInvisibleDurationResponse(status=ok(), receipt_handle=text)
