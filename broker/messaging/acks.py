"""AckMessage and ChangeInvisibleDuration: what becomes of a delivered message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, final

from commitbus.broker.messaging.context import MessagingContext
from commitbus.broker.messaging.errors import BadRequestError, InvalidReceiptHandleError
from commitbus.broker.messaging.receipt_handle import ReceiptHandle
from commitbus.broker.messaging.status import ok, overall, status_of
from commitbus.broker.messaging.validate import group_name, invisible_ms, topic_name
from commitbus.broker.metadata.fifo_lock import next_free_ms
from commitbus.broker.metadata.groups import LockUnit
from commitbus.broker.metadata.progress import InFlight, QueueProgress
from commitbus.broker.rpc.call import Call, Response
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from commitbus.broker.rpc.proto.wire_format import delimited, key_of

ENTRIES_MAX: Final = 1024
"""Of one request; a receive hands out 32. Nobody else is served while they are looked up."""

_OK: Final = pb.AckMessageResponse(status=ok()).SerializeToString()
_ENTRY_OK: Final = pb.AckMessageResultEntry(status=ok()).SerializeToString()
_ENTRIES: Final = key_of(pb.AckMessageResponse, "entries")
_MESSAGE_ID: Final = key_of(pb.AckMessageResultEntry, "message_id")
_RECEIPT_HANDLE: Final = key_of(pb.AckMessageResultEntry, "receipt_handle")

_Result = tuple[str, str]
"""The message id and the receipt handle of an entry, as they came."""


@final
class Delivery(NamedTuple):
    """What a receipt handle names."""

    handle: ReceiptHandle
    progress: QueueProgress
    entry: InFlight | None
    """None: the message is acknowledged already."""


def find_delivery(context: MessagingContext, group: str, topic: str, text: str) -> Delivery:
    """Return the delivery that a receipt handle names, if the handle is still good for it.

    A handle is good for as long as its own invisible time lasts, even if a later one was issued
    meanwhile; the latest one is good until the message is visible again, renewals included.

    Raises:
        InvalidReceiptHandleError: it is malformed, not ours, expired, or names nothing delivered.
    """
    handle = ReceiptHandle.parse(text)
    progress = context.progress.get(group, topic, handle.queue_id)
    if handle.broker_name != context.config.broker_name or progress is None:
        raise InvalidReceiptHandleError(
            f"receipt handle {text!r} names no queue that group {group} receives topic {topic} from"
        )
    if handle.queue_offset >= progress.next_offset:
        raise InvalidReceiptHandleError(f"receipt handle {text!r} names an undelivered message")
    entry = progress.in_flight.get(handle.queue_offset)
    if entry is not None:
        if entry.delivery_attempt == 0:
            raise InvalidReceiptHandleError(f"receipt handle {text!r} names an undelivered message")
        is_latest = entry.pop_time_ms == handle.pop_time_ms
        expires_at_ms = entry.invisible_until_ms if is_latest else handle.expires_at_ms
        if expires_at_ms <= context.clock.now_ms():
            raise InvalidReceiptHandleError("receipt handle is expired")
        if not is_latest:
            _check_place(context, topic, handle)
    return Delivery(handle, progress, entry)


def _check_place(context: MessagingContext, topic: str, handle: ReceiptHandle) -> None:
    """Check that an older handle still names the message that lies at its queue offset.

    It does not where the topic was deleted and made anew, or where a power cut took the message
    and another has its offset now: that one is not this client's to acknowledge.
    """
    units = context.store.fetch(topic, handle.queue_id, handle.queue_offset, 1).units
    if not units or (
        handle.physical_offset >= 0 and units[0].physical_offset != handle.physical_offset
    ):
        raise InvalidReceiptHandleError("receipt handle names a message that is gone")


def ack_message(context: MessagingContext, request: pb.AckMessageRequest, call: Call) -> Response:
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
    results: list[_Result] = []
    errors: dict[int, pb.Status] = {}
    in_flight: dict[QueueProgress, list[int]] = {}
    for entry in request.entries[:]:
        text = entry.receipt_handle
        try:
            handle, progress, state = find_delivery(context, group, topic, text)
        except InvalidReceiptHandleError as error:
            errors[len(results)] = status_of(error)
        else:
            if state is not None:
                in_flight.setdefault(progress, []).append(handle.queue_offset)
        results.append((entry.message_id, text))
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
        free_at_ms = next_free_ms(progress.in_flight.values(), context.clock.now_ms())
        if free_at_ms is None or config.lock_unit is LockUnit.MESSAGE_GROUP:
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
) -> pb.ChangeInvisibleDurationResponse:
    """Set anew when a message becomes visible again, counted from now.

    Raises:
        RequestError: a name, the duration or the handle is refused.
    """
    context.clients.seen(call)
    group, topic = group_name(request.group), topic_name(request.topic)
    # 0 is how a consumer gives a message back at once.
    duration_ms = invisible_ms(request.invisible_duration, minimum_ms=0)
    delivery = find_delivery(context, group, topic, request.receipt_handle)
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
