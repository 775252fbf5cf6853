"""The bulk client, in threads: it sends to one topic and reads all of it, once and in order."""

from __future__ import annotations

import ssl
import time
from collections import defaultdict
from functools import partial
from typing import Final

from commitbus.broker.client import (
    ClientError,
    ConsumerOptions,
    Message,
    ProducerOptions,
    Receipt,
    RefusedError,
    SyncConsumer,
    SyncProducer,
)
from commitbus.broker.metadata.names import dead_letter_topic
from commitbus.broker.rpc.call import StatusCode
from tests.soak.load import Load, Pace
from tests.soak.messages import Group, body_of, key_of, number_of, tag_of

TOPIC: Final = "bulk"
BATCH_MAX: Final = 64
CONNECT_S: Final = 30.0
DELIVERY_S: Final = 60.0
LOOK_S: Final = 0.5


def produce(load: Load, rate: float) -> None:
    """Send until sending ends; return when all is acknowledged."""
    choice, pace, recorder = load.choice("bulk"), Pace(rate), load.recorder
    options = ProducerOptions(connect_timeout_s=CONNECT_S, delivery_timeout_s=DELIVERY_S)

    def told(number: int, error: ClientError | None, receipt: Receipt | None) -> None:
        if receipt is None:
            recorder.fail(f"bulk: message {number} was not taken: {error!r}")
        else:
            recorder.sent(number, receipt.queue_offset, receipt.queue_id)

    with SyncProducer(load.server.endpoint, options) as producer:
        while not load.sending_ends.is_set():
            numbers = recorder.sending(TOPIC, choice.randint(1, BATCH_MAX))
            for number in numbers:
                producer.produce(
                    body_of(number),
                    topic=TOPIC,
                    tag=tag_of(number),
                    keys=[key_of(number)],
                    on_delivery=partial(told, number),
                )
            time.sleep(pace.delay_s(len(numbers)))


def fetch(load: Load) -> None:
    """Follow the topic until the end, over TLS where the broker knows it."""
    trusted = load.server.trusted
    tls = ssl.create_default_context(cadata=trusted.decode()) if trusted else None
    options = ConsumerOptions(connect_timeout_s=CONNECT_S, tls=tls)
    expected: dict[int, int] = defaultdict(int)
    with SyncConsumer(load.server.endpoint, TOPIC, options=options) as consumer:
        while True:
            batch = consumer.next_batch(LOOK_S)
            if batch is None and load.ends.is_set():
                break
            for message in batch or ():
                if message.queue_offset != expected[message.queue_id]:
                    place = f"queue {message.queue_id}, offset {message.queue_offset}"
                    load.recorder.fail(f"bulk: {place} came for {expected[message.queue_id]}")
                expected[message.queue_id] = message.queue_offset + 1
                _record(load, message)
    stored = load.recorder.stored(TOPIC)
    if sum(expected.values()) != stored:
        load.recorder.fail(f"bulk: {sum(expected.values())} of {stored} stored messages came")


def dead_letters(load: Load, group: Group) -> set[int]:
    """Return what lies in a group's dead letter queue."""
    numbers = set()
    topic = dead_letter_topic(group.name)
    try:
        with SyncConsumer(load.server.endpoint, topic, follow=False) as consumer:
            for message in consumer:
                number = number_of(message.body)
                if number is None:
                    load.recorder.fail(f"{topic}: offset {message.queue_offset} is not ours")
                else:
                    numbers.add(number)
    except RefusedError as error:
        # The first dead letter makes it.
        if error.code is not StatusCode.NOT_FOUND:
            raise
    return numbers


def _record(load: Load, message: Message) -> None:
    number = number_of(message.body)
    if number is None or message.tag != tag_of(number) or message.keys != (key_of(number),):
        load.recorder.fail(f"bulk: not what was sent: {message.message_id}")
    else:
        load.recorder.fetched(TOPIC, number, message.queue_id, message.queue_offset)
