"""AckMessage and ChangeInvisibleDuration: what becomes of a delivered message."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from functools import partial
from typing import Final

from commitbus.broker.messaging.context import MessagingContext
from commitbus.broker.messaging.deliveries import (
    ColdPlacesError,
    Places,
    find_delivery,
    with_places,
)
from commitbus.broker.messaging.errors import BadRequestError, InvalidReceiptHandleError
from commitbus.broker.messaging.receipt_handle import ReceiptHandle
from commitbus.broker.messaging.status import ok, overall, status_of
from commitbus.broker.messaging.validate import group_name, invisible_ms, topic_name
from commitbus.broker.metadata.fifo_lock import lock_units
from commitbus.broker.metadata.groups import LockUnit
from commitbus.broker.metadata.progress import QueueProgress
from commitbus.broker.rpc.call import Call, Response
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from commitbus.broker.rpc.proto.wire_format import delimited, key_of
from commitbus.commitlog.errors import ReadFailedError

ENTRIES_MAX: Final = 1024
"""Of one request; a receive hands out 32. Nobody else is served while they are looked up."""

_OK: Final = pb.AckMessageResponse(status=ok()).SerializeToString()
_ENTRY_OK: Final = pb.AckMessageResultEntry(status=ok()).SerializeToString()
_ENTRIES: Final = key_of(pb.AckMessageResponse, "entries")
_MESSAGE_ID: Final = key_of(pb.AckMessageResultEntry, "message_id")
_RECEIPT_HANDLE: Final = key_of(pb.AckMessageResultEntry, "receipt_handle")

_Result = tuple[str, str]
"""The message id and the receipt handle of an entry, as they came."""


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
    return with_places(context, topic, partial(_acknowledge, context, request, group, topic))


def _acknowledge(
    context: MessagingContext,
    request: pb.AckMessageRequest,
    group: str,
    topic: str,
    places: Places,
) -> Response:
    results: list[_Result] = []
    errors: dict[int, pb.Status] = {}
    in_flight: dict[QueueProgress, list[int]] = {}
    cold: set[tuple[int, int]] = set()
    for entry in request.entries[:]:
        text = entry.receipt_handle
        try:
            handle, progress, state = find_delivery(context, group, topic, text, places)
        except (InvalidReceiptHandleError, ReadFailedError) as error:
            errors[len(results)] = status_of(error)
        except ColdPlacesError as error:
            cold.update(error.places)
        else:
            if state is not None:
                in_flight.setdefault(progress, []).append(handle.queue_offset)
        results.append((entry.message_id, text))
    if cold:
        raise ColdPlacesError(cold)
    for progress, offsets in in_flight.items():
        count = settle(context, group, topic, progress, offsets)
        context.counters.count_acknowledged(group, topic, count)
    return _refusal(results, errors) if errors else _success(results)


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


def _success(results: Sequence[_Result]) -> bytes:
    """Return the response; by hand, because to make its objects would take as long as the rest."""
    entries = [
        delimited(
            _ENTRIES,
            delimited(_MESSAGE_ID, message_id.encode())
            + delimited(_RECEIPT_HANDLE, text.encode())
            + _ENTRY_OK,
        )
        for message_id, text in results
    ]
    return b"".join((_OK, *entries))


def _refusal(results: Sequence[_Result], errors: Mapping[int, pb.Status]) -> pb.AckMessageResponse:
    statuses = [errors.get(number, ok()) for number in range(len(results))]
    response = pb.AckMessageResponse(status=overall(statuses))
    for (message_id, text), status in zip(results, statuses, strict=True):
        response.entries.add(message_id=message_id, receipt_handle=text, status=status)
    return response


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
