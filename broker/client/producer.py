"""Sending messages from a trio program."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Self, final

import trio

from commitbus.broker.client.arguments import (
    Body,
    check_listener,
    check_queue_id,
    check_text,
)
from commitbus.broker.client.errors import BufferFullError, ClientClosedError, ClientError
from commitbus.broker.client.link import Link, call_now
from commitbus.broker.client.options import ProducerOptions
from commitbus.broker.client.properties import NO_PROPERTIES, encoded_properties
from commitbus.broker.client.receipt import OnDelivery, Receipt
from commitbus.broker.client.topic_sender import TopicSender

_DEFAULTS = ProducerOptions()


@final
class Producer:
    """Sends messages, each awaited or not, in batches underneath.

        async with Producer("127.0.0.1:8081") as producer:
            receipt = await producer.send(b"hello", topic="greetings", tag="en")

    Messages of a topic that go to one queue (see `queue_id`) are stored in the order in which they
    were sent. A lost connection is made again, and what was not acknowledged is sent again and
    stored once. Leaving the block waits for everything that was sent, unless an exception leaves
    it. Belongs to one trio run.
    """

    def __init__(self, endpoint: str, options: ProducerOptions = _DEFAULTS) -> None:
        """Name the broker as `host:port` or `unix:PATH`; does not connect yet.

        Raises:
            ValueError: `endpoint` is no such thing.
        """
        self._options = options
        self._link = Link(endpoint, options.tls, options.server_name)
        self._senders: dict[tuple[str, int | None], TopicSender] = {}
        self._failure: ClientError | None = None
        self._nursery: trio.Nursery | None = None
        self._lock = threading.Lock()
        self._soon: Callable[[Callable[[], object]], object] = call_now

    async def __aenter__(self) -> Self:
        """Connect.

        Raises:
            BrokerUnavailableError: The broker cannot be reached in time.
        """
        self._nursery = await self._link.open(self._options.connect_timeout_s)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Flush, unless an exception leaves the block, and disconnect. Raises as `flush`."""
        try:
            if error is None:
                await self.flush()
        finally:
            self._nursery = None
            await self._link.close()

    async def send(
        self,
        body: Body,
        *,
        topic: str,
        tag: str = "",
        keys: Sequence[str] = (),
        properties: Mapping[str, str] = NO_PROPERTIES,
        queue_id: int | None = None,
    ) -> Receipt:
        """Send a message and return where it was stored, once that is as durable as promised.

        Cancelling it does not take the message back.

        Args:
            body: 1 byte to the broker's `max_body_bytes`. One that can change is copied.
            topic: Takes NORMAL messages.
            tag: What consumers filter by.
            keys: What the message can be found by; without spaces.
            properties: More about it.
            queue_id: Which of the topic's queues; the broker takes them in turn when None.

        Raises:
            RefusedError: The broker refuses it; it was not stored.
            DeliveryUnknownError: The broker did not answer in time: it may be stored.
            ClientClosedError: The producer is closed.
            TypeError: An argument has a wrong type.
            ValueError: A topic or queue id that cannot be.
        """
        encoded = encoded_properties(tag, keys, properties)
        sender = self.sender(topic, queue_id)
        while True:
            waiter = _Waiter(trio.lowlevel.current_task())
            try:
                sender.add(body, encoded, waiter.on_delivery)
            except BufferFullError:
                await sender.progress.wait()
                continue
            await trio.lowlevel.wait_task_rescheduled(waiter.abort)
            return waiter.result()

    async def produce(
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
        """Send a message without waiting for its receipt; wait only while the buffer is full.

        Args are those of `send`, and `on_delivery`, called with an error or a receipt. What fails
        without one is raised by `flush`.

        Raises:
            RefusedError: The message cannot be right.
            ClientClosedError: The producer is closed.
            TypeError, ValueError: As `send`.
        """
        if on_delivery is not None:
            check_listener(on_delivery)
        encoded = encoded_properties(tag, keys, properties) if tag or keys or properties else b""
        sender = self.sender(topic, queue_id)
        while True:
            try:
                sender.add(body, encoded, on_delivery)
            except BufferFullError:
                await sender.progress.wait()
            else:
                return

    async def flush(self) -> None:
        """Return when everything that was sent before is stored.

        Raises:
            ClientError: The first message that failed, of those that nobody else was told of.
        """
        for sender in list(self._senders.values()):
            await sender.flush()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def sender(self, topic: str, queue_id: int | None) -> TopicSender:
        """Return where messages of a topic are gathered. Safe on any thread; not for users."""
        return self._senders.get((topic, queue_id)) or self._new_sender(topic, queue_id)

    def call_from_threads(self, soon: Callable[[Callable[[], object]], object]) -> None:
        """Have `soon` call functions in the trio run from now on. Not for users."""
        self._soon = soon

    def _new_sender(self, topic: str, queue_id: int | None) -> TopicSender:
        with self._lock:
            sender = self._senders.get((topic, queue_id))
            if sender is not None:
                return sender
            check_text("topic", topic)
            check_queue_id(queue_id)
            if self._nursery is None:
                raise ClientClosedError
            sender = TopicSender(
                topic,
                queue_id,
                self._link,
                self._options,
                wake=self._wake,
                on_failure=self._note_failure,
            )
            self._senders[topic, queue_id] = sender
            self._soon(partial(self._nursery.start_soon, sender.run))
            return sender

    def _wake(self, sender: TopicSender) -> None:
        self._soon(sender.work_arrived)

    def _note_failure(self, error: ClientError) -> None:
        if self._failure is None:
            self._failure = error


@final
class _Waiter:
    """A task that waits for the receipt of one message."""

    __slots__ = ("_error", "_receipt", "_task")

    def __init__(self, task: trio.lowlevel.Task) -> None:
        self._task: trio.lowlevel.Task | None = task

    def on_delivery(self, error: ClientError | None, receipt: Receipt | None) -> None:
        self._error, self._receipt = error, receipt
        task, self._task = self._task, None
        if task is not None:
            # Without an outcome: making one for each message costs as much as the rest of this.
            trio.lowlevel.reschedule(task)

    def result(self) -> Receipt:
        """Return the receipt, once there is an answer.

        Raises:
            ClientError: it failed.
        """
        if self._error is not None:
            raise self._error
        assert self._receipt is not None, "a message was stored, or has failed"
        return self._receipt

    def abort(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED
