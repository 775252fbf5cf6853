"""Messages that a group could not consume, moved to a topic of the group's own."""

from __future__ import annotations

from functools import partial

from commitbus.broker.common.errors import InvalidReceiptHandleError
from commitbus.broker.consuming.receipt_handle import ReceiptHandle
from commitbus.broker.consuming.state import ConsumingCore
from commitbus.broker.consuming.store_reads import read_or_wait, read_places, read_record
from commitbus.broker.core import properties as names
from commitbus.broker.core.outgoing import message_id, stored_again
from commitbus.broker.metadata.names import dead_letter_topic
from commitbus.broker.metadata.topics import TopicConfig
from commitbus.broker.settling.deliveries import Delivery, find_delivery, with_places
from commitbus.broker.settling.settle import settle
from commitbus.commitlog.errors import MessageRefusedError
from commitbus.commitlog.types import Record


async def forward(core: ConsumingCore, group: str, topic: str, text: str) -> None:
    """Move a message that its consumer gives up on to the group's dead letter queue.

    Args:
        core: the broker.
        group: the group that received the message.
        topic: where it was received from.
        text: the receipt handle.

    Raises:
        InvalidReceiptHandleError: the handle is refused.
        StoreError: the message could not be read, or the copy not be stored; it stays where it is.
    """
    delivery = await _delivery(core, group, topic, text)
    if delivery.entry is not None:
        async with core.letter_places:
            await _forward(core, group, topic, text, delivery.handle)


async def _forward(
    core: ConsumingCore, group: str, topic: str, text: str, handle: ReceiptHandle
) -> None:
    record = await _read(core, topic, handle)
    await prepare(core, group)
    # A disk may have been waited for, and another request may have had the same wish.
    delivery = await _delivery(core, group, topic, text)
    if delivery.entry is not None:
        await bury(core, group, record, delivery.entry.delivery_attempt)
        settle(core, group, topic, delivery.progress, (handle.queue_offset,))


async def _delivery(core: ConsumingCore, group: str, topic: str, text: str) -> Delivery:
    found = with_places(core, topic, lambda places: find_delivery(core, group, topic, text, places))
    return found if isinstance(found, Delivery) else await found


async def _read(core: ConsumingCore, topic: str, handle: ReceiptHandle) -> Record:
    """Return the message that lies at a handle's queue offset.

    The queue says where that is; the handle's own physical offset came from a client.

    Raises:
        InvalidReceiptHandleError: the message is deleted.
        StoreError: it cannot be read.
    """
    store, offset = core.store, handle.queue_offset
    places = await read_or_wait(read_places, store, topic, handle.queue_id, (offset,))
    place = places[offset]
    if place is None:
        raise InvalidReceiptHandleError("the message is deleted")
    return await read_or_wait(read_record, store, place)


async def prepare(core: ConsumingCore, group: str) -> TopicConfig:
    """Return a group's dead letter topic, made now if it is the first letter.

    Done before it is decided whether a message is buried: from then on nothing may be awaited.

    Raises:
        StateWriteError: it could not be made.
    """
    name = dead_letter_topic(group)
    topic = core.metadata.topic(name)
    if topic is None:
        config = TopicConfig(name, read_queue_nums=1, write_queue_nums=1)
        topic = await core.metadata.add_topic(config)
    return topic


async def bury(core: ConsumingCore, group: str, record: Record, delivery_attempt: int) -> None:
    """Store a copy in the group's dead letter queue, durably. The original stays in flight.

    Args:
        core: the broker.
        group: who could not consume the message.
        record: the message.
        delivery_attempt: the last one.

    Raises:
        MessageRefusedError: the copy breaks a limit of the store, and always will.
        StoreError: the copy could not be stored.
    """
    topic = (await prepare(core, group)).name
    # A message that was buried before keeps the place that it came from first.
    origin = {
        names.DEAD_LETTER_ORIGIN_TOPIC: record.topic,
        names.DEAD_LETTER_ORIGIN_MESSAGE_ID: message_id(record),
    }
    copy = partial(stored_again, record, topic, 0, reconsume_times=delivery_attempt - 1)
    try:
        result = core.store.put(copy({**origin, **record.properties}))
    except MessageRefusedError:
        # There may be no room for it beside properties of nearly 32 KB.
        result = core.store.put(copy(record.properties))
    await core.durability.wait(result.end_offset)
    core.counters.count_dead_letter(group, record.topic)
