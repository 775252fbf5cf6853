"""A client of our own: many messages a second from Python, over the bulk service.

`Producer` and `Consumer` live in a trio program, `SyncProducer` and `SyncConsumer` anywhere else.
It must not know the server. Begin with `producer.py`.
"""

from commitbus.broker.client.batch import Message, MessageBatch
from commitbus.broker.client.consumer import Begin, Consumer
from commitbus.broker.client.errors import (
    BrokerUnavailableError,
    BufferFullError,
    ClientClosedError,
    ClientError,
    DeliveryUnknownError,
    RefusedError,
    Trouble,
)
from commitbus.broker.client.options import ConsumerOptions, ProducerOptions
from commitbus.broker.client.producer import Producer
from commitbus.broker.client.receipt import OnDelivery, Receipt
from commitbus.broker.client.sync import SyncConsumer, SyncProducer

__all__ = [
    "Begin",
    "BrokerUnavailableError",
    "BufferFullError",
    "ClientClosedError",
    "ClientError",
    "Consumer",
    "ConsumerOptions",
    "DeliveryUnknownError",
    "Message",
    "MessageBatch",
    "OnDelivery",
    "Producer",
    "ProducerOptions",
    "Receipt",
    "RefusedError",
    "SyncConsumer",
    "SyncProducer",
    "Trouble",
]
