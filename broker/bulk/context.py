"""The state that the handlers of the bulk service share."""

from __future__ import annotations

from typing import final

import trio

from commitbus.broker.bulk.arrivals import Arrivals
from commitbus.broker.bulk.producers import Producers
from commitbus.broker.bulk.slice_shares import SliceShares
from commitbus.broker.core.broker import BrokerCore
from commitbus.broker.messaging.durability import Durability
from commitbus.broker.store.message_store import MessageStore
from commitbus.broker.wire.batch_memory import keep_freed_memory
from commitbus.flush.policy import FlushMode


@final
class BulkContext:
    """The broker's state as the handlers see it. Made and used on the trio thread only."""

    def __init__(self, broker: BrokerCore) -> None:
        """Begin to listen to the store; it tells the present trio run."""
        keep_freed_memory()
        store = broker.store
        token = trio.lowlevel.current_trio_token()
        self.broker = broker
        self.producers = Producers(store, broker.durability)
        self.arrivals = Arrivals(token)
        self.slices = SliceShares()
        store.add_arrival_listener(self.arrivals.on_arrival)
        self.on_disk = broker.durability
        """For streams that ask for durable acknowledgements whatever the flush mode."""
        if store.flush_mode is not FlushMode.SYNC_FLUSH:
            self.on_disk = Durability(lambda: store.durable_watermark, needed=True)
            self.on_disk.attach(token)
            store.add_durable_listener(self.on_disk.on_durable)
            store.add_failure_listener(self.on_disk.on_failure)

    @property
    def store(self) -> MessageStore:
        """The messages."""
        return self.broker.store
