"""What waits: receive calls for messages, and histories for the store's threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import trio

from commitbus.broker.common.errors import REFUSALS
from commitbus.broker.rpc.call import Call, Response, RpcError
from commitbus.broker.rpc.exchange import begin
from commitbus.broker.rpc.method import Method, Parked
from commitbus.broker.rpc.outcome import refusal
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from commitbus.broker.store.message_store import MessageStore
from commitbus.broker.store.reput import Arrival
from tests.broker.histories.filters import filter_expression
from tests.broker.histories.oracle import Receipt, Subscription
from tests.broker.messaging.bus import parsed


@final
@dataclass(eq=False)
class Poll:
    """One ReceiveMessage."""

    subscription: Subscription
    batch_size: int
    invisible_ms: int
    attempt_id: str
    hangs_up: bool
    """The client does not read to the end what it is given."""
    when_given: Callable[[Poll], None]
    """Called with what there is."""
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    responses: list[pb.ReceiveMessageResponse] = field(default_factory=list)
    is_parked: bool = False

    @property
    def receipts(self) -> list[Receipt]:
        messages = [r.message for r in self.responses if r.WhichOneof("content") == "message"]
        return [
            Receipt(
                message.body,
                message.system_properties.delivery_attempt,
                message.system_properties.receipt_handle,
                (message.system_properties.queue_id, message.system_properties.queue_offset),
            )
            for message in messages
        ]

    async def carry(self, method: Method, call: Call, polling_s: int) -> None:
        """Call the handler as a transport does."""
        answer: Any = begin(method, call, (self._request(polling_s), call, self.take))
        try:
            parked = answer if isinstance(answer, Parked) else await answer
            while parked is not None:
                parked = await self._woken(parked)
        except REFUSALS as error:
            refused = refusal(error, method, call)
            assert not isinstance(refused, RpcError), "receivers are refused by a response"
            await self.take(*refused)

    def _request(self, polling_s: int) -> pb.ReceiveMessageRequest:
        request = pb.ReceiveMessageRequest(
            batch_size=self.batch_size, attempt_id=self.attempt_id or None
        )
        request.group.name = self.subscription.group
        request.message_queue.topic.name = self.subscription.topic
        request.filter_expression.CopyFrom(filter_expression(self.subscription.filter))
        request.invisible_duration.FromMilliseconds(self.invisible_ms)
        request.long_polling_timeout.seconds = polling_s
        return request

    async def _woken(self, parked: Parked) -> Parked | None:
        woken = trio.Event()
        parked.when_woken(woken.set)
        self.is_parked = not woken.is_set()
        try:
            await woken.wait()
        except trio.Cancelled:
            parked.abandon()
            raise
        finally:
            self.is_parked = False
        return await parked.resume()

    async def take(self, *responses: Response) -> None:
        """Be given responses, as a transport is."""
        self.responses.extend(map(parsed, responses))
        # Before anybody else may be given the same.
        self.when_given(self)
        if self.hangs_up:
            self.scope.cancel()
            await trio.lowlevel.checkpoint()


@final
class Arrivals:
    """Waits until the store's thread has told everybody of what was sent."""

    def __init__(self, store: MessageStore) -> None:
        self._told = threading.Condition()
        self._ends: dict[tuple[str, int], int] = {}
        # After the broker's own listeners: once it is told, they are.
        store.add_arrival_listener(self._tell)

    def _tell(self, arrivals: Sequence[Arrival]) -> None:
        with self._told:
            self._ends |= {(topic, queue_id): end for topic, queue_id, end in arrivals}
            self._told.notify()

    def wait_for(self, topic: str, queue_id: int, end: int) -> None:
        """Wait for the messages below an end of a queue."""
        with self._told:
            assert self._told.wait_for(lambda: self._ends.get((topic, queue_id)) == end, 10)
