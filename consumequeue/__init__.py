"""For each topic and queue, where its messages lie in the log: 20 bytes each."""

from commitbus.consumequeue.consume_queue import ConsumeQueue
from commitbus.consumequeue.consume_queue_store import ConsumeQueueStore
from commitbus.consumequeue.errors import DispatchError
from commitbus.consumequeue.unit_format import CqUnit

__all__ = ["ConsumeQueue", "ConsumeQueueStore", "CqUnit", "DispatchError"]
