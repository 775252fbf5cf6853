"""The client without trio."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from commitbus.broker import Broker
from commitbus.broker.client import (
    BrokerUnavailableError,
    ClientClosedError,
    ConsumerOptions,
    ProducerOptions,
    Receipt,
    RefusedError,
    SyncConsumer,
    SyncProducer,
)

WAIT_S = 20
THREADS = 4
EACH = 500


def test_what_threads_produce_is_consumed(broker: Broker, topic: str) -> None:
    told: list[object] = []
    options = ProducerOptions(buffer_bytes=50_000, batch_bytes=5_000)
    with SyncProducer(broker.endpoint, options) as producer:

        def produce(thread: int) -> None:
            for number in range(EACH):
                body = b"%d-%d" % (thread, number)
                producer.produce(body, topic=topic, on_delivery=lambda *told_: told.append(told_))

        threads = [threading.Thread(target=produce, args=(n,)) for n in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        producer.flush()
        assert len(told) == THREADS * EACH
    with SyncConsumer(broker.endpoint, topic, follow=True) as consumer:
        bodies: list[bytes] = []
        while len(bodies) < THREADS * EACH:
            batch = consumer.next_batch(timeout_s=20)
            assert batch is not None
            bodies += batch.bodies()
        assert consumer.next_batch(timeout_s=0.05) is None
        assert sum(consumer.positions.values()) == THREADS * EACH
    assert sorted(bodies) == sorted(b"%d-%d" % (t, n) for t in range(THREADS) for n in range(EACH))


def test_a_send_returns_its_receipt_and_messages_iterate(broker: Broker, topic: str) -> None:
    with SyncProducer(broker.endpoint) as producer:
        receipts = [producer.send(b"%d" % n, topic=topic, tag="t", queue_id=0) for n in range(3)]
    assert [(r.queue_id, r.queue_offset) for r in receipts] == [(0, 0), (0, 1), (0, 2)]
    assert all(isinstance(receipt, Receipt) for receipt in receipts)
    with SyncConsumer(broker.endpoint, topic) as consumer:
        messages = [message for _, message in zip(range(3), consumer, strict=False)]
    assert [message.body for message in messages] == [b"0", b"1", b"2"]


def test_errors_reach_the_caller(broker: Broker, topic: str) -> None:
    with SyncProducer(broker.endpoint) as producer:
        with pytest.raises(RefusedError):
            producer.send(b"", topic=topic)
        with pytest.raises(RefusedError):
            producer.produce(b"x", topic=topic, tag="a|b")
        producer.produce(b"", topic=topic)
        with pytest.raises(RefusedError):
            producer.flush()
        producer.produce(b"", topic=topic)
        with pytest.raises(RefusedError):
            producer.close()
    for call in (producer.flush, lambda: producer.send(b"x", topic=topic)):
        with pytest.raises(ClientClosedError):
            call()
    with pytest.raises(ClientClosedError):
        producer.produce(b"x", topic=topic)
    with pytest.raises(BrokerUnavailableError):
        SyncProducer("127.0.0.1:1", ProducerOptions(connect_timeout_s=0.1))
    with pytest.raises(BrokerUnavailableError):
        SyncConsumer("127.0.0.1:1", topic, options=ConsumerOptions(connect_timeout_s=0.1))
    with pytest.raises(ValueError, match="host:port"):
        SyncProducer("nowhere")


def test_an_exception_does_not_wait_for_what_was_produced(broker: Broker, topic: str) -> None:
    def fail() -> None:
        with SyncProducer(broker.endpoint, ProducerOptions(linger_s=60)) as producer:
            producer.produce(b"x", topic=topic)
            raise KeyError

    with pytest.raises(KeyError):
        fail()


def test_closing_ends_what_waits_in_another_thread(broker: Broker, topic: str) -> None:
    consumer = SyncConsumer(broker.endpoint, topic)
    raised: list[type[BaseException]] = []

    def wait() -> None:
        try:
            consumer.next_batch()
        except BaseException as error:  # noqa: BLE001 - looked at below
            raised.append(type(error))

    thread = threading.Thread(target=wait)
    thread.start()
    # It may not wait yet then, to the same effect.
    thread.join(0.1)
    consumer.close()
    thread.join(WAIT_S)
    assert raised == [ClientClosedError]


@pytest.mark.parametrize(
    "make",
    [
        lambda: ProducerOptions(in_flight_max=65),
        lambda: ProducerOptions(batch_bytes=0),
        lambda: ConsumerOptions(read_ahead_bytes=0),
    ],
)
def test_options_that_cannot_work_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"must be more than 0|not 1 to 64"):
        make()
