"""What waits: receive calls for messages, and histories for the store's threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import final

import trio

from commitbus.broker.rpc.call import Response
from commitbus.broker.rpc.proto import rocketmq_v2_pb2 as pb
from commitbus.broker.store.message_store import MessageStore
from commitbus.broker.store.reput import Arrival
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
