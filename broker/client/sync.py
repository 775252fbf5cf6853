"""The same client for programs without trio, from any thread, and for notebooks.

A trio run in a thread of its own does the work. Producing fills a batch in the caller's thread, so
that the other one is woken once for each batch only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Final, Self, final

import trio

from commitbus.broker.client.arguments import Body, check_listener
from commitbus.broker.client.batch import Message, MessageBatch
from commitbus.broker.client.consumer import Begin, Consumer
from commitbus.broker.client.errors import BufferFullError
from commitbus.broker.client.loop import ClientLoop
from commitbus.broker.client.options import ConsumerOptions, ProducerOptions
from commitbus.broker.client.producer import Producer
from commitbus.broker.client.properties import NO_PROPERTIES, encoded_properties
from commitbus.broker.client.receipt import OnDelivery, Receipt

_PRODUCER_DEFAULTS: Final = ProducerOptions()
_CONSUMER_DEFAULTS: Final = ConsumerOptions()


@final
class SyncProducer:
    """`Producer` for threads: all methods may be called from any of them.

        with SyncProducer("127.0.0.1:8081") as producer:
            receipt = producer.send(b"hello", topic="greetings")
            for line in lines:
                producer.produce(line, topic="lines")

    Leaving the block waits for everything that was produced.
    """

    def __init__(self, endpoint: str, options: ProducerOptions = _PRODUCER_DEFAULTS) -> None:
        """Connect to a broker at `host:port` or `unix:PATH`.

        Raises:
            ValueError: `endpoint` is no such thing.
            BrokerUnavailableError: The broker cannot be reached in time.
        """
        self._producer = Producer(endpoint, options)
        self._loop = ClientLoop(self._producer)
        self._producer.call_from_threads(self._loop.soon)

    def __enter__(self) -> Self:
        """Return the producer, which is connected already."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the producer; what is not acknowledged is dropped if an exception leaves."""
        self._loop.stop(discard=error is not None)

    def close(self) -> None:
        """Wait for everything that was produced, and disconnect. Raises as `flush`."""
        self._loop.stop(discard=False)

    def send(
        self,
        body: Body,
        *,
        topic: str,
        tag: str = "",
        keys: Sequence[str] = (),
        properties: Mapping[str, str] = NO_PROPERTIES,
        queue_id: int | None = None,
    ) -> Receipt:
        """Send a message and wait for its receipt. As `Producer.send`."""
        return self._loop.call(
            lambda: self._producer.send(
                body, topic=topic, tag=tag, keys=keys, properties=properties, queue_id=queue_id
            )
        )

    def produce(
        self,
        body: Body,
        *,
        topic: str,
        tag: str = "",
        keys: Sequence[str] = (),
        properties: Mapping[str, str] = NO_PROPERTIES,
        queue_id: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> None:
        """Send a message without waiting, but while the buffer is full. As `Producer.produce`.

        `on_delivery` is called in the client's thread, and must not block it.
        """
        if on_delivery is not None:
            check_listener(on_delivery)
        encoded = encoded_properties(tag, keys, properties) if tag or keys or properties else b""
        sender = self._producer.sender(topic, queue_id)
        while True:
            try:
                sender.add(body, encoded, on_delivery)
            except BufferFullError:
                sender.wait_for_room()
            else:
                return

    def flush(self) -> None:
        """Wait until everything that was produced before is stored. As `Producer.flush`."""
        self._loop.call(self._producer.flush)


@final
class SyncConsumer:
    """`Consumer` for threads, one at a time.

    with SyncConsumer("127.0.0.1:8081", "greetings", follow=False) as consumer:
        for message in consumer:
            print(message.body)
    """

    def __init__(
        self,
        endpoint: str,
        topic: str,
        *,
        begin: Begin = "earliest",
        tags: str = "*",
        follow: bool = True,
        options: ConsumerOptions = _CONSUMER_DEFAULTS,
    ) -> None:
        """Connect and begin to read. Arguments as `Consumer`.

        Raises:
            ValueError: `endpoint` is no such thing.
            BrokerUnavailableError: The broker cannot be reached in time.
        """
        self._consumer = Consumer(
            endpoint, topic, begin=begin, tags=tags, follow=follow, options=options
        )
        self._loop = ClientLoop(self._consumer)

    def __enter__(self) -> Self:
        """Return the consumer, which is connected already."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Disconnect."""
        self.close()

    def close(self) -> None:
        """Disconnect."""
        self._loop.stop(discard=False)

    @property
    def positions(self) -> Mapping[int, int]:
        """By queue id the offset behind the last message that was handed out."""
        return self._consumer.positions

    def __iter__(self) -> Iterator[Message]:
        """Yield messages one by one. Raises as `Consumer.next_batch`."""
        for batch in self.batches():
            yield from batch

    def batches(self) -> Iterator[MessageBatch]:
        """Yield messages as they came. Raises as `Consumer.next_batch`."""
        while (batch := self.next_batch()) is not None:
            yield batch

    def next_batch(self, timeout_s: float | None = None) -> MessageBatch | None:
        """Return the next messages of one queue; None at the end, or after `timeout_s`.

        Raises as `Consumer.next_batch`.
        """
        # What is here already is taken without a change of threads, which costs as much as a batch.
        batch = self._consumer.take_received(self._loop.soon)
        return batch or self._loop.call(lambda: self._next(timeout_s))

    async def _next(self, timeout_s: float | None) -> MessageBatch | None:
        if timeout_s is None:
            return await self._consumer.next_batch()
        with trio.move_on_after(timeout_s):
            return await self._consumer.next_batch()
        return None
