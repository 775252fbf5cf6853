"""AckMessage, ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue."""

from __future__ import annotations

from typing import Any

from commitbus.broker.consuming.receipt_handle import ReceiptHandle
from commitbus.broker.messaging import acks
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from commitbus.commitlog.types import PhysicalOffset, QueueOffset
from tests.broker.matrix.registry import MESSAGING, cell, cells, good_request
from tests.broker.matrix.stage import DISK_FULL, NOT_SAVED, Stage

ACK = MESSAGING + "AckMessage"
CHANGE = MESSAGING + "ChangeInvisibleDuration"
FORWARD = MESSAGING + "ForwardMessageToDeadLetterQueue"
ALL = (ACK, CHANGE, FORWARD)


async def delivered(stage: Stage) -> str:
    """Return the receipt handle of a message."""
    await stage.bus.send(b"a")
    (handle,) = (await stage.bus.receive()).handles
    return str(handle)


def named(request: Any) -> Any:
    """Return what of a request has the receipt handle."""
    return request.entries[0] if isinstance(request, pb.AckMessageRequest) else request


@cell(ACK, pb.OK, changes=("progress",))
async def acknowledged(stage: Stage) -> pb.AckMessageRequest:
    """The request is granted."""
    request = pb.AckMessageRequest(topic=pb.Resource(name="T"), group=pb.Resource(name="G"))
    request.entries.add(receipt_handle=await delivered(stage))
    return request


@cell(CHANGE, pb.OK, changes=("progress",))
async def changed(stage: Stage) -> pb.ChangeInvisibleDurationRequest:
    """The request is granted."""
    request = pb.ChangeInvisibleDurationRequest(receipt_handle=await delivered(stage))
    request.topic.name, request.group.name = "T", "G"
    request.invisible_duration.seconds = 10
    return request


@cell(FORWARD, pb.OK, changes=("log", "topics", "progress"))
async def forwarded(stage: Stage) -> pb.ForwardMessageToDeadLetterQueueRequest:
    """The request is granted."""
    request = pb.ForwardMessageToDeadLetterQueueRequest(receipt_handle=await delivered(stage))
    request.topic.name, request.group.name = "T", "G"
    return request


@cell(ACK, pb.MULTIPLE_RESULTS, changes=("progress",))
async def different_results(stage: Stage) -> pb.AckMessageRequest:
    """The entries have different results: each has its own status."""
    request = await acknowledged(stage)
    request.entries.add(receipt_handle="none")
    return request


@cell(ACK, pb.BAD_REQUEST)
async def no_entry(stage: Stage) -> pb.AckMessageRequest:
    """The request has no entry."""
    request = await acknowledged(stage)
    del request.entries[:]
    return request


@cell(ACK, pb.BAD_REQUEST)
async def too_many_entries(stage: Stage) -> pb.AckMessageRequest:
    """The request has more entries than it may."""
    stage.patch.setattr(acks, "ENTRIES_MAX", 0)
    return await acknowledged(stage)


@cell(CHANGE, pb.ILLEGAL_INVISIBLE_TIME)
async def long_invisible(stage: Stage) -> pb.ChangeInvisibleDurationRequest:
    """The invisible duration is negative or more than 12 hours."""
    request = await changed(stage)
    request.invisible_duration.seconds = 12 * 3600 + 1
    return request


@cells(ALL, pb.INVALID_RECEIPT_HANDLE)
async def malformed_handle(stage: Stage, path: str) -> Any:
    """The receipt handle is malformed."""
    request = await good_request(stage, path)
    named(request).receipt_handle = "none"
    return request


@cells(ALL, pb.INVALID_RECEIPT_HANDLE)
async def handle_of_another_broker(stage: Stage, path: str) -> Any:
    """The receipt handle names no queue that the group receives the topic from here."""
    request = await good_request(stage, path)
    request.group.name = "Other"
    return request


@cells(ALL, pb.INVALID_RECEIPT_HANDLE)
async def handle_of_nothing_delivered(stage: Stage, path: str) -> Any:
    """The receipt handle names a message that was not delivered."""
    request = await good_request(stage, path)
    handle = ReceiptHandle.parse(named(request).receipt_handle)
    named(request).receipt_handle = handle._replace(queue_offset=QueueOffset(7)).encode()
    return request


@cells(ALL, pb.INVALID_RECEIPT_HANDLE)
async def expired_handle(stage: Stage, path: str) -> Any:
    """The receipt handle has expired: the message is visible again."""
    request = await good_request(stage, path)
    await stage.bus.sleep(31)
    return request


@cells(ALL, pb.INVALID_RECEIPT_HANDLE)
async def handle_of_a_lost_message(stage: Stage, path: str) -> Any:
    """The receipt handle names a message that another has the place of now."""
    request = await good_request(stage, path)
    handle = ReceiptHandle.parse(named(request).receipt_handle)
    other = handle._replace(pop_time_ms=handle.pop_time_ms - 1, physical_offset=PhysicalOffset(7))
    named(request).receipt_handle = other.encode()
    return request


@cells(ALL, pb.INVALID_RECEIPT_HANDLE)
async def handle_of_a_message_kept_back(stage: Stage, path: str) -> Any:
    """The receipt handle names a message that is kept back for its turn."""
    request = await good_request(stage, path)
    await stage.bus.send(b"b")
    table = stage.context.progress
    progress = table.get("G", "T", 0)
    assert progress is not None
    table.hold(progress, [1], next_offset=2)
    handle = ReceiptHandle.parse(named(request).receipt_handle)
    named(request).receipt_handle = handle._replace(queue_offset=QueueOffset(1)).encode()
    return request


@cell(CHANGE, pb.INVALID_RECEIPT_HANDLE)
async def already_acknowledged(stage: Stage) -> pb.ChangeInvisibleDurationRequest:
    """The message is acknowledged."""
    request = await changed(stage)
    assert await stage.bus.ack(request.receipt_handle) == [pb.OK]
    return request


@cell(FORWARD, pb.INVALID_RECEIPT_HANDLE)
async def already_deleted(stage: Stage) -> pb.ForwardMessageToDeadLetterQueueRequest:
    """The message is deleted."""
    request = await forwarded(stage)
    store = stage.context.store
    nothing = store.fetch("T", 0, store.max_offset("T", 0), 1)
    for name in ("fetch", "fetch_cached"):
        stage.patch.setattr(store, name, lambda *_: nothing)
    return request


@cell(ACK, pb.INTERNAL_SERVER_ERROR)
async def acknowledgement_not_saved(stage: Stage) -> pb.AckMessageRequest:
    """The group's progress could not be saved."""
    request = await acknowledged(stage)
    stage.fails(stage.context.progress, "acknowledge", NOT_SAVED)
    return request


@cell(CHANGE, pb.INTERNAL_SERVER_ERROR)
async def change_not_saved(stage: Stage) -> pb.ChangeInvisibleDurationRequest:
    """The group's progress could not be saved."""
    request = await changed(stage)
    stage.fails(stage.context.progress, "change_invisible", NOT_SAVED)
    return request


@cell(FORWARD, pb.INTERNAL_SERVER_ERROR, changes=("topics",))
async def dead_letter_not_stored(stage: Stage) -> pb.ForwardMessageToDeadLetterQueueRequest:
    """The copy could not be stored; the message stays where it is."""
    request = await forwarded(stage)
    stage.fails(stage.context.store, "put", DISK_FULL)
    return request
