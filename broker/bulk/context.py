"""The state that the handlers of the bulk service share."""

from __future__ import annotations

from typing import final

from commitbus.broker.bulk.arrivals import Arrivals
from commitbus.broker.bulk.producers import Producers
from commitbus.broker.bulk.slice_shares import SliceShares
from commitbus.broker.core.broker import BrokerCore
from commitbus.broker.core.durability import Durability
from commitbus.broker.store.message_store import MessageStore
from commitbus.broker.wire.batch_memory import keep_freed_memory


@final
class BulkContext:
    """The broker's state as the handlers see it. Made and used on the trio thread only."""

    def __init__(self, broker: BrokerCore) -> None:
        """Begin to listen to the store."""
        keep_freed_memory()
        store, trio_thread = broker.store, broker.trio_thread
        self.broker = broker
        self.producers = Producers(store, broker.durability)
        self.arrivals = Arrivals(trio_thread)
        self.slices = SliceShares()
        store.add_arrival_listener(self.arrivals.on_arrival)
        self.shown = Durability(store.dispatched, trio_thread)
        """For readers that wait for what was acknowledged before."""
        self.on_disk = broker.durability
        """For streams that ask for durable acknowledgements whatever the flush mode."""
        if self.on_disk.point is not store.durable_watermark:
            self.on_disk = Durability(store.durable_watermark, trio_thread)

    @property
    def store(self) -> MessageStore:
        """The messages."""
        return self.broker.store
