"""The same client for programs without trio, from any thread, and for notebooks.

A trio run in a thread of its own does the work. Producing fills a batch in the caller's thread, so
that the other one is woken once for each batch only.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Final, Self, TypeVar, final

import trio

from commitbus.broker.client.batch import Message, MessageBatch
from commitbus.broker.client.consumer import Begin, Consumer
from commitbus.broker.client.errors import BufferFullError, ClientClosedError
from commitbus.broker.client.options import ConsumerOptions, ProducerOptions
from commitbus.broker.client.producer import Producer
from commitbus.broker.client.properties import NO_PROPERTIES, encoded_properties
from commitbus.broker.client.receipt import OnDelivery, Receipt

Result = TypeVar("Result")

_PRODUCER_DEFAULTS: Final = ProducerOptions()
_CONSUMER_DEFAULTS: Final = ConsumerOptions()


@final
class _Loop:
    """A trio run in a thread, in which one client is open."""

    def __init__(self, client: Producer | Consumer) -> None:
        """Start it. Raises what entering the client raises."""
        self._client = client
        self._token: trio.lowlevel.TrioToken
        self._stop: trio.Event
        self._discards = False
        self._failure: BaseException | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="commitbus-client", daemon=True)
        self._thread.start()
        self._ready.wait()
        self._raise_failure()

    def call(self, work: Callable[[], Awaitable[Result]]) -> Result:
        """Run something in the loop and wait for it.

        Raises:
            ClientClosedError: The loop has ended, or ends meanwhile.
        """
        try:
            return trio.from_thread.run(work, trio_token=self._token)
        except (trio.RunFinishedError, trio.Cancelled):
            raise ClientClosedError from None

    def soon(self, work: Callable[[], object]) -> None:
        """Run something in the loop."""
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(work)

    def stop(self, *, discard: bool) -> None:
        """Leave the client and end the thread; `discard`: as if an exception had left it."""
        self._discards = discard
        self.soon(self._stop_now)
        self._thread.join()
        self._raise_failure()

    def _stop_now(self) -> None:
        self._stop.set()

    def _run(self) -> None:
        try:
            trio.run(self._main)
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            self._failure = error
        finally:
            self._ready.set()

    async def _main(self) -> None:
        self._token, self._stop = trio.lowlevel.current_trio_token(), trio.Event()
        with suppress(_DiscardError):
            async with self._client:
                self._ready.set()
                await self._stop.wait()
                if self._discards:
                    raise _DiscardError

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure


@final
class _DiscardError(Exception):
    """Leaves the client's block without waiting for what was sent."""


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
        """Connect to a broker at `host:port`.

        Raises:
            ValueError: `endpoint` is no such thing.
            BrokerUnavailableError: The broker cannot be reached in time.
        """
        self._producer = Producer(endpoint, options)
        self._loop = _Loop(self._producer)
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
        body: bytes,
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
        body: bytes,
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
        encoded = encoded_properties(tag, keys, properties) if tag or keys or properties else b""
        lane = self._producer.lane(topic, queue_id)
        while True:
            try:
                lane.add(body, encoded, on_delivery)
            except BufferFullError:
                lane.wait_for_room()
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
            ValueError: `endpoint` is not `host:port`.
            BrokerUnavailableError: The broker cannot be reached in time.
        """
        self._consumer = Consumer(
            endpoint, topic, begin=begin, tags=tags, follow=follow, options=options
        )
        self._loop = _Loop(self._consumer)

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
