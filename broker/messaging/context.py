"""The state of receivers and clients, which the handlers of the MessagingService share."""

from __future__ import annotations

from typing import final

from commitbus.broker.consuming.state import ConsumingCore
from commitbus.broker.core.broker import BrokerCore
from commitbus.broker.messaging.clients import ClientRegistry
from commitbus.broker.messaging.progress_durability import ProgressDurability
from commitbus.broker.messaging.questions import Questions


@final
class MessagingContext:
    """The broker, its receivers and its clients. Used on the trio thread only."""

    def __init__(self, broker: BrokerCore) -> None:
        self.broker, self.consuming = broker, ConsumingCore(broker)
        self.store, self.metadata, self.progress = broker.store, broker.metadata, broker.progress
        self.config, self.clock, self.counters = broker.config, broker.clock, broker.counters
        self.durability, self.client_groups = broker.durability, broker.client_groups
        self.topic, self.readable_topic = broker.topic, broker.readable_topic
        self.group, self.consuming_group = broker.group, broker.consuming_group
        self.has_messages = broker.has_messages
        self.listen_port: int | None = None
        """Set once the transport has bound it: the last resort for the address clients are told."""
        self.clients = ClientRegistry(broker.clock)
        self.questions = Questions()
        progress = broker.progress
        self.progress_durability = ProgressDurability(
            progress.flush, lambda: progress.sequence, broker.trio_thread
        )
        self.waiting_settings_bytes = 0
        """Of answers to clients that do not listen yet."""
